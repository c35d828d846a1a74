"""Connects bound sockets again after a refused attempt, while another socket has their port. Prints "all right"."""

import errno
import socket


def failed(sock, where):
    """Connects. Returns the errno, or 0."""
    return sock.connect_ex(where)


listener, refuses, free = socket.socket(), socket.socket(), socket.socket()
for sock in (listener, refuses, free):
    sock.bind(("127.0.0.1", 0))
listener.listen()
chosen = free.getsockname()
free.close()
for address in (chosen, ("127.0.0.1", 0)):
    bound, other = socket.socket(), socket.socket()
    bound.bind(address)
    port = bound.getsockname()
    assert failed(bound, refuses.getsockname()) == errno.ECONNREFUSED
    for level, name in ((socket.IPPROTO_TCP, socket.TCP_NODELAY), (socket.SOL_SOCKET, socket.SO_KEEPALIVE)):
        bound.setsockopt(level, name, 1)
        assert bound.getsockopt(level, name) == 1
    assert failed(bound, refuses.getsockname()) == errno.ECONNREFUSED
    other.bind(port)
    if address == chosen:
        for _ in range(2):
            assert failed(bound, listener.getsockname()) == errno.EADDRINUSE
        assert bound.getsockname() == port
        other.close()
    assert failed(bound, listener.getsockname()) == 0
    assert (bound.getsockname() == port) == (address == chosen)
    assert bound.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == bound.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    accepted = listener.accept()[0]
    assert accepted.getpeername() == bound.getsockname()
    # End without TIME-WAIT.
    accepted.close()
print("all right")
