"""Tests of the Python package. `packaging/python-test` runs them with the compiled part, and sets INLANE_COMMAND."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path

import inlane
import numpy

# A shell that starts programs in the background lets them ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)

FRAMES = [bytes([index]) * (60 + index) for index in range(200)]


class Results(unittest.TestCase):
    def test_a_run_has_rows_with_attributes(self):
        result = inlane.forward("gen:64,packets=5000", ["check", "null"], function="macswap", no_baseline=True)
        [row] = result.rows
        self.assertEqual((row.rx.packets, row["tx"]["packets"]), (5000, 5000))
        self.assertTrue(row.verification.passed if "passed" in row.verification else row.verification.lost_packets == 0)
        with self.assertRaisesRegex(AttributeError, "no speed; it has .*ports"):
            row.speed
        with tempfile.TemporaryDirectory() as folder:
            result.save(f"{folder}/r.json")
            compared = inlane.run("compare", f"{folder}/r.json", f"{folder}/r.json")
            self.assertEqual({row.verdict for row in compared.rows}, {'too-few'}, 'one repeat is no comparison')

    def test_lists_become_lists(self):
        result = inlane.copy("twin:0", "twin:1", sizes=["4K", "64K"], duration="20ms")
        self.assertEqual([row.size_bytes for row in result.rows], [4096, 65536])

    def test_errors_have_types_and_say_why(self):
        with self.assertRaisesRegex(inlane.UsageError, "nosuch"):
            inlane.forward("nosuch:1", "null")
        with self.assertRaisesRegex(ValueError, "--colour"):
            inlane.forward("gen:64", "null", colour="red")
        with self.assertRaisesRegex(inlane.Unavailable, "/nonexistent"):
            inlane.forward("pcap:/nonexistent/file.pcap", "null")
        with self.assertRaisesRegex(inlane.RunFailed, "lost") as caught:
            inlane.forward("gen:64,packets=1000", "check", faults="drop=50%", no_baseline=True)
        self.assertGreater(caught.exception.result.rows[0].verification.lost_packets, 0)
        command = os.environ["INLANE_COMMAND"]
        try:
            os.environ["INLANE_COMMAND"] = "/nonexistent/inlane"
            with self.assertRaisesRegex(inlane.Unavailable, "/nonexistent/inlane"):
                inlane.forward("gen:64", "null")
        finally:
            os.environ["INLANE_COMMAND"] = command

    def test_ctrl_c_keeps_what_was_measured(self):
        threading.Timer(3, os.kill, (os.getpid(), signal.SIGINT)).start()
        with self.assertRaises(KeyboardInterrupt) as caught:
            inlane.forward("gen:64", "null", no_baseline=True)
        self.assertGreater(caught.exception.result.rows[0].rx.packets, 0)

    def test_rows_become_a_data_frame(self):
        try:
            import pandas  # noqa: F401
        except ModuleNotFoundError:
            self.skipTest("pandas is not installed")
        frame = inlane.forward("gen:64,packets=100", "null", no_baseline=True).to_pandas()
        self.assertEqual(frame["tx.packets"].tolist(), [100])


class Packets(unittest.TestCase):
    def capture(self, folder):
        port = f"pcap:{folder}/frames.pcap"
        with inlane.Sender(port) as sender:
            sender.send(FRAMES[:50])
            sender.send(FRAMES[50:])
        self.assertEqual(sender.row.tx.packets, len(FRAMES))
        return port

    def test_packets_in_place_have_the_bytes_of_copies(self):
        with tempfile.TemporaryDirectory() as folder:
            port = self.capture(folder)
            expected = [bytes(frame) for batch in inlane.receive(port) for frame in batch]
            found, kept = [], []
            receiver = inlane.receive_in_place(port, frames=64)
            for packets in receiver:
                array = numpy.from_dlpack(packets.memory)
                self.assertEqual((array.dtype, array.ndim, len(array)), (numpy.uint8, 1, len(packets.memory)))
                self.assertEqual(packets.memory.__dlpack_device__(), (1, 0), "host memory")
                ends = packets.offsets + packets.lengths
                found += [bytes(array[start:end]) for start, end in zip(packets.offsets, ends)]
                kept.append((array, packets.offsets, ends))
            self.assertEqual(found, expected)
            self.assertEqual((receiver.row.rx.packets, receiver.row.leaked_buffers), (len(FRAMES), 0))
            del receiver, packets
            again = [bytes(array[start:end]) for array, starts, ends in kept for start, end in zip(starts, ends)]
            self.assertEqual(again, expected, "arrays hold the packets")

    def test_arrays_over_packets_in_place_make_the_port_wait(self):
        with inlane.receive_in_place("gen:64,packets=100000", frames=64, wait=0.001) as receiver:
            arrays = []
            for packets in receiver:
                arrays.append(numpy.from_dlpack(packets.memory))
                if len(arrays) == 30:
                    arrays.clear()
        self.assertEqual((receiver.row.rx.packets, receiver.row.rx.missed), (100000, 0))

    def test_dlpack_without_a_taker_and_with_wrong_settings(self):
        packets = next(inlane.receive_in_place("gen:64,packets=100"))
        capsule = packets.memory.__dlpack__(stream=None, max_version=(1, 0))
        self.assertIn("dltensor", repr(capsule))
        del capsule
        packets.memory.__dlpack__(copy=False, dl_device=(1, 0))
        for settings in [{"copy": True}, {"dl_device": (2, 0)}]:
            with self.assertRaises(BufferError):
                packets.memory.__dlpack__(**settings)
        with self.assertRaisesRegex(inlane.UsageError, "inlane.receive"):
            inlane.receive_in_place("af_packet:lo")
        with self.assertRaises(ValueError):
            inlane.receive_in_place("gen:64", on="tpu:0")

    def test_frames_come_back_as_they_were_sent(self):
        with tempfile.TemporaryDirectory() as folder:
            before = time.time_ns()
            receiver = inlane.receive(self.capture(folder), frames=64)
            batches = list(receiver)
            frames = [bytes(frame) for batch in batches for frame in batch]
            self.assertEqual(frames, FRAMES)
            self.assertTrue(all(len(batch) <= 64 for batch in batches))
            self.assertEqual(receiver.row.rx.packets, len(FRAMES))
            times = numpy.concatenate([batch.times_ns for batch in batches])
            self.assertTrue((times >= before - 10**9).all() and (times <= time.time_ns()).all())
            self.assertEqual(list(receiver), [], "after the end")

    def test_batches_have_lengths_and_a_matrix(self):
        with tempfile.TemporaryDirectory() as folder:
            [batch] = inlane.receive(self.capture(folder), frames=1000, wait=5)
            self.assertEqual(batch.lengths.tolist(), [len(frame) for frame in FRAMES])
            self.assertEqual(bytes(batch[3]), FRAMES[3])
            self.assertEqual(bytes(batch[-1]), FRAMES[-1])
            self.assertRaises(IndexError, lambda: batch[len(FRAMES)])
            expected = [frame[:100].ljust(100, b"\0") for frame in FRAMES]
            self.assertEqual([bytes(row) for row in batch.matrix(100)], expected)
            batch.data[0] = 99
            self.assertEqual(batch[0][0], 99, "the arrays are writable views")

    def test_a_matrix_of_equal_frames_is_a_view_and_can_be_sent(self):
        with tempfile.TemporaryDirectory() as folder:
            [batch] = inlane.receive("gen:64,packets=100", function="macswap", frames=100, wait=20)
            matrix = batch.matrix(64)
            self.assertTrue(numpy.shares_memory(matrix, batch.data))
            with inlane.Sender(f"pcap:{folder}/out.pcap") as sender:
                sender.send(matrix)
                sender.send(batch)
            [again] = inlane.receive(f"pcap:{folder}/out.pcap", frames=1000, wait=20)
            self.assertTrue((again.matrix(64) == numpy.vstack([matrix, matrix])).all())

    def test_a_receiver_can_be_left_early(self):
        with inlane.receive("gen:64") as receiver:
            self.assertGreater(len(next(receiver)), 0)
        self.assertGreater(receiver.row.rx.packets, 0)

    def test_errors_are_exceptions(self):
        with self.assertRaisesRegex(inlane.UsageError, "nosuch"):
            inlane.receive("nosuch:1")
        with self.assertRaisesRegex(inlane.Unavailable, "/nonexistent"):
            list(inlane.receive("pcap:/nonexistent/file.pcap"))
        with self.assertRaisesRegex(ValueError, "duration"):
            inlane.receive("gen:64", duration=-1)
        with self.assertRaisesRegex(inlane.RunFailed, "5000 bytes"), inlane.Sender("null") as sender:
            sender.send([b"x" * 5000])
        with self.assertRaisesRegex(TypeError, "uint8"), inlane.Sender("null") as sender:
            sender.send(numpy.zeros((2, 60)))
        with self.assertRaisesRegex(inlane.UsageError, "at least one port"):
            inlane.Sender()

    def test_ports_of_dpdk_are_opened_by_the_command(self):
        receiver = inlane.receive("net_null:60", function="macswap", duration=0.5)
        batches = list(receiver)
        frames = sum(len(batch) for batch in batches)
        self.assertGreater(frames, 1000)
        self.assertEqual((batches[0].matrix(60).shape[1], receiver.row.tx.packets), (60, frames))
        with inlane.Sender("net_null") as sender:
            sender.send(FRAMES)
        self.assertEqual(sender.row.tx.packets, len(FRAMES))
        with inlane.receive("net_null:60") as receiver:
            self.assertGreater(len(next(receiver)), 0)
        self.assertGreater(receiver.row.tx.packets, 0)
        with self.assertRaisesRegex(OSError, "nosuchinterface"):
            list(inlane.receive("af_packet:nosuchinterface"))

    def test_ctrl_c_ends_a_wait(self):
        program = "import inlane\nprint('waits', flush=True)\nfor batch in inlane.receive('ring:a'): pass"
        waiting = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        with waiting:
            waiting.stdout.readline()
            time.sleep(1)
            waiting.send_signal(signal.SIGINT)
            _, errors = waiting.communicate(timeout=60)
        self.assertIn("KeyboardInterrupt", errors)


class Stubs(unittest.TestCase):
    def test_the_stub_names_what_the_compiled_part_has(self):
        import ast

        stub = ast.parse((Path(inlane.__file__).parent / "_native.pyi").read_text())
        for declared in (part for part in stub.body if isinstance(part, ast.ClassDef)):
            real = getattr(inlane._native, declared.name)
            for part in (part for part in declared.body if isinstance(part, ast.FunctionDef)):
                if part.name == "__buffer__" and sys.version_info < (3, 12):
                    continue
                self.assertTrue(hasattr(real, part.name), f"{declared.name}.{part.name}")


if __name__ == "__main__":
    unittest.main(verbosity=2)
