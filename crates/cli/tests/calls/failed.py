# Connections that have failed. This file is appended to calls.py and uses its functions.


def all_events(sock):
    """Waits until the socket has hung up. Returns its events as poll and epoll report them, and whether select finds it ready."""
    while not (events(sock, select.POLLIN | select.POLLOUT, 30000)[0] & select.POLLHUP):
        pass
    instance = select.epoll()
    instance.register(sock, select.EPOLLIN | select.EPOLLOUT)
    epolled = [found for _, found in instance.poll(30)]
    instance.close()
    selected = [len(ready) for ready in select.select([sock], [sock], [sock], 0)]
    return events(sock), epolled, selected, events(sock, 0)


def resets():
    """The events of a connection that its peer has reset, until the program reads the error and afterwards."""
    for read in ("SO_ERROR", "recv", "send"):
        listener, client, server = pair()
        server.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        server.sendall(b"before")
        show(f"{read}: bytes", events(client, select.POLLIN, 30000))
        server.close()
        show(f"{read}: reset", all_events(client))
        if read == "SO_ERROR":
            show(f"{read}: reset", client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
        elif read == "recv":
            show(f"{read}: bytes", client.recv(10))
            show(f"{read}: reset", all_events(client))
            show(f"{read}: reset", lambda: client.recv(10))
        else:
            show(f"{read}: reset", lambda: client.send(b"x", NOSIGNAL))
        show(f"{read}: error read", all_events(client))
    listener, client, server = pair()
    for sock in (client, server):
        sock.shutdown(socket.SHUT_WR)
    show("both ends have finished", all_events(client))


def attempts():
    """Connects after a refused one, whose error the program has read before. Also on bound sockets, which keep their address."""
    listener, refuses = socket.socket(), socket.socket()
    for sock in (listener, refuses):
        sock.bind(("127.0.0.1", 0))
    listener.listen()
    where, refused = address(listener.getsockname()[1]), address(refuses.getsockname()[1])
    free = socket.socket()
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
    free.close()
    for bound in (None, ("127.0.0.1", port), ("0.0.0.0", port)):
        for read in ("SO_ERROR", "recv", "connect"):
            what = f"attempt of a socket bound to {bound and bound[0]}, {read}"
            sock = socket.socket()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if bound:
                sock.bind(bound)
            before = sock.getsockname()
            sock.setblocking(False)
            show(what, call("connect", sock.fileno(), refused, 16))
            show(what, refused_events(sock))
            if read == "SO_ERROR":
                show(what, sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
            elif read == "recv":
                show(what, lambda: sock.recv(1))
                show(what, lambda: sock.recv(1))
            sock.setblocking(True)
            show(what, [call("connect", sock.fileno(), refused, 16) for _ in range(2)])
            show(f"{what}: keeps its port", not bound or sock.getsockname()[1] == before[1])
            show(what, call("connect", sock.fileno(), where, 16))
            show(what, not bound or sock.getsockname()[1] == before[1])
            accepted = listener.accept()[0]
            show(what, accepted.getpeername() == sock.getsockname())
            # End without TIME-WAIT, because the next socket gets the same address.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.close()
            show(what, lambda: accepted.recv(1))
    bound, thief = socket.socket(), socket.socket()
    bound.bind(("127.0.0.1", 0))
    port = bound.getsockname()
    show("refused", call("connect", bound.fileno(), refused, 16))
    show("port of a refused socket", lambda: thief.bind(port))
    show("refused again", call("connect", bound.fileno(), refused, 16))
    show("connects after it", call("connect", bound.fileno(), where, 16))


def mismatches():
    """Addresses of the other family, with port 0 for TCP, which is refused later."""
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        for bound, other in (("::1", "::ffff:127.0.0.1"), ("::ffff:127.0.0.1", "::1")):
            sock = socket.socket(socket.AF_INET6, kind)
            sock.bind((bound, 0))
            show(f"{bound} connects to {other}", lambda: sock.connect((other, 0)))
            if kind == socket.SOCK_DGRAM:
                show(f"{bound} sends to {other}", lambda: sock.sendto(b"x", (other, 9)))
    receivers = {}
    for host in ("::1", "127.0.0.1"):
        receivers[host] = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM)
        receivers[host].bind((host, 0))
        receivers[host].settimeout(10)
    for near, far, mapped in (("::1", "127.0.0.1", "::ffff:127.0.0.1"), ("127.0.0.1", "::1", "::1")):
        sock = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
        sock.connect(("::ffff:" + near if "." in near else near, receivers[near].getsockname()[1]))
        show(f"connected to {near} sends to {far}", lambda: sock.sendto(b"x", (mapped, receivers[far].getsockname()[1])))
        if far == "127.0.0.1":
            show("source", lambda: receivers[far].recvfrom(10)[1] == (far, sock.getsockname()[1]))


def stored():
    """Options that are stored, and their values at the ends of their ranges."""
    listener, client, server = pair()
    receiver = socket.socket(type=socket.SOCK_DGRAM)
    receiver.bind(("127.0.0.1", 0))
    discover, multicast_ttl, multicast_loop = 10, socket.IP_MULTICAST_TTL, socket.IP_MULTICAST_LOOP
    for name in (discover, multicast_ttl, multicast_loop):
        for kind, sock in (("TCP", client), ("UDP", receiver)):
            show(f"{kind} option {name}", lambda: sock.getsockopt(socket.IPPROTO_IP, name))
            if name == discover:
                for value in (-1, 6, 5, 0):
                    show(f"{kind} discover {value}", lambda: sock.setsockopt(socket.IPPROTO_IP, discover, value))
                    show(f"{kind} discover", lambda: sock.getsockopt(socket.IPPROTO_IP, discover))
    for name in (multicast_ttl, multicast_loop):
        for value in (-2, -1, 0, 7, 255, 256):
            show(f"UDP option {name} to {value}", lambda: receiver.setsockopt(socket.IPPROTO_IP, name, value))
            show(f"UDP option {name}", lambda: receiver.getsockopt(socket.IPPROTO_IP, name))
    for value in (0, 1):
        show("quick", lambda: client.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, value))
        show("quick", lambda: client.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK))
    for value in (1, 5000):
        show("clamp", lambda: client.setsockopt(socket.IPPROTO_TCP, socket.TCP_WINDOW_CLAMP, value))
        show("clamp", lambda: client.getsockopt(socket.IPPROTO_TCP, socket.TCP_WINDOW_CLAMP))


resets()
attempts()
mismatches()
stored()
