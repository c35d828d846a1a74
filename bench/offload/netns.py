"""Network namespaces and veth pairs by system calls and netlink, for machines without the command `ip`."""

import ctypes
import fcntl
import os
import socket
import struct
import time
from pathlib import Path

LIBC = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNS, CLONE_NEWNET = 0x20000, 0x40000000
MS_REC, MS_PRIVATE, MNT_DETACH = 0x4000, 0x40000, 2
# Linux's include/uapi/linux/rtnetlink.h, if_link.h, veth.h and sockios.h.
RTM_NEWLINK, NLM_REQUEST_ACK_CREATE_EXCL = 16, 1 | 4 | 0x400 | 0x200
IFLA_IFNAME, IFLA_LINKINFO, IFLA_NET_NS_FD, INFO_KIND, INFO_DATA, VETH_INFO_PEER = 3, 18, 28, 1, 2, 1
IFLA_NUM_TX_QUEUES, IFLA_NUM_RX_QUEUES = 31, 32
SIOCGIFFLAGS, SIOCSIFFLAGS, SIOCSIFADDR, SIOCSIFNETMASK, IFF_UP = 0x8913, 0x8914, 0x8916, 0x891C, 1
# Linux's include/uapi/linux/ethtool.h and sockios.h.
SIOCETHTOOL, ETHTOOL_STSO, ETHTOOL_SGSO, ETHTOOL_SGRO = 0x8946, 0x1F, 0x24, 0x2C


def call(name, *arguments):
    if getattr(LIBC, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


class Namespace:
    """A network namespace. It exists until `close`, and as long as a process is in it."""

    def __init__(self):
        ready, proceed = os.pipe(), os.pipe()
        child = os.fork()
        if child == 0:
            try:
                call("unshare", CLONE_NEWNET)
                os.write(ready[1], b"y")
            except OSError as error:
                os.write(ready[1], str(error).encode())
            os.read(proceed[0], 1)
            os._exit(0)
        said = os.read(ready[0], 200)
        self.fd = os.open(f"/proc/{child}/ns/net", os.O_RDONLY | os.O_CLOEXEC) if said == b"y" else None
        os.write(proceed[1], b"y")
        os.waitpid(child, 0)
        for fd in (*ready, *proceed):
            os.close(fd)
        if self.fd is None:
            raise OSError(said.decode())

    def close(self):
        os.close(self.fd)

    def enter(self):
        """Moves the calling process into the namespace. /sys then shows the namespace's interfaces."""
        call("setns", self.fd, CLONE_NEWNET)
        call("unshare", CLONE_NEWNS)
        call("mount", b"none", b"/", None, MS_REC | MS_PRIVATE, None)
        LIBC.umount2(b"/sys", MNT_DETACH)
        call("mount", b"sysfs", b"/sys", b"sysfs", 0, None)

    def inside(self, function):
        """Runs a function in a child process that is in the namespace."""
        child = os.fork()
        if child == 0:
            code = 1
            try:
                self.enter()
                function()
                code = 0
            except OSError as error:
                os.write(2, f"{error}\n".encode())
            finally:
                os._exit(code)
        if os.waitpid(child, 0)[1] != 0:
            raise OSError("a change of the namespace failed")

    def up(self, name, address=None):
        """Sets an interface up, with an IPv4 address in a network of 24 bits if one is given."""
        def change():
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
                title = name.encode()
                for request, text in ((SIOCSIFADDR, address), (SIOCSIFNETMASK, address and "255.255.255.0")):
                    if text:
                        fcntl.ioctl(control, request, struct.pack("16sHH4s8x", title, socket.AF_INET, 0, socket.inet_aton(text)))
                flags = struct.unpack("16sH", fcntl.ioctl(control, SIOCGIFFLAGS, struct.pack("16sH22x", title, 0))[:18])[1]
                fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sH22x", title, flags | IFF_UP))
        self.inside(change)

    def steer(self, name, mask):
        """Hands the packets that an interface receives to the cores of a mask (RPS)."""
        def change():
            for queue in Path(f"/sys/class/net/{name}/queues").glob("rx-*"):
                (queue / "rps_cpus").write_text(f"{mask:x}")
        self.inside(change)

    def thread(self, name, cores):
        """Receives the packets of an interface in kernel threads on some cores (threaded NAPI). Waits until a program opens the interface for AF_XDP,
        because a veth interface has no NAPI before."""
        def change():
            end = time.monotonic() + 10
            while True:
                try:
                    return Path(f"/sys/class/net/{name}/threaded").write_text("1")
                except OSError:
                    if time.monotonic() > end:
                        raise
                    time.sleep(0.01)
        self.inside(change)
        for comm in Path("/proc").glob("[0-9]*/comm"):
            try:
                if comm.read_text().startswith(f"napi/{name}-"):
                    os.sched_setaffinity(int(comm.parent.name), cores)
            except (FileNotFoundError, ProcessLookupError):
                pass

    def send_frames_singly(self, name):
        """Turns off that an interface sends and receives several TCP segments as one packet (TSO, GSO, GRO)."""
        def change():
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
                for command in (ETHTOOL_STSO, ETHTOOL_SGSO, ETHTOOL_SGRO):
                    value = ctypes.create_string_buffer(struct.pack("II", command, 0))
                    fcntl.ioctl(control, SIOCETHTOOL, struct.pack("16sP16x", name.encode(), ctypes.addressof(value)))
        self.inside(change)


def attribute(kind, data):
    return struct.pack("HH", len(data) + 4, kind) + data + bytes(-len(data) % 4)


def veth(first, first_name, second, second_name, queues=1):
    """Creates a veth pair with one end in each of two namespaces, each with `queues` receive and transmit queues."""
    none = struct.pack("BxHiII", 0, 0, 0, 0, 0)

    def end(namespace, name):
        return attribute(IFLA_IFNAME, name.encode() + b"\0") + attribute(IFLA_NET_NS_FD, struct.pack("I", namespace.fd)) + b"".join(
            attribute(kind, struct.pack("I", queues)) for kind in (IFLA_NUM_TX_QUEUES, IFLA_NUM_RX_QUEUES))

    data = attribute(INFO_DATA, attribute(VETH_INFO_PEER, none + end(second, second_name)))
    body = none + end(first, first_name) + attribute(IFLA_LINKINFO, attribute(INFO_KIND, b"veth") + data)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as netlink:
        netlink.send(struct.pack("IHHII", 16 + len(body), RTM_NEWLINK, NLM_REQUEST_ACK_CREATE_EXCL, 1, 0) + body)
        code = -struct.unpack("i", netlink.recv(4096)[16:20])[0]
    if code:
        raise OSError(code, f"creating a veth pair: {os.strerror(code)}")
