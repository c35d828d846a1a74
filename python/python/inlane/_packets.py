"""Packets of a run as NumPy arrays."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy

from . import _native
from ._command import Child, Row, flags
from ._native import Buffer as Memory
from ._native import Memory as PoolMemory
from ._native import PlaceReceiver as _PlaceReceiver
from ._native import Receiver as _Receiver
from ._native import Sender as _Sender

if TYPE_CHECKING:
    from typing_extensions import Buffer


class Batch:
    """Frames, one after the other in one array. The arrays are views of memory that only this batch owns."""

    __slots__ = ("data", "ends", "times_ns")

    def __init__(self, data: numpy.ndarray, ends: numpy.ndarray, times_ns: numpy.ndarray) -> None:
        #: The bytes of all frames, without FCS.
        self.data = data
        #: For each frame, the index of its end in `data`. The next frame begins there.
        self.ends = ends
        #: For each frame, when it was captured or received, in nanoseconds since 1970.
        self.times_ns = times_ns

    @property
    def starts(self) -> numpy.ndarray:
        """For each frame, the index of its first byte in `data`."""
        starts = numpy.empty_like(self.ends)
        starts[:1] = 0
        starts[1:] = self.ends[:-1]
        return starts

    @property
    def lengths(self) -> numpy.ndarray:
        """The length of each frame in bytes."""
        return self.ends - self.starts

    def matrix(self, width: int) -> numpy.ndarray:
        """Returns the first `width` bytes of each frame as a row. Shorter frames are filled up with zeros.

        If all frames have the same length, and it is at least `width`, the matrix is a view of `data`.
        """
        count = len(self)
        length = len(self.data) // count if count else 0
        if length >= width and count * length == len(self.data) and (self.lengths == length).all():
            return self.data.reshape(count, length)[:, :width]
        made = numpy.zeros((count, width), numpy.uint8)
        columns = numpy.arange(width)
        inside = columns < self.lengths[:, None]
        made[inside] = self.data[(self.starts[:, None] + columns.astype(numpy.uint64))[inside]]
        return made

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, index: int) -> numpy.ndarray:
        """Returns the bytes of a frame."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"this batch has {len(self)} frames")
        index %= len(self)
        return self.data[int(self.ends[index - 1]) if index else 0 : int(self.ends[index])]

    def __iter__(self) -> Iterator[numpy.ndarray]:
        start = 0
        for end in self.ends.tolist():
            yield self.data[start:end]
            start = end

    def __repr__(self) -> str:
        return f"<inlane.Batch of {len(self)} frames, {len(self.data)} bytes>"


class Receiver:
    """Receives batches of a port: iterate over it. `receive` creates it. Leave a `with` block to stop early."""

    def __init__(self, native: _Receiver, child: Child | None) -> None:
        self._native = native
        self._child = child
        self._row: Row | None = None

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        parts = self._next()
        if parts is None:
            raise StopIteration
        data, ends, times = parts
        return Batch(numpy.frombuffer(data, numpy.uint8), numpy.frombuffer(ends, numpy.uint64), numpy.frombuffer(times, numpy.uint64))

    def _next(self) -> tuple[Memory, Memory, Memory] | None:
        try:
            parts = self._native.next()
        except Exception as error:
            # A command that could not start says more than the empty pipe that it left.
            try:
                self._end()
            except Exception as said:
                raise said from None
            raise error
        if parts is None and self._row is None:
            self._end()
            self._row = self._row or _row(self._native)
        return parts

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            self._row = child.finish()

    @property
    def row(self) -> Row | None:
        """What the run has measured, as a row of `inlane forward`. `None` until the last batch was received."""
        return self._row

    def stop(self) -> None:
        """Stops receiving. The frames that were received before still follow."""
        if self._child is not None:
            self._child.stop()
        else:
            self._native.stop()

    def __enter__(self) -> Receiver:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        while self._next() is not None:
            pass


def receive(
    port: str,
    *,
    function: str = "io",
    frames: int = 4096,
    wait: float = 0.1,
    duration: float | None = None,
    cores: Iterable[int] = (),
    room: int = 2048,
) -> Receiver:
    """Receives packets from a port of inlane: `pcap:FILE`, `af_xdp:INTERFACE`, `gen:64` and others.

    A packet function may drop or change packets before Python gets them. A batch has up to `frames` frames, and a frame waits for others at most
    `wait` seconds. Captures and generators wait for a slow program; other ports lose packets then, and `Receiver.row` counts them. `cores` are the
    cores to bind the run's threads to, and `room` is the length of the longest frame.

    Ports of DPDK are opened by the command `inlane forward`, which this function starts. All others are opened in this process.
    """
    cores = list(cores)
    if not _native.needs_command(port):
        return Receiver(_Receiver(port, function, frames, wait, duration, cores, room), None)
    settings = {"function": function, "room": room, "cores": cores or None, "duration": duration and f"{duration}s"}
    child = Child(f"--rx={port}", "--tx=pcap:-", *flags(settings), receives=True)
    return Receiver(_Receiver(child.pipe, "io", frames, wait, None, [], room), child)


class PacketsInPlace:
    """Packets that lie where a port has received them. They are held as long as this object, or an array over its memory, lives."""

    __slots__ = ("memory", "offsets", "lengths")

    def __init__(self, memory: PoolMemory, offsets: numpy.ndarray, lengths: numpy.ndarray) -> None:
        #: The memory of all buffers, for `from_dlpack` of NumPy, PyTorch, JAX or CuPy: an array of bytes in host memory or on a GPU.
        self.memory = memory
        #: For each packet, the index of its first byte in the memory.
        self.offsets = offsets
        #: The length of each packet in bytes.
        self.lengths = lengths

    def __len__(self) -> int:
        return len(self.offsets)

    def __repr__(self) -> str:
        return f"<inlane.PacketsInPlace of {len(self)} packets>"


class PlaceReceiver:
    """Receives packets in place: iterate over it. `receive_in_place` creates it. Leave a `with` block to stop early."""

    def __init__(self, native: _PlaceReceiver) -> None:
        self._native = native

    def __iter__(self) -> Iterator[PacketsInPlace]:
        return self

    def __next__(self) -> PacketsInPlace:
        parts = self._native.next()
        if parts is None:
            raise StopIteration
        memory, numbers = parts
        offsets, lengths = numpy.frombuffer(numbers, numpy.int64).reshape(2, -1)
        return PacketsInPlace(memory, offsets, lengths)

    @property
    def row(self) -> Row | None:
        """What the run has measured, as a row of `inlane forward`. `None` until the last packets were received."""
        return _row(self._native)

    def stop(self) -> None:
        """Stops receiving. The packets that were received before still follow."""
        self._native.stop()

    def __enter__(self) -> PlaceReceiver:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        while self._native.next() is not None:
            pass


def receive_in_place(
    port: str,
    *,
    function: str = "io",
    on: str = "cpu",
    memory: str | None = None,
    frames: int = 4096,
    wait: float = 0.1,
    duration: float | None = None,
    cores: Iterable[int] = (),
    room: int = 2048,
) -> PlaceReceiver:
    """Receives packets without copying them. `on` and `memory` are those of `inlane forward`: with `on="gpu:0"` and `memory="gpu-pool"`, a GPU runs
    the packet function and the packets stay in its memory. The other settings are those of `receive`.

    The buffers of packets are used again once nothing refers to them. There are buffers for four batches, so a program that keeps more batches,
    or arrays over their memory, receives nothing until it drops some. Ports of DPDK cannot be received in place.
    """
    if _native.needs_command(port):
        raise _native.UsageError(f"port {port}: only the command opens ports of DPDK, and its packets come as copies; use inlane.receive")
    return PlaceReceiver(_PlaceReceiver(port, function, on, memory, frames, wait, duration, list(cores), room))


class Sender:
    """Sends frames to one or several ports of inlane.

    with inlane.Sender("pcap:out.pcap") as sender:
        sender.send([b"...", b"..."])
    """

    def __init__(self, *ports: str, function: str = "io", cores: Iterable[int] = (), room: int = 2048) -> None:
        cores = list(cores)
        self._child: Child | None = None
        self._row: Row | None = None
        if any(_native.needs_command(port) for port in ports):
            settings = {"function": function, "room": room, "cores": cores or None}
            self._child = Child("--rx=pcap:-", *(f"--tx={port}" for port in ports), *flags(settings), receives=False)
            self._native = _Sender([self._child.pipe], "io", [], room)
        else:
            self._native = _Sender(list(ports), function, cores, room)

    def send(self, frames: Batch | numpy.ndarray | Iterable[Buffer]) -> None:
        """Sends a batch, the rows of a matrix of bytes, or several byte strings. Waits while the run still sends earlier frames."""
        match frames:
            case Batch():
                data, ends = frames.data, frames.ends
            case numpy.ndarray(ndim=2):
                if frames.dtype != numpy.uint8:
                    raise TypeError(f"a matrix of frames has the type uint8, and this one has {frames.dtype}")
                data = frames
                ends = numpy.arange(1, len(frames) + 1) * frames.shape[1]
            case numpy.ndarray():
                raise TypeError(f"frames are the rows of a matrix, and this array has {frames.ndim} dimension(s); give [array] for one frame")
            case _:
                parts = [memoryview(frame).cast("B") for frame in frames]
                data = b"".join(parts)
                ends = numpy.cumsum([len(part) for part in parts], dtype=numpy.uint64)
        self._native.send(numpy.ascontiguousarray(data) if isinstance(data, numpy.ndarray) else data, numpy.ascontiguousarray(ends, numpy.uint64))

    def close(self) -> None:
        """Waits until all frames were sent."""
        self._native.finish()
        self._row = self._child.finish() if self._child is not None else _row(self._native)

    @property
    def row(self) -> Row | None:
        """What the run has measured, as a row of `inlane forward`. `None` until the sender was closed."""
        return self._row

    def __enter__(self) -> Sender:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
            return
        self._native.stop()
        if self._child is not None:
            self._child.stop()
            self._child.finish()


def _row(native: _Receiver | _PlaceReceiver | _Sender) -> Row | None:
    text: Any = native.row()
    return None if text is None else json.loads(text, object_hook=Row)
