"""The servers and clients of bench/offload/load. Each runs on the engine or on the kernel's stack, and prints one JSON document.

    serve HOST PORT COUNT       echoes on COUNT listeners; closes a connection after a message that begins with 'q'
    hold HOST PORT COUNT        opens COUNT connections, then exchanges a message on each
    churn HOST PORT COUNT WIDTH opens COUNT connections, at most WIDTH at once; each exchanges one byte
    listeners HOST PORT COUNT   exchanges a message with each of COUNT listeners
    survive HOST PORT COUNT     exchanges messages on COUNT connections until all fail, then opens COUNT new ones
    flood HOST PORT INTERFACE RATE  sends at most RATE SYNs a second with forged sources until it is ended; prints nothing
"""

import errno
import json
import os
import random
import resource
import select
import socket
import struct
import sys
import time

LIMIT = 120


def more_descriptors():
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def serve(host, port, count):
    poll, listeners, connections = select.epoll(), {}, {}
    for offset in range(count):
        listener = socket.create_server((host, port + offset), backlog=4096)
        listener.setblocking(False)
        listeners[listener.fileno()] = listener
        poll.register(listener, select.EPOLLIN)
    print("ready", flush=True)
    while True:
        for descriptor, _ in poll.poll():
            if descriptor in listeners:
                for _ in range(64):
                    try:
                        connection = listeners[descriptor].accept()[0]
                    except BlockingIOError:
                        break
                    except OSError as error:
                        # The engine is gone, or the connection was reset before it was accepted.
                        if error.errno == errno.EINVAL:
                            sys.exit(0)
                        break
                    connection.setblocking(False)
                    connections[connection.fileno()] = connection
                    poll.register(connection, select.EPOLLIN)
                continue
            connection = connections[descriptor]
            try:
                data = connection.recv(65536)
                if data:
                    connection.sendall(data)
            except OSError:
                data = b""
            if not data or data[:1] == b"q":
                poll.unregister(descriptor)
                connections.pop(descriptor).close()


def message(number):
    return struct.pack("!cI", b"m", number) + bytes(number % 251 for _ in range(95))


def exchange(connection, data):
    connection.sendall(data)
    got = b""
    while len(got) < len(data):
        part = connection.recv(len(data) - len(got))
        assert part, "the connection ended early"
        got += part
    assert got == data, (got, data)


def hold(host, port, count):
    start = time.monotonic()
    connections = [socket.create_connection((host, port), LIMIT) for _ in range(count)]
    opened = time.monotonic()
    for number, connection in enumerate(connections):
        connection.sendall(message(number))
    for number, connection in enumerate(connections):
        got = b""
        while len(got) < 100:
            part = connection.recv(100 - len(got))
            assert part, f"connection {number} ended early"
            got += part
        assert got == message(number), f"connection {number}: {got}"
    return {"connections": count, "opening_seconds": opened - start, "exchange_seconds": time.monotonic() - opened}


def churn(host, port, count, width):
    poll, running, started, done = select.epoll(), {}, 0, 0
    start = time.monotonic()
    while done < count:
        while len(running) < width and started < count:
            connection = socket.socket()
            connection.setblocking(False)
            code = connection.connect_ex((host, port))
            assert code in (0, errno.EINPROGRESS), os.strerror(code)
            # The first byte of the answer is expected, then the end.
            running[connection.fileno()] = [connection, b""]
            poll.register(connection, select.EPOLLOUT)
            started += 1
        events = poll.poll(LIMIT)
        assert events, f"{len(running)} connections hang"
        for descriptor, flags in events:
            connection, got = running[descriptor]
            if flags & select.EPOLLOUT and not flags & select.EPOLLIN and not got:
                error = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                assert error == 0, os.strerror(error)
                connection.sendall(b"q")
                poll.modify(descriptor, select.EPOLLIN)
                continue
            data = connection.recv(100)
            if data:
                running[descriptor][1] = data
                continue
            assert got == b"q", got
            poll.unregister(descriptor)
            connection.close()
            del running[descriptor]
            done += 1
    return {"connections": done, "seconds": time.monotonic() - start}


def listeners(host, port, count):
    for offset in range(count):
        with socket.create_connection((host, port + offset), LIMIT) as connection:
            exchange(connection, message(offset))
    return {"listeners": count}


def survive(host, port, count):
    connections = [socket.create_connection((host, port), LIMIT) for _ in range(count)]
    print("connected", flush=True)
    endings, number, waiting = {}, 0, set()
    while connections:
        connection, number = connections[number % len(connections)], number + 1
        try:
            exchange(connection, message(number))
        except OSError as error:
            name = errno.errorcode.get(error.errno, "timeout")
            endings[name] = endings.get(name, 0) + 1
            connections.remove(connection)
            connection.close()
        except AssertionError:
            endings["end"] = endings.get("end", 0) + 1
            connections.remove(connection)
    start = time.monotonic()
    while len(connections) < count:
        try:
            connections.append(socket.create_connection((host, port), 5))
        except OSError:
            assert time.monotonic() < start + LIMIT, "no new engine serves this program"
            time.sleep(0.1)
    for number, connection in enumerate(connections):
        exchange(connection, message(number))
    return {"endings": endings, "reconnected": len(connections)}


def flood(host, port, interface, rate):
    raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    raw.bind((interface, 0))
    source = raw.getsockname()[4]
    # The engine's MAC address is in the kernel's table, because a program has connected before.
    table = [line.split() for line in open("/proc/net/arp").read().splitlines()[1:]]
    target = bytes.fromhex(next(line[3] for line in table if line[0] == host).replace(":", ""))
    destination = socket.inet_aton(host)

    def checksum(data):
        total = sum(struct.unpack(f"!{len(data) // 2}H", data))
        while total >> 16:
            total = (total & 0xFFFF) + (total >> 16)
        return ~total & 0xFFFF

    start, sent = time.monotonic(), 0
    while True:
        ahead = sent / rate - (time.monotonic() - start)
        if ahead > 0:
            time.sleep(ahead)
        # Hosts that do not exist: nobody answers the engine's SYN,ACK.
        origin = socket.inet_aton(f"10.79.0.{random.randrange(3, 250)}")
        segment = bytearray(struct.pack("!HHIIBBHHH", random.randrange(1024, 65536), port, random.getrandbits(32), 0, 5 << 4, 2, 65535, 0, 0))
        segment[16:18] = struct.pack("!H", checksum(origin + destination + struct.pack("!HH", 6, 20) + segment))
        header = bytearray(struct.pack("!BBHHHBBH4s4s", 0x45, 0, 40, 0, 0x4000, 64, 6, 0, origin, destination))
        header[10:12] = struct.pack("!H", checksum(header))
        try:
            raw.send(target + source + b"\x08\x00" + header + segment)
            sent += 1
        except BlockingIOError:
            pass


if __name__ == "__main__":
    more_descriptors()
    name, host, *numbers = sys.argv[1:]
    numbers = [int(text) if text.isdigit() else text for text in numbers]
    result = globals()[name](host, *numbers)
    print(json.dumps(result), flush=True)
