"""Opens connections over pairs that are kept from earlier ones to the same address, and ends them in every order. Prints "all right".

Each part runs until enough connections have got a kept pair, because the engine must be awake for that.
"""

import ctypes
import errno
import os
import random
import select
import socket
import struct
import sys
import time

libc = ctypes.CDLL(None, use_errno=True)
END = time.monotonic() + 240
# The offset of the word of `Life` in a slot.
LIFE = 2048 + 128
ZERO = struct.pack("ii", 1, 0)


class Epoll:
    """An epoll instance whose waits poll shared memory."""

    def __init__(self):
        self.epoll = select.epoll()

    def wait(self, fd, events, seconds=20):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for found, events_found in self.epoll.poll(1):
                if found == fd and events_found & events:
                    return events_found
        raise AssertionError("a wait hangs")


class Network:
    def __init__(self, backlog=64):
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=backlog)
        self.listener.setblocking(False)
        self.address = self.listener.getsockname()
        self.clients, self.servers = Epoll(), Epoll()
        self.seen, self.reused = set(), 0

    def begin(self, fails=errno.EINPROGRESS):
        client = socket.socket()
        client.setblocking(False)
        assert client.connect_ex(self.address) == fails
        inode = os.fstat(client.fileno()).st_ino
        self.reused += inode in self.seen
        self.seen.add(inode)
        return client

    def finish(self, client):
        """Waits until the connection is established, as event-driven programs do."""
        self.clients.epoll.register(client, select.EPOLLOUT)
        assert self.clients.wait(client.fileno(), select.EPOLLOUT) == select.EPOLLOUT
        assert client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
        self.clients.epoll.modify(client, select.EPOLLIN)

    def accept(self):
        end = time.monotonic() + 20
        while True:
            fd = libc.accept4(self.listener.fileno(), None, None, socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
            if fd >= 0:
                self.servers.epoll.register(fd, select.EPOLLIN)
                return fd
            assert ctypes.get_errno() in (errno.EAGAIN, errno.ECONNABORTED), ctypes.get_errno()
            assert time.monotonic() < end, "no connection arrives"

    def connection(self):
        client = self.begin()
        self.finish(client)
        return client, self.accept()

    def exchange(self, client, fd, number):
        """Sends a number to the server and back, and checks the addresses."""
        message = struct.pack("=Q", number)
        assert client.send(message) == 8
        self.servers.wait(fd, select.EPOLLIN)
        assert os.read(fd, 100) == message
        os.write(fd, message[::-1])
        self.clients.wait(client.fileno(), select.EPOLLIN)
        assert client.recv(100) == message[::-1]
        own = socket.socket(fileno=fd)
        assert client.getpeername() == self.address == own.getsockname()
        assert client.getsockname() == own.getpeername()
        own.detach()

    def end(self, client, fd, first):
        """Closes the connection, first the client or the server. The other one finds the end."""
        if first == "client":
            client.close()
            self.servers.wait(fd, select.EPOLLIN)
            assert os.read(fd, 1) == b""
            os.close(fd)
        else:
            os.close(fd)
            self.clients.wait(client.fileno(), select.EPOLLIN)
            assert client.recv(1) == b"" == client.recv(1)
            client.close()


def until(network, count, part):
    """Runs a part until `count` further connections have got kept pairs."""
    goal, number = network.reused + count, 0
    while network.reused < goal:
        assert time.monotonic() < END, f"{part.__name__}: only {network.reused} connections have got a kept pair"
        part(network, number)
        number += 1


def simple(network, number, first="client"):
    client, fd = network.connection()
    network.exchange(client, fd, number)
    network.end(client, fd, first)


def server_first(network, number):
    simple(network, number, "server")


def many(network, number):
    clients = [network.begin() for _ in range(12)]
    for client in clients:
        network.finish(client)
    servers = {socket.socket(fileno=os.dup(fd)).getpeername(): fd for fd in (network.accept() for _ in clients)}
    for index, client in enumerate(clients):
        network.exchange(client, servers[client.getsockname()], 100 * number + index)
    random.shuffle(clients)
    for client in clients:
        network.end(client, servers[client.getsockname()], random.choice(("client", "server")))


def calls(network, number):
    """Calls on a connection over a kept pair give the kernel's results."""
    simple(network, number)
    client, fd = network.connection()
    way = number % 9
    if way == 0:
        assert client.connect_ex(network.address) == 0 and client.connect_ex(network.address) == errno.EISCONN
    elif way == 1:
        client.shutdown(socket.SHUT_WR)
        network.servers.wait(fd, select.EPOLLIN)
        assert os.read(fd, 1) == b""
        os.write(fd, b"late")
        network.clients.wait(client.fileno(), select.EPOLLIN)
        assert client.recv(9) == b"late"
        os.close(fd)
        network.clients.wait(client.fileno(), select.EPOLLHUP)
        assert client.recv(9) == b""
        client.close()
        return
    elif way == 2:
        other = client.dup()
        client.close()
        network.clients.epoll.register(other, select.EPOLLIN)
        client = other
    elif way == 3:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ZERO)
        client.close()
        network.servers.wait(fd, select.EPOLLERR | select.EPOLLHUP)
        try:
            os.read(fd, 1)
            raise AssertionError("no reset")
        except ConnectionResetError:
            os.close(fd)
        return
    elif way == 4:
        # Bytes that fill both rings and the pair.
        data, sent, got = os.urandom(3 << 20), 0, b""
        network.clients.epoll.modify(client, select.EPOLLOUT)
        while sent < len(data):
            try:
                sent += client.send(data[sent:])
            except BlockingIOError:
                if len(got) < sent:
                    network.servers.wait(fd, select.EPOLLIN)
                    got += os.read(fd, 1 << 20)
                else:
                    network.clients.wait(client.fileno(), select.EPOLLOUT)
        while len(got) < len(data):
            network.servers.wait(fd, select.EPOLLIN)
            got += os.read(fd, 1 << 20)
        assert got == data
        network.clients.epoll.modify(client, select.EPOLLIN)
    elif way == 5:
        fresh = socket.socket()
        assert client.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) > 16384
        client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 30000)
        assert client.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 60000
        fresh.close()
    elif way == 6:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        network.exchange(client, fd, number)
        network.end(client, fd, "client")
        client, fd = network.connection()
        assert client.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 0, "an option of the connection before"
    elif way == 7:
        os.write(fd, b"unread")
        network.clients.wait(client.fileno(), select.EPOLLIN)
        client.close()
        network.servers.wait(fd, select.EPOLLERR | select.EPOLLHUP)
        try:
            os.read(fd, 1)
            raise AssertionError("unread bytes reset no connection")
        except ConnectionResetError:
            os.close(fd)
        return
    else:
        client.setblocking(True)
        client.settimeout(20)
    network.exchange(client, fd, number)
    network.end(client, fd, random.choice(("client", "server")))


def waiting(network, number):
    """While a connection over a kept pair is being established, it behaves as the kernel's. The listener's queue is full meanwhile."""
    simple(network, number)
    queued = []
    while True:
        client = network.begin()
        if not select.select([], [client], [], 0.5)[1]:
            break
        queued.append(client)
    assert client.connect_ex(network.address) == errno.EALREADY
    for call in (lambda: client.send(b"early"), lambda: client.recv(1)):
        try:
            call()
            raise AssertionError("a connecting socket is not ready")
        except BlockingIOError:
            pass
    try:
        client.getpeername()
        raise AssertionError("a connecting socket has a peer")
    except OSError as error:
        assert error.errno == errno.ENOTCONN
    assert client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
    if number % 4 == 0:
        client.close()
        client = None
    elif number % 4 == 2:
        first, client = client, client.dup()
        first.close()
        assert client.connect_ex(network.address) == errno.EALREADY
    elif number % 4 == 3:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 30000)
        assert client.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 60000
    assert not client or not select.select([], [client], [], 0)[1]
    accepted = [network.accept() for _ in queued]
    if client:
        network.finish(client)
        if number % 4 == 3:
            assert client.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 60000
        assert number % 4 == 2 or client.connect_ex(network.address) == 0
        assert client.connect_ex(network.address) == errno.EISCONN
        # A connection that was given up may have been established meanwhile.
        fd = network.accept()
        while socket.socket(fileno=os.dup(fd)).getpeername() != client.getsockname():
            os.close(fd)
            fd = network.accept()
        network.exchange(client, fd, number)
        network.end(client, fd, "client")
    for client, fd in zip(queued, accepted):
        client.close()
        os.close(fd)


def refused(network):
    """A refused connection over a kept pair reports it once, and may connect again."""
    until(network, 5, simple)
    address = network.address
    network.listener.close()
    before = network.reused
    for number in range(20):
        client = network.begin()
        network.clients.epoll.register(client, select.EPOLLOUT)
        network.clients.wait(client.fileno(), select.EPOLLERR | select.EPOLLHUP)
        assert client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ECONNREFUSED
        assert client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
        if number == 19:
            listener = socket.create_server(address, reuse_port=False)
            # Linux also reports once that the attempt before has failed.
            assert client.connect_ex(address) == errno.ECONNABORTED
            assert client.connect_ex(address) == errno.EINPROGRESS
            network.clients.wait(client.fileno(), select.EPOLLOUT)
            assert client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
            other, _ = listener.accept()
            client.send(b"again")
            assert other.recv(5) == b"again"
            other.close()
            network.listener = listener
            listener.setblocking(False)
        client.close()
    assert network.reused > before, "no refused connection had a kept pair"


def reset(network, number):
    """A connection that is reset before the program uses it. As on the kernel, the attempt has failed, and the program may connect again."""
    simple(network, number)
    client = network.begin()
    server = socket.socket(fileno=network.accept())
    server.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ZERO)
    server.close()
    network.clients.epoll.register(client, select.EPOLLOUT)
    network.clients.wait(client.fileno(), select.EPOLLERR | select.EPOLLHUP)
    error = errno.ECONNRESET
    if number % 2:
        assert client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == error
        error = errno.ECONNABORTED
    assert client.connect_ex(network.address) == error
    assert client.connect_ex(network.address) == errno.EINPROGRESS
    network.clients.wait(client.fileno(), select.EPOLLOUT)
    client.close()
    os.close(network.accept())


def idle(network):
    """Idle connections over kept pairs leave their slots to others, and work as before afterwards."""
    for number, (client, fd) in enumerate([network.connection() for _ in range(30)]):
        network.exchange(client, fd, number)
        network.end(client, fd, "client")
    before = network.reused
    waiting = [network.connection() for _ in range(30)]
    assert network.reused >= before + 20, f"only {network.reused - before} connections have got a kept pair"
    for number, (client, fd) in enumerate(waiting):
        network.exchange(client, fd, number)
    time.sleep(1.2)
    busy = [network.connection() for _ in range(30)]
    for number in range(40):
        for client, fd in busy:
            network.exchange(client, fd, number)
    for number, (client, fd) in enumerate(waiting):
        if number % 3 == 0:
            assert client.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) > 16384
        elif number % 3 == 1:
            assert client.connect_ex(network.address) == 0 and client.connect_ex(network.address) == errno.EISCONN
        network.exchange(client, fd, number)
    for client, fd in waiting + busy:
        network.end(client, fd, random.choice(("client", "server")))


def others(network):
    """Bound sockets, those with options, blocking ones, and those to another address get pairs of their own."""
    until(network, 5, simple)
    second = Network()
    for number in range(8):
        client = socket.socket()
        if number % 4 == 0:
            client.bind(("127.0.0.1", 0))
        elif number % 4 == 1:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        target = second if number % 4 == 2 else network
        if number % 4 != 3:
            client.setblocking(False)
        assert client.connect_ex(target.address) in (0, errno.EINPROGRESS)
        assert os.fstat(client.fileno()).st_ino not in high_inodes(), "the end is not at its high number any more"
        target.clients.epoll.register(client, select.EPOLLOUT)
        target.clients.wait(client.fileno(), select.EPOLLOUT)
        target.clients.epoll.modify(client, select.EPOLLIN)
        fd = target.accept()
        assert client.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == (number % 4 == 1)
        target.exchange(client, fd, number)
        target.end(client, fd, "client")
    second.listener.close()


def high_inodes():
    """Returns the inodes of descriptors with numbers that programs do not get by themselves."""
    return [os.fstat(int(name)).st_ino for name in os.listdir("/proc/self/fd") if int(name) >= 448]


def hostile(network):
    """The program writes random states into the words of its slots. Its connections may fail, but the engine goes on."""
    until(network, 5, simple)
    line = next(line for line in open("/proc/self/maps") if "memfd:inlane" in line)
    start, end = (int(part, 16) for part in line.split()[0].split("-"))
    memory = (ctypes.c_ubyte * (end - start)).from_address(start)
    # A slot has a page of words, two rings, and another page. 64 MiB for buffers follow all slots.
    ring = 1 << ((end - start - (64 << 20)) // 128).bit_length() - 1
    for number in range(200):
        for index in range(64):
            at = index * (2 * ring + 8192) + index % 16 * 256 + LIFE
            if random.random() < 0.3:
                struct.pack_into("=Q", memory, at, random.choice((0, 1, 2, 3, 4, 5, 6, 7, 1 << 63)) | random.randrange(2) << 3)
        client = socket.socket()
        client.setblocking(False)
        if client.connect_ex(network.address) == errno.EINPROGRESS:
            select.select([], [client], [], 0.01)
        try:
            client.send(b"x")
        except OSError:
            pass
        client.close()
        fd = libc.accept4(network.listener.fileno(), None, None, socket.SOCK_NONBLOCK)
        if fd >= 0:
            os.close(fd)
    print("all right", flush=True)


def forked(network):
    """After a fork, both processes can use a connection over a kept pair, and no pair is kept."""
    until(network, 5, simple)
    client, fd = network.connection()
    network.exchange(client, fd, 1)
    child = os.fork()
    if child == 0:
        client.send(b"child")
        os._exit(7 if high_inodes() else 0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    client.send(b"parent")
    got = b""
    while len(got) < 11:
        network.servers.wait(fd, select.EPOLLIN)
        got += os.read(fd, 20)
    assert got == b"childparent", got
    client.close()
    network.servers.wait(fd, select.EPOLLIN)
    assert os.read(fd, 1) == b""
    os.close(fd)
    network.seen.clear()
    network.reused = 0
    for number in range(40):
        simple(network, number)
    assert network.reused == 0 and not high_inodes(), network.reused


def restart(network):
    """The engine ends. Connections over its kept pairs are reset, and the next engine's connections get other pairs."""
    until(network, 5, simple)
    client, fd = network.connection()
    network.exchange(client, fd, 1)
    print("ready", flush=True)
    sys.stdin.readline()
    for end in (client, socket.socket(fileno=fd)):
        select.select([end], [], [], 20)
        try:
            assert end.recv(1) == b""
            raise AssertionError("the engine's end is no reset")
        except ConnectionResetError:
            end.close()
    following = Network()
    until(following, 20, simple)
    print("all right", flush=True)


def main():
    network = Network()
    until(network, 40, simple)
    until(network, 40, server_first)
    until(network, 60, many)
    until(network, 60, calls)
    before = len(os.listdir("/proc/self/fd"))
    for number in range(300):
        simple(network, number, ("client", "server")[number % 2])
    after = len(os.listdir("/proc/self/fd"))
    assert after <= before + 64, (before, after)
    until(network, 20, reset)
    idle(network)
    full = Network(backlog=1)
    until(full, 12, waiting)
    refused(network)
    others(network)
    forked(network)
    print("all right", flush=True)


def threads(network):
    """The engine has several threads."""
    for part in (simple, server_first, many):
        until(network, 20, part)
    print("all right", flush=True)


{"threads": lambda: threads(Network()), "hostile": lambda: hostile(Network()), "restart": lambda: restart(Network()), "all": main}[sys.argv[1]]()
