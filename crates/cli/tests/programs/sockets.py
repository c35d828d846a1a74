"""What programs expect of sockets beyond their data. Run it with its sockets on an engine that has --loopback."""

import errno
import fcntl
import os
import re
import resource
import select
import signal
import socket
import struct
import threading
import time

LIMIT = 60


def pair(server):
    client = socket.create_connection(server.getsockname(), LIMIT)
    return client, server.accept()[0]


def buffers():
    """SO_SNDBUF and SO_RCVBUF read back doubled and bound what the connection holds."""
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
    server.bind(("127.0.0.1", 0))
    server.listen()
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
    client.connect(server.getsockname())
    peer = server.accept()[0]
    assert client.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 16384
    assert peer.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == 16384
    client.setblocking(False)
    sent = 0
    while select.select([], [client], [], 1)[1]:
        sent += client.send(b"x" * 65536)
    # The handshake announces a window of 64 KiB. The rings hold 1 MiB each.
    assert 8192 <= sent < 250_000, sent
    client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 100_000)
    assert client.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 200_000
    client.setblocking(True)
    client.shutdown(socket.SHUT_WR)
    received = 0
    while data := peer.recv(1 << 20):
        received += len(data)
    assert received == sent, (received, sent)
    # The send buffer can be set and read while the connection is being established.
    opening = socket.socket()
    opening.setblocking(False)
    opening.connect_ex(server.getsockname())
    opening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 50_000)
    assert opening.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 100_000
    select.select([], [opening], [], LIMIT)
    assert opening.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
    assert opening.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 100_000


def no_descriptor():
    """accept without a free descriptor fails and keeps the connection, and the order of connections."""
    server = socket.create_server(("127.0.0.1", 0), backlog=8)
    clients = [socket.create_connection(server.getsockname(), LIMIT) for _ in range(3)]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
    held = []
    try:
        while True:
            held.append(os.dup(0))
    except OSError as error:
        assert error.errno == errno.EMFILE
    try:
        server.accept()
        raise AssertionError("accept found a descriptor")
    except OSError as error:
        assert error.errno == errno.EMFILE, error
    for descriptor in held:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    for client in clients:
        peer, address = server.accept()
        assert address == client.getsockname()
        client.sendall(b"x")
        assert peer.recv(1) == b"x"


def registered_before_connect():
    """Sockets that were registered with epoll before they were connected stay registered, also in a crowd."""
    server = socket.create_server(("127.0.0.1", 0), backlog=300)
    sockets = [socket.socket() for _ in range(200)]
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] > 66000:
        resource.setrlimit(resource.RLIMIT_NOFILE, (66001, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        high = fcntl.fcntl(sockets[0], fcntl.F_DUPFD, 66000)
        sockets[0].close()
        sockets[0] = socket.socket(fileno=high)
    poll = select.epoll()
    for one in sockets:
        one.setblocking(False)
        poll.register(one, select.EPOLLOUT)
    for one in sockets:
        one.connect_ex(server.getsockname())
    waiting, end = {one.fileno() for one in sockets}, time.monotonic() + LIMIT
    while waiting:
        assert time.monotonic() < end, f"{len(waiting)} sockets lost their registration"
        for descriptor, events in poll.poll(1):
            # A socket that is not connected reports EPOLLHUP.
            if not events & select.EPOLLHUP:
                waiting.discard(descriptor)
                poll.modify(descriptor, 0)


def options():
    """Options that are set before connect are in effect after it, whichever descriptor or process sets them."""
    server = socket.create_server(("127.0.0.1", 0))

    def direct(client):
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 33)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 50, 0))

    def duplicate(client):
        with client.dup() as other:
            direct(other)

    def child(client):
        process = os.fork()
        if process == 0:
            direct(client)
            os._exit(0)
        assert os.waitpid(process, 0)[1] == 0

    def values(client):
        read = (
            (socket.IPPROTO_TCP, socket.TCP_NODELAY), (socket.SOL_SOCKET, socket.SO_KEEPALIVE),
            (socket.SOL_SOCKET, socket.SO_RCVTIMEO), (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE))
        return [client.getsockopt(*option) for option in read]

    def check(change, expected):
        client = socket.socket()
        if change:
            change(client)
        client.connect(server.getsockname())
        assert values(client)[:len(expected)] == expected, (change, values(client))
        peer = server.accept()[0]
        client.send(b"x")
        assert peer.recv(2) == b"x"

    def all_ways():
        for change in (direct, duplicate, child):
            check(change, [1, 1, 50, 33])
        check(None, [0, 0, 0])

    all_ways()
    end = threading.Event()
    other = threading.Thread(target=end.wait)
    other.start()
    try:
        all_ways()
    finally:
        end.set()
        other.join()


def reset():
    """The first send after a reset fails with ECONNRESET, the next one with EPIPE."""
    server = socket.create_server(("127.0.0.1", 0))
    for send in (lambda client: client.send(b"x"), lambda client: os.write(client.fileno(), b"x")):
        client, peer = pair(server)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.close()
        assert select.select([client], [], [], LIMIT)[0]
        for expected in (ConnectionResetError, BrokenPipeError):
            try:
                send(client)
                raise AssertionError("the send succeeded")
            except expected:
                pass


def finish(client):
    """Waits until a connection is established or has failed. Returns its error."""
    assert select.select([], [client], [], LIMIT)[1], "the connection hangs"
    return client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)


def lowest(count):
    """Returns the lowest descriptors that are free."""
    held = [os.dup(0) for _ in range(count)]
    for descriptor in held:
        os.close(descriptor)
    return held


def opened(server, blocks, prepare=lambda client: None):
    """Opens a connection. Returns both of its ends. Checks the addresses, also while it is being established."""
    free = lowest(2)
    client = socket.socket()
    assert client.fileno() == free[0]
    client.setblocking(blocks)
    prepare(client)
    assert client.connect_ex(server.getsockname()) == (0 if blocks else errno.EINPROGRESS)
    local = client.getsockname()
    assert local[0] == "127.0.0.1" and local[1] != 0, local
    assert finish(client) == 0 and client.getpeername() == server.getsockname()
    assert lowest(1) == free[1:], "a descriptor is left"
    peer, address = server.accept()
    assert address == local == peer.getpeername(), (address, local)
    assert peer.fileno() == free[1]
    return client, peer


def opens_many():
    """Connections of a program with one thread have the addresses, errors, numbers and flags that they have on the kernel."""
    server = socket.create_server(("127.0.0.1", 0), backlog=64)
    # The kind, the numbers of engine and socket, no local port, and the address of the server.
    port = server.getsockname()[1].to_bytes(2, "big").replace(b"\0", b"@")
    names = re.compile(rb"inlane\x03s.{16}\x04@{19}\x04@" + re.escape(port) + rb"\x7f@@\x01", re.DOTALL)
    found = 0
    for count in range(24):
        inheritable = count % 3 == 0
        client, peer = opened(server, count % 2 == 0, lambda client: os.set_inheritable(client.fileno(), inheritable))
        assert os.get_inheritable(client.fileno()) == inheritable
        assert client.getblocking() == (count % 2 == 0)
        with open("/proc/net/unix", "rb") as file:
            found += count > 0 and names.search(file.read()) is not None
        local = client.getsockname()
        client.sendall(b"question")
        assert peer.recv(100) == b"question"
        if count % 4 == 0:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            peer.close()
            assert select.select([client], [], [], LIMIT)[0]
            assert client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ECONNRESET
        else:
            peer.sendall(b"answer")
            peer.close()
            client.setblocking(True)
            assert client.recv(100, socket.MSG_WAITALL) == b"answer" and client.recv(1) == b""
        assert client.getsockname() == local
        client.close()
    print("connections over pairs of the library:", found)


def opens_in_vain():
    """A refused connection of a program with one thread fails as on the kernel."""
    server = socket.create_server(("127.0.0.1", 0))
    opened(server, True)
    free = socket.create_server(("127.0.0.1", 0))
    nobody = free.getsockname()
    free.close()
    for blocks in (True, False):
        client = socket.socket()
        client.setblocking(blocks)
        error = client.connect_ex(nobody)
        assert error == (errno.ECONNREFUSED if blocks else errno.EINPROGRESS), error
        if not blocks:
            assert finish(client) == errno.ECONNREFUSED
        client.close()


def opens_with_few_descriptors():
    """A connection can be opened with one free descriptor."""
    server = socket.create_server(("127.0.0.1", 0))
    opened(server, True)
    client = socket.socket()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
    held = []
    try:
        while True:
            held.append(os.dup(0))
    except OSError as error:
        assert error.errno == errno.EMFILE
    os.close(held.pop())
    client.connect(server.getsockname())
    client.sendall(b"x")
    os.dup(0)
    for descriptor in held:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert server.accept()[0].recv(1) == b"x"


def opens_and_forks():
    """A connection stays open until the last process has closed it, also if it was being established at the fork."""
    server = socket.create_server(("127.0.0.1", 0))
    for parent_first in (True, False):
        opened(server, True)
        client = socket.socket()
        client.setblocking(False)
        assert client.connect_ex(server.getsockname()) == errno.EINPROGRESS
        down, up = os.pipe(), os.pipe()
        child = os.fork()
        if child == 0:
            try:
                address = client.getsockname()
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if finish(client) == 0 and client.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1:
                    client.sendall(b"child")
                    os.write(up[1], repr(address).encode())
                    os.read(down[0], 1)
                    client.close()
                    os.write(up[1], b"closed")
                    os.read(down[0], 1)
            finally:
                os._exit(0)
        assert finish(client) == 0
        peer, address = server.accept()
        assert peer.recv(5, socket.MSG_WAITALL) == b"child"
        assert os.read(up[0], 100).decode() == repr(address) == repr(client.getsockname())
        if parent_first:
            client.close()
            assert not select.select([peer], [], [], 0.1)[0], "the connection ended although the child has it"
            os.write(down[1], b"x")
        else:
            os.write(down[1], b"x")
            assert os.read(up[0], 100) == b"closed"
            assert not select.select([peer], [], [], 0.1)[0], "the connection ended although the parent has it"
            client.close()
        assert peer.recv(1) == b"", "the end is not seen"
        os.write(down[1], b"x")
        os.waitpid(child, 0)


def duplicated():
    """A duplicate that was made before bind or connect has the same socket as the descriptor."""
    listener = socket.socket()
    listening = listener.dup()
    listener.bind(("127.0.0.1", 0))
    listening.listen()
    assert listening.getsockname() == listener.getsockname()
    address = listener.getsockname()
    for way in (os.dup, lambda fd: os.dup2(fd, 900), lambda fd: fcntl.fcntl(fd, fcntl.F_DUPFD, 40)):
        first = socket.socket()
        second = socket.socket(fileno=way(first.fileno()))
        third = second.dup()
        os.set_inheritable(third.fileno(), True)
        events = select.epoll()
        events.register(third, select.EPOLLIN)
        second.connect(address)
        peer = listening.accept()[0]
        first.sendall(b"first ")
        second.sendall(b"second ")
        third.sendall(b"third")
        received = b""
        while len(received) < 18:
            received += peer.recv(100)
        assert received == b"first second third", received
        second.close()
        peer.sendall(b"back")
        assert events.poll(LIMIT) == [(third.fileno(), select.EPOLLIN)]
        assert first.recv(4, socket.MSG_WAITALL) == b"back"
        assert os.get_inheritable(third.fileno()) and not os.get_inheritable(first.fileno())
        first.close()
        third.close()
        assert peer.recv(1) == b""
        events.close()
    # Another socket may have the number of a duplicate that was closed.
    first = socket.socket()
    number = first.dup().detach()
    os.close(number)
    other = socket.socket()
    assert other.fileno() == number
    first.connect(address)
    assert listening.accept()[1] == first.getsockname()
    try:
        other.getpeername()
        raise AssertionError("the other socket is connected")
    except OSError as error:
        assert error.errno == errno.ENOTCONN, error
    one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    two = one.dup()
    one.bind(("127.0.0.1", 0))
    one.settimeout(LIMIT)
    two.sendto(b"datagram", two.getsockname())
    assert one.recvfrom(100) == (b"datagram", one.getsockname())


def listener_events():
    """A listener is readable if a connection waits, and never writable, whatever its send buffer is."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    usual = listener.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
    listener.listen()
    assert listener.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == usual
    poll = select.poll()
    poll.register(listener, select.POLLIN | select.POLLOUT | select.POLLPRI)
    edges = select.epoll()
    edges.register(listener, select.EPOLLIN | select.EPOLLOUT | select.EPOLLET)
    signals = []
    signal.signal(signal.SIGIO, lambda number, frame: signals.append(number))
    fcntl.fcntl(listener, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(listener, fcntl.F_SETFL, fcntl.fcntl(listener, fcntl.F_GETFL) | os.O_ASYNC)
    for size in (None, 4000, 300):
        if size:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)
            assert listener.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == max(2 * size, 4608)
        assert poll.poll(0) == [] and edges.poll(0) == [] and signals == []
        client = socket.create_connection(listener.getsockname())
        assert poll.poll(LIMIT * 1000) == [(listener.fileno(), select.POLLIN)]
        assert edges.poll(LIMIT) == [(listener.fileno(), select.EPOLLIN)]
        peer = listener.accept()[0]
        assert len(signals) > 0
        signals.clear()
        assert peer.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) >= 4608
        for call in (lambda: listener.recv(1), lambda: listener.send(b"x")):
            try:
                call()
                raise AssertionError("a listener carries no data")
            except OSError as error:
                assert error.errno in (errno.ENOTCONN, errno.EPIPE), error
        client.close()
        peer.close()
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    listener.shutdown(socket.SHUT_RDWR)
    listener.listen()
    assert poll.poll(0) == [] and listener.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 4608


# The first ones run before the program has had a second thread.
tests = (opens_many, opens_in_vain, opens_with_few_descriptors, opens_and_forks)
for test in (*tests, buffers, no_descriptor, registered_before_connect, options, reset, duplicated, listener_events):
    test()
    print(test.__name__, "ok", flush=True)
