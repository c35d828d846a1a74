"""Prints the result of many socket calls with unusual arguments and in unusual states, one line each.

Run it on the kernel and on the engine: the lines must be the same. Calls with bad pointers run in a forked child,
because a call that does not check its pointer ends its process.
"""

import ctypes
import errno
import os
import select
import signal
import socket
import struct
import time

C = ctypes.CDLL(None, use_errno=True)
# A page that nobody may access.
C.mmap.restype = ctypes.c_void_p
BAD = ctypes.c_void_p(C.mmap(None, ctypes.c_size_t(4096), 0, 0x22, -1, ctypes.c_long(0)))
NOWAIT, NOSIGNAL = socket.MSG_DONTWAIT, socket.MSG_NOSIGNAL
ERRQUEUE = 0x2000


def call(name, *arguments):
    """Calls a function of the C library. Returns its result, or the name of the errno."""
    ctypes.set_errno(0)
    result = getattr(C, name)(*arguments)
    return result if result >= 0 else errno.errorcode[ctypes.get_errno()]


def apart(name, *arguments):
    """Like call, in a forked child. Returns text, or the number of the signal that ended the child."""
    inner, outer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        os.write(outer, str(call(name, *arguments)).encode())
        os._exit(0)
    os.close(outer)
    text = os.read(inner, 100).decode()
    os.close(inner)
    status = os.waitpid(child, 0)[1]
    return text if status == 0 else f"signal {status}"


def show(what, result):
    """Prints a result. A function is called first, and an error that it raises is shown instead."""
    if callable(result):
        try:
            result = result()
        except OSError as error:
            result = errno.errorcode[error.errno]
    print(what, result, flush=True)


def number(value):
    return ctypes.byref(ctypes.c_int(value))


def address(port=9, family=socket.AF_INET):
    return struct.pack("=HHI8x", family, socket.htons(port), socket.htonl(0x7F000001))


def pair():
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    client = socket.create_connection(listener.getsockname())
    return listener, client, listener.accept()[0]


def events(sock, wanted=select.POLLIN | select.POLLOUT, timeout=0):
    poll = select.poll()
    poll.register(sock, wanted)
    return [found for _, found in poll.poll(timeout)]


def addresses(kind, fd):
    """Calls that store or read an address."""
    for name in ("getsockname", "getpeername"):
        room = ctypes.create_string_buffer(64)
        show(f"{kind} {name} without address", apart(name, fd, None, number(16)))
        show(f"{kind} {name} without length", apart(name, fd, room, None))
        show(f"{kind} {name} bad address", apart(name, fd, BAD, number(16)))
        show(f"{kind} {name} bad length", apart(name, fd, room, BAD))
        show(f"{kind} {name} negative length", call(name, fd, room, number(-1)))
        show(f"{kind} {name} length 0", call(name, fd, BAD, number(0)))
    for name in ("bind", "connect"):
        show(f"{kind} {name} bad address", apart(name, fd, BAD, 16))
        show(f"{kind} {name} short address", call(name, fd, address(), 3))
        show(f"{kind} {name} negative length", call(name, fd, address(), -1))
    show(f"{kind} connect other family", call("connect", fd, address(family=47), 16))


def options(kind, fd):
    """Calls of getsockopt and setsockopt with bad arguments."""
    room = ctypes.create_string_buffer(64)
    protocol = 17 if "UDP" in kind else 6
    for level, name in ((1, socket.SO_ERROR), (1, socket.SO_KEEPALIVE), (protocol, 1), (0, socket.IP_TOS)):
        what = f"{kind} {level},{name}"
        show(f"{what} get bad value", apart("getsockopt", fd, level, name, BAD, number(4)))
        show(f"{what} get bad length", apart("getsockopt", fd, level, name, room, BAD))
        show(f"{what} get negative", call("getsockopt", fd, level, name, room, number(-1)))
        show(f"{what} get 0", call("getsockopt", fd, level, name, BAD, number(0)))
        show(f"{what} set bad value", apart("setsockopt", fd, level, name, BAD, 4))
        show(f"{what} set null", apart("setsockopt", fd, level, name, None, 4))
        show(f"{what} set negative", call("setsockopt", fd, level, name, room, -1))
        show(f"{what} set 0", call("setsockopt", fd, level, name, room, 0))
    for level, name in ((500, 1), (protocol, 99), (1, -1), (0, -1)):
        show(f"{kind} {level},{name} get unknown", call("getsockopt", fd, level, name, room, number(4)))
        show(f"{kind} {level},{name} set unknown", call("setsockopt", fd, level, name, room, 4))


def without_connection(kind, sock):
    """Calls on a TCP socket that is bound and perhaps listens. None may take a waiting connection."""
    fd = sock.fileno()
    room = ctypes.create_string_buffer(8)
    show(f"{kind} read", apart("read", fd, room, 8))
    show(f"{kind} recv", apart("recv", fd, room, 8, 0))
    show(f"{kind} recvmsg", lambda: sock.recvmsg(8))
    show(f"{kind} recvfrom", lambda: sock.recvfrom(8))
    show(f"{kind} readv", lambda: os.readv(fd, [bytearray(8)]))
    show(f"{kind} error queue", lambda: sock.recv(8, ERRQUEUE))
    show(f"{kind} write", lambda: os.write(fd, b"x"))
    show(f"{kind} send", lambda: sock.send(b"x", NOSIGNAL))
    show(f"{kind} sendmsg", lambda: sock.sendmsg([b"x"], [], NOSIGNAL))
    show(f"{kind} SIGPIPE", apart_with_signal(fd))
    for request in (0x541B, 0x5411, 0x894B):
        show(f"{kind} ioctl {request:x}", call("ioctl", fd, ctypes.c_ulong(request), room))


def apart_with_signal(fd):
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        C.send(fd, b"x", 1, 0)
        os._exit(0)
    return os.waitpid(child, 0)[1]


class Many:
    """Sends bytes by sendmmsg, as two messages. Prints each result of the call once, because `waits` may be repeated."""

    class Part(ctypes.Structure):
        _fields_ = [("start", ctypes.c_char_p), ("len", ctypes.c_size_t)]

    class Message(ctypes.Structure):
        pass

    def __init__(self, sock):
        self.sock = sock
        self.results = set()

    def send(self, data, flags):
        parts = [self.Part(part, len(part)) for part in (data[:2], data[2:])]
        messages = (self.Message * 2)(*(self.Message(parts=ctypes.pointer(part), count=1) for part in parts))
        result = call("sendmmsg", self.sock.fileno(), messages, 2, flags)
        if result not in self.results:
            self.results.add(result)
            show("sendmmsg", result)
        return sum(message.sent for message in messages)


Many.Message._fields_ = [
    ("name", ctypes.c_void_p), ("name_len", ctypes.c_uint), ("parts", ctypes.POINTER(Many.Part)),
    ("count", ctypes.c_size_t), ("control", ctypes.c_void_p), ("control_len", ctypes.c_size_t),
    ("flags", ctypes.c_int), ("unused", ctypes.c_int), ("sent", ctypes.c_uint)]


def waits(send, client, server):
    """Returns true if bytes that are sent with MSG_MORE wait. On a busy machine they may not seem to."""
    send(b"alone", socket.MSG_MORE)
    waited = not select.select([server], [], [], 0.02)[0]
    client.send(b"x")
    server.recv(6, socket.MSG_WAITALL)
    return waited


def streams():
    listener, client, server = pair()
    for kind, sock in (("connection", client), ("listener", listener)):
        addresses(kind, sock.fileno())
        options(kind, sock.fileno())
        show(f"{kind} shutdown 9", call("shutdown", sock.fileno(), 9))
    show("ioctl SIOCOUTQNSD", call("ioctl", client.fileno(), ctypes.c_ulong(0x894B), ctypes.create_string_buffer(4)))
    show("ioctl bad pointer", apart("ioctl", client.fileno(), ctypes.c_ulong(0x541B), BAD))
    show("recv bad buffer", lambda: (server.sendall(b"x"), events(client, select.POLLIN, 30000))[1])
    show("recv bad buffer", apart("recv", client.fileno(), BAD, 8, NOWAIT))
    show("send bad buffer", apart("send", client.fileno(), BAD, 8, NOSIGNAL))

    waiting = socket.create_connection(listener.getsockname())
    show("a connection waits", events(listener, select.POLLIN, 30000))
    without_connection("listener", listener)
    show("accept bad address", apart("accept", listener.fileno(), None, None) != "")
    second = socket.create_connection(listener.getsockname())
    show("a connection waits", events(listener, select.POLLIN, 30000))
    show("accept negative length", call("accept", listener.fileno(), ctypes.create_string_buffer(16), number(-1)))
    waiting.close()
    second.close()

    for send in (client.send, lambda data, flags: client.sendmsg([data], [], flags), Many(client).send):
        show("more follows", lambda: (send(b"first, ", socket.MSG_MORE), client.send(b"second")))
        show("more follows", lambda: server.recv(13, socket.MSG_WAITALL))
        show("more never follows", lambda: send(b"alone", socket.MSG_MORE))
        show("more never follows", lambda: server.recv(5, socket.MSG_WAITALL))
        show("bytes wait for more", any(waits(send, client, server) for _ in range(10)))

    server.close()
    show("end of stream", lambda: client.recv(10))
    show("end of stream", lambda: client.recv(10))
    show("end of stream, error queue", lambda: client.recv(10, ERRQUEUE))


def states():
    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    without_connection("bound", bound)
    show("bound accept", lambda: bound.accept())
    show("bound getpeername", lambda: bound.getpeername())
    other = socket.socket()
    other.bind(("127.0.0.1", 0))
    show("bound shutdown", lambda: other.shutdown(socket.SHUT_RDWR))
    bound.listen()
    without_connection("bound, then listening", bound)
    client = socket.create_connection(bound.getsockname())
    server = bound.accept()[0]
    client.sendall(b"bytes")
    show("accepted after all these", lambda: server.recv(10))
    client.shutdown(socket.SHUT_WR)
    show("finished one way", lambda: (server.recv(10), server.getpeername() == client.getsockname()))
    server.close()
    show("finished both ways", lambda: client.recv(10))
    show("finished both ways", lambda: client.getpeername())
    show("finished both ways", lambda: client.shutdown(socket.SHUT_RDWR))

    # haproxy pauses its listeners in this way.
    paused = socket.socket()
    paused.bind(("127.0.0.1", 0))
    where = paused.getsockname()
    paused.close()
    # With port 0, the kernel's listener would listen on another port afterwards.
    paused = socket.socket()
    paused.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    paused.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    paused.bind(where)
    paused.listen()
    show("listener, nothing more to send", lambda: paused.shutdown(socket.SHUT_WR))
    client = socket.create_connection(where)
    show("still listens", lambda: paused.accept()[0].getpeername() == client.getsockname())
    for how in (socket.SHUT_RD, socket.SHUT_RDWR):
        show("ended listener", lambda: paused.shutdown(how))
        show("ended listener accept", lambda: paused.accept())
        show("ended listener option", lambda: paused.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT))
        show("ended listener address", lambda: paused.getsockname() == where)
        show("ended listener connect", lambda: socket.create_connection(where))
        show("listens again", lambda: paused.listen())
        client = socket.create_connection(where)
        show("listens again", lambda: paused.accept()[0].getpeername() == client.getsockname())

    # A bound socket that connects can be read.
    client = socket.socket()
    client.bind(("127.0.0.1", 0))
    show("bound, then connected", lambda: client.connect(bound.getsockname()))
    server = bound.accept()[0]
    server.sendall(b"first")
    show("bound, then connected", lambda: client.recv(10))
    client.sendall(b"second")
    show("bound, then connected", lambda: server.recv(10))

    # What a program has sent arrives before the reset.
    for linger in (True, False):
        client = socket.create_connection(bound.getsockname())
        server = bound.accept()[0]
        if linger:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        else:
            client.sendall(b"never read")
            show("unread bytes", events(server, select.POLLIN, 30000))
        server.sendall(b"last")
        server.close()
        show("sent before a reset", lambda: client.recv(10))
        show("sent before a reset", lambda: client.recv(10))

    free = socket.socket()
    free.bind(("127.0.0.1", 0))
    nobody = free.getsockname()
    free.close()
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 77, 0))
    for level, name, value in (
        (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 70),
        (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 9000),
        (socket.IPPROTO_TCP, socket.TCP_LINGER2, 7),
        (socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, 3),
        (socket.IPPROTO_TCP, socket.TCP_SYNCNT, 4),
        (socket.IPPROTO_TCP, TCP_NOTSENT_LOWAT, 4096),
        (socket.IPPROTO_IP, socket.IP_TOS, 16),
        (socket.IPPROTO_IP, socket.IP_TTL, 33),
        (socket.IPPROTO_IP, IP_MTU_DISCOVER, 0),
        (socket.SOL_SOCKET, socket.SO_RCVBUF, 30000),
        (socket.SOL_SOCKET, socket.SO_RCVLOWAT, 2),
        (socket.SOL_SOCKET, socket.SO_OOBINLINE, 1),
    ):
        client.setsockopt(level, name, value)
    show("refused", lambda: client.connect(nobody))
    show_options("refused", client)
    show("refused again", lambda: client.connect(nobody))
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_LINGER2, 9)
    show_options("refused again", client)
    show("then connected", lambda: client.connect(bound.getsockname()))
    show("then its time limit", lambda: client.getsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, 16)[:8])
    show_options("then connected", client)
    server = bound.accept()[0]
    client.sendall(b"third")
    show("then connected", lambda: server.recv(10))

    show("disconnect", call("connect", client.fileno(), bytes(16), 16))
    show("disconnected", lambda: client.getpeername())
    show_options("disconnected", client)
    show("disconnected peer", lambda: server.recv(10))
    show("connected again", lambda: client.connect(bound.getsockname()))
    show_options("connected again", client)
    server = bound.accept()[0]
    client.sendall(b"fourth")
    show("connected again", lambda: server.recv(10))


TCP_NOTSENT_LOWAT, IP_MTU_DISCOVER = 25, 10


def show_options(what, sock):
    tcp = (socket.TCP_NODELAY, socket.TCP_KEEPIDLE, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)
    tcp += (socket.TCP_LINGER2, socket.TCP_DEFER_ACCEPT, socket.TCP_SYNCNT, TCP_NOTSENT_LOWAT)
    for level, names in (
        (socket.IPPROTO_TCP, tcp),
        (socket.IPPROTO_IP, (socket.IP_TOS, socket.IP_TTL, IP_MTU_DISCOVER)),
        (socket.SOL_SOCKET, (socket.SO_RCVBUF, socket.SO_RCVLOWAT, socket.SO_OOBINLINE)),
    ):
        for name in names:
            show(f"{what} option {level}, {name}", lambda: sock.getsockopt(level, name))


def datagrams():
    first, second = socket.socket(type=socket.SOCK_DGRAM), socket.socket(type=socket.SOCK_DGRAM)
    first.bind(("127.0.0.1", 0))
    second.connect(first.getsockname())
    for kind, sock, peer in (("UDP", first, second), ("connected UDP", second, first)):
        fd, room = sock.fileno(), ctypes.create_string_buffer(16)
        options(kind, fd)
        for what, where, length in (
            ("bad address", BAD, number(16)),
            ("bad length", room, BAD),
            ("negative length", room, number(-1)),
        ):
            peer.sendto(b"hello", sock.getsockname()) if peer is first else peer.send(b"hello")
            show(f"{kind} {what}", events(sock, select.POLLIN, 30000))
            show(f"{kind} {what}", apart("recvfrom", fd, ctypes.create_string_buffer(8), 8, NOWAIT, where, length))
            show(f"{kind} {what}", events(sock, select.POLLIN))
        for what, destination, length in (
            ("bad address", BAD, 16),
            ("short address", address(), 3),
            ("negative length", address(), -1),
            ("no family", bytes(16), 16),
            ("other family", address(family=47), 16),
            ("port 0", address(0), 16),
        ):
            show(f"{kind} sendto {what}", apart("sendto", fd, b"x", 1, NOWAIT, destination, length))
        show(f"{kind} sendto bad bytes", apart("sendto", fd, BAD, 8, NOWAIT, address(), 16))
        show(f"{kind} urgent send", call("send", fd, b"x", 1, socket.MSG_OOB))
        show(f"{kind} urgent receive", call("recv", fd, room, 8, NOWAIT | socket.MSG_OOB))
        show(f"{kind} listen", call("listen", fd, 1))
        show(f"{kind} accept", call("accept", fd, None, None))
    show("shutdown", lambda: second.shutdown(socket.SHUT_RD))
    show("shutdown", lambda: second.shutdown(socket.SHUT_WR))
    show("shutdown", lambda: second.send(b"x", NOSIGNAL))


streams()
states()
datagrams()
