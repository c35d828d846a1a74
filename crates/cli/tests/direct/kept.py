"""Accepts connections whose pairs are kept for later ones, and closes them in every order. Prints "all right".

Each part runs until enough connections have got a kept pair, because the engine must be awake for that.
"""

import ctypes
import errno
import os
import resource
import select
import socket
import struct
import time

libc = ctypes.CDLL(None, use_errno=True)
END = time.monotonic() + 240


def wait(fd, events=select.POLLIN, seconds=20):
    poll = select.poll()
    poll.register(fd, events)
    assert poll.poll(seconds * 1000), "a wait hangs"


class Server:
    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.listener.setblocking(False)
        self.seen, self.reused = set(), 0

    def accept(self):
        """Accepts as event-driven servers do. Returns the descriptor."""
        while True:
            fd = libc.accept4(self.listener.fileno(), None, None, socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
            if fd >= 0:
                break
            assert ctypes.get_errno() in (errno.EAGAIN, errno.ECONNABORTED), ctypes.get_errno()
            wait(self.listener)
        inode = os.fstat(fd).st_ino
        self.reused += inode in self.seen
        self.seen.add(inode)
        return fd

    def connection(self):
        client = socket.create_connection(self.listener.getsockname())
        client.settimeout(20)
        return client, self.accept()


def receive(fd):
    while True:
        try:
            return os.read(fd, 100)
        except BlockingIOError:
            wait(fd)


def exchange(client, fd, number):
    """Sends a number to the server and back, and checks the addresses."""
    client.sendall(struct.pack("=Q", number))
    assert receive(fd) == struct.pack("=Q", number)
    os.write(fd, struct.pack("=Q", ~number & 0xffffffffffffffff))
    own = socket.socket(fileno=fd)
    assert (own.getpeername(), own.getsockname()) == (client.getsockname(), client.getpeername())
    own.detach()
    assert client.recv(8, socket.MSG_WAITALL) == struct.pack("=Q", ~number & 0xffffffffffffffff)


def ends(client):
    """Checks that the connection has ended in order."""
    assert client.recv(1) == b""
    client.close()


def until(server, count, part):
    """Runs a part until `count` further connections have got kept pairs."""
    goal, number = server.reused + count, 0
    while server.reused < goal:
        assert time.monotonic() < END, f"{part.__name__}: only {server.reused} connections have got a kept pair"
        part(server, number)
        number += 1


def simple(server, number):
    client, fd = server.connection()
    exchange(client, fd, number)
    os.close(fd)
    ends(client)


def many(server, number):
    connections = [server.connection() for _ in range(10)]
    pairs = {fd: client for client, fd in connections}
    # The order of the accepted ones is that of the connects.
    for index, (client, fd) in enumerate(connections):
        exchange(client, fd, 100 * number + index)
    for fd in list(pairs)[::-1]:
        os.close(fd)
    for client in pairs.values():
        ends(client)


def finished(server, number):
    """The client closes first. The server, which polls, finds the end in shared memory, so the pair is kept."""
    client, fd = server.connection()
    epoll = select.epoll()
    epoll.register(fd, select.EPOLLIN | select.EPOLLRDHUP)
    client.sendall(b"x" * (number % 3 + 1))
    client.close()
    got, events = b"", 0
    while not events & select.EPOLLRDHUP:
        assert time.monotonic() < END
        events = dict(epoll.poll(20)).get(fd, 0)
    while len(got) < number % 3 + 1:
        got += receive(fd)
    if number % 4 == 3:
        time.sleep(0.002)
        assert epoll.poll(20) == [(fd, select.EPOLLIN | select.EPOLLRDHUP)]
    for _ in range(number % 3 + 1):
        assert os.read(fd, 5) == b""
    os.close(fd)
    epoll.close()


def orders(server, number):
    """The client finishes first, sends late, or is reset by unread bytes, a duplicate lives longer, or two epoll instances watch."""
    simple(server, number)
    client, fd = server.connection()
    exchange(client, fd, number)
    way = number % 8
    if way == 0:
        client.shutdown(socket.SHUT_WR)
        assert receive(fd) == b""
        os.close(fd)
        ends(client)
    elif way == 1:
        client.sendall(b"unread")
        wait(fd)
        os.close(fd)
        try:
            assert client.recv(1) == b""
            raise AssertionError("unread bytes reset no connection")
        except ConnectionResetError:
            client.close()
    elif way == 2:
        other = os.dup(fd)
        os.close(fd)
        client.sendall(b"more")
        assert receive(other) == b"more"
        os.close(other)
        ends(client)
    elif way == 3:
        first, second = select.epoll(), select.epoll()
        for epoll in (first, second):
            epoll.register(fd, select.EPOLLIN)
        os.close(fd)
        ends(client)
        client, fd = server.connection()
        client.sendall(b"x")
        wait(fd)
        assert not first.poll(0) and not second.poll(0), "an event of a closed descriptor"
        first.register(fd, select.EPOLLIN)
        assert first.poll(20) == [(fd, select.EPOLLIN)] and receive(fd) == b"x"
        os.close(fd)
        ends(client)
    elif way == 4:
        os.set_blocking(fd, True)
        os.close(fd)
        ends(client)
    elif way == 5:
        own = socket.socket(fileno=fd)
        own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        own.close()
        try:
            client.recv(1)
            raise AssertionError("no reset")
        except ConnectionResetError:
            client.close()
    elif way == 6:
        epoll = select.epoll()
        epoll.register(fd, select.EPOLLIN)
        assert not epoll.poll(0)
        os.close(fd)
        ends(client)
        client, fd = server.connection()
        client.sendall(b"x")
        wait(fd)
        assert not epoll.poll(0), "an event of the closed connection before"
        assert receive(fd) == b"x"
        os.close(fd)
        ends(client)
    else:
        own = socket.socket(fileno=fd)
        own.shutdown(socket.SHUT_WR)
        ends_client = client.recv(1)
        assert ends_client == b""
        client.sendall(b"late")
        assert receive(fd) == b"late"
        own.close()
        client.close()


def reset(server, number):
    """A connection that is reset while it waits at one listener does not become one that another listener has accepted. All of them
    get the same slot."""
    simple(server, number)
    client = socket.create_connection(server.before.listener.getsockname())
    wait(server.before.listener)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    # Another connection now gets the slot with a new pair, and the one after it gets that pair.
    simple(server, number)
    client = socket.create_connection(server.listener.getsockname())
    client.settimeout(20)
    client.sendall(b"first")
    wait(server.listener)
    fd = libc.accept4(server.before.listener.fileno(), None, None, socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    if fd >= 0:
        try:
            assert receive(fd) == b"", "bytes of another connection"
        except ConnectionResetError:
            pass
        os.close(fd)
    else:
        assert ctypes.get_errno() in (errno.EAGAIN, errno.ECONNABORTED), ctypes.get_errno()
    fd = server.accept()
    assert receive(fd) == b"first"
    exchange(client, fd, number)
    os.close(fd)
    ends(client)


def high():
    """Returns the descriptors with numbers that programs do not get by themselves."""
    return [int(name) for name in os.listdir("/proc/self/fd") if int(name) >= 448]


def closed_listener():
    """Connections that wait at a closed listener are reset, although the program has the ends of their pairs."""
    server = Server()
    until(server, 5, simple)
    clients = [socket.create_connection(server.listener.getsockname()) for _ in range(4)]
    server.listener.close()
    for client in clients:
        client.settimeout(20)
        try:
            assert client.recv(1) == b""
            raise AssertionError("a connection of a closed listener ends in order")
        except ConnectionResetError:
            client.close()


def exhausted(server):
    """Kept ends take no descriptor from a program that has no other free one."""
    number = 0
    while not high():
        assert time.monotonic() < END, "no pair is kept"
        many(server, number)
        number += 1
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, before[1]))
    client = socket.create_connection(server.listener.getsockname())
    client.settimeout(20)
    null, filler = os.open("/dev/null", os.O_RDONLY), []
    try:
        while True:
            filler.append(os.dup(null))
    except OSError as error:
        assert error.errno == errno.EMFILE
    wait(server.listener)
    fd = libc.accept4(server.listener.fileno(), None, None, socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    assert fd >= 0, os.strerror(ctypes.get_errno())
    for other in [null, *filler]:
        os.close(other)
    resource.setrlimit(resource.RLIMIT_NOFILE, before)
    exchange(client, fd, 1)
    os.close(fd)
    ends(client)


def forked(server):
    """After a fork, each connection ends once its last descriptor is closed, and no pair is kept."""
    waiting = [socket.create_connection(server.listener.getsockname()) for _ in range(3)]
    client, fd = server.connection()
    child = os.fork()
    if child == 0:
        os.close(fd)
        os._exit(7 if high() else 0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "the child has kept ends"
    server.reused = 0
    for index, other in enumerate([client, *waiting][1:]):
        fd2 = server.accept()
        os.close(fd2)
    os.close(fd)
    for other in (client, *waiting):
        other.settimeout(20)
        assert other.recv(1) == b""
        other.close()
    server.seen.clear()
    server.reused = 0
    for number in range(40):
        simple(server, number)
    assert server.reused == 0 and not high(), (server.reused, high())


server = Server()
until(server, 20, simple)
second = Server()
second.before = server
until(second, 40, reset)
second.listener.close()
until(server, 20, many)
until(server, 40, finished)
until(server, 32, orders)
before = len(os.listdir("/proc/self/fd"))
for number in range(200):
    simple(server, number)
after = len(os.listdir("/proc/self/fd"))
assert after <= before + 64, (before, after)
closed_listener()
exhausted(server)
forked(server)
print("all right", flush=True)
