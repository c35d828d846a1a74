# Options that hold a time: TCP_DEFER_ACCEPT and TCP_LINGER2. This file is appended to calls.py and uses its functions.


def deferred():
    """A listener that gets connections only when data has arrived, or after a time."""
    for before in (True, False):
        listener = socket.socket()
        if before:
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, 3)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        if not before:
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, 3)
        show("deferred", listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT))
        listener.setblocking(False)
        silent, speaks, ends, resets = [socket.create_connection(listener.getsockname()) for _ in range(4)]
        resets.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        resets.close()
        show("deferred: no connection", events(listener, select.POLLIN, 300))
        show("deferred: no connection", lambda: listener.accept())
        for what, sock in (("data", speaks), ("the end", ends)):
            if sock is speaks:
                sock.sendall(b"data")
            sock.shutdown(socket.SHUT_WR)
            show(f"deferred: {what}", events(listener, select.POLLIN, 30000))
            accepted = listener.accept()[0]
            show(f"deferred: {what}", accepted.getpeername() == sock.getsockname())
            accepted.setblocking(True)
            show(f"deferred: {what}", accepted.recv(10))
        show("deferred: the time is over", events(listener, select.POLLIN, 30000))
        accepted = listener.accept()[0]
        show("deferred: the time is over", accepted.getpeername() == silent.getsockname())
        silent.sendall(b"late")
        accepted.setblocking(True)
        show("deferred: late data", accepted.recv(10))
    for seconds in (-1, 0, 1, 2, 4, 8, 100, 1000000):
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, seconds)
        show(f"deferred for {seconds}", listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT))
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, 0)
    client = socket.create_connection(listener.getsockname())
    show("no longer deferred", events(listener, select.POLLIN, 30000))


def lingering():
    """The port of a closed connection whose peer does not end is free after TCP_LINGER2."""
    for before in (True, False):
        listener, client = socket.socket(), socket.socket()
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        if before:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_LINGER2, 1)
        # No other connection has such a port. Connections to different addresses may share one.
        client.bind(("127.0.0.1", 0))
        client.connect(listener.getsockname())
        server = listener.accept()[0]
        if not before:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_LINGER2, 1)
        show("lingers", client.getsockopt(socket.IPPROTO_TCP, socket.TCP_LINGER2))
        where = client.getsockname()
        client.close()
        show("lingers", server.recv(1))
        show("lingers", call_of(lambda: socket.socket().bind(where)))
        result, until = "", time.monotonic() + 20
        while result is not None and time.monotonic() < until:
            time.sleep(0.1)
            result = call_of(lambda: socket.socket().bind(where))
        show("lingers no longer", result)


deferred()
lingering()
