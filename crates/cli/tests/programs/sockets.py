"""What programs expect of sockets beyond their data. Run it with its sockets on an engine that has --loopback."""

import errno
import fcntl
import os
import resource
import select
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


for test in (buffers, no_descriptor, registered_before_connect, options, reset):
    test()
    print(test.__name__, "ok", flush=True)
