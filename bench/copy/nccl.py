"""Measures NCCL send and receive between two GPUs as `inlane copy` does: latency, streaming, both directions.

Run it with NCCL_P2P_DISABLE=1 to make NCCL stage through the host. Prints one JSON document. Latency is half a round trip with
the same number of bytes each way. While streaming, window(size) transfers are queued. The first transfer and the last content
of the destination are compared with what was sent.
"""

import argparse
import json
import os
import statistics
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

SIZES = [64 << 10, 1 << 20, 16 << 20, 256 << 20]


def window(size):
    return max(2, min(32, (64 << 20) // size))


def timed(step, seconds, repeats):
    """Returns the seconds per `step` of each repeat: the mean over as many steps as fit in `seconds`."""
    times = []
    # Both ranks must do the same number of steps. So rank 0 times one step and sets the number for both.
    torch.cuda.synchronize()
    start = time.perf_counter()
    step()
    torch.cuda.synchronize()
    once = torch.tensor([time.perf_counter() - start], device="cuda")
    dist.broadcast(once, 0)
    count = max(2, min(2000, int(seconds / max(once.item(), 1e-6))))
    for _ in range(repeats + 1):
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(count):
            step()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) / count)
    return times[1:]


def summary(values):
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "repeats": len(values)}


def work(rank, arguments, queue):
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29517")
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=2)
    peer = 1 - rank
    results = []
    for size in SIZES:
        generator = torch.Generator(device="cuda").manual_seed(size + 1)
        pattern = torch.randint(0, 256, (size,), dtype=torch.uint8, device="cuda", generator=generator)
        send = pattern.clone()
        receive = torch.full((size,), 0xDB, dtype=torch.uint8, device="cuda")

        def one_way():
            dist.send(send, peer) if rank == 0 else dist.recv(receive, peer)

        def round_trip():
            if rank == 0:
                dist.send(send, peer)
                dist.recv(receive, peer)
            else:
                dist.recv(receive, peer)
                dist.send(send, peer)
            torch.cuda.synchronize()

        def stream():
            for _ in range(window(size)):
                one_way()

        def both():
            for _ in range(window(size)):
                operations = [dist.P2POp(dist.isend, send, peer), dist.P2POp(dist.irecv, receive, peer)]
                for request in dist.batch_isend_irecv(operations):
                    request.wait()

        one_way()
        torch.cuda.synchronize()
        wrong = int((receive != pattern).sum().item()) if rank == 1 else 0
        latency = [seconds / 2 * 1e9 for seconds in timed(round_trip, arguments.seconds, arguments.repeats)]
        rate = [window(size) * size / seconds for seconds in timed(stream, arguments.seconds, arguments.repeats)]
        each = [window(size) * size / seconds for seconds in timed(both, arguments.seconds, arguments.repeats)]
        wrong += int((receive != pattern).sum().item())
        total = torch.tensor([wrong], device="cuda")
        dist.all_reduce(total)
        results.append(
            {
                "size_bytes": size,
                "latency_ns": summary(latency),
                "bytes_per_second": summary(rate),
                "both_directions_bytes_per_second_each": summary(each),
                "window": window(size),
                "wrong_bytes": int(total.item()),
            }
        )
    if rank == 0:
        queue.put(results)
    dist.barrier()
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=0.1)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    context = mp.get_context("spawn")
    queue = context.Queue()
    processes = [context.Process(target=work, args=(rank, arguments, queue)) for rank in range(2)]
    for process in processes:
        process.start()
    results = queue.get(timeout=120)
    for process in processes:
        process.join(30)
    version = ".".join(map(str, torch.cuda.nccl.version()))
    settings = {name: value for name, value in os.environ.items() if name.startswith("NCCL_")}
    print(json.dumps({"peer": "NCCL " + version, "environment": settings, "results": results}, indent=1))


if __name__ == "__main__":
    main()
