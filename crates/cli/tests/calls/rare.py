# Further calls, which few programs make. This file is appended to calls.py and uses its functions.

import fcntl
import tempfile

# The number of the system call clone.
CLONE = 56 if os.uname().machine == "x86_64" else 220


def discards():
    """Receives with MSG_TRUNC, which take bytes from a TCP socket and store them nowhere."""
    listener, client, server = pair()
    fd, room = client.fileno(), ctypes.create_string_buffer(64)
    part = Many.Part(ctypes.cast(room, ctypes.c_char_p), 64)
    message = Many.Message(parts=ctypes.pointer(part), count=1)
    for name, receive in (
        ("recv", lambda flags: call("recv", fd, None, 4, socket.MSG_TRUNC | flags)),
        ("recvfrom", lambda flags: call("recvfrom", fd, None, 4, socket.MSG_TRUNC | flags, None, None)),
        ("recvmsg", lambda flags: call("recvmsg", fd, ctypes.byref(message), socket.MSG_TRUNC | flags)),
    ):
        show(f"{name} discards nothing", receive(NOWAIT))
        server.sendall(b"first")
        show(f"{name} discards", events(client, select.POLLIN, 30000))
        show(f"{name} peeks", receive(socket.MSG_PEEK))
        show(f"{name} discards", receive(0))
        show(f"{name} stores nothing", room.raw == bytes(64))
        server.sendall(b", next")
        show(f"{name} leaves", client.recv(1 if name != "recvmsg" else 0) + client.recv(6, socket.MSG_WAITALL))
    source, length = ctypes.create_string_buffer(16), ctypes.c_uint(16)
    show("recvfrom discards nothing", call("recvfrom", fd, None, 4, socket.MSG_TRUNC | NOWAIT, source, ctypes.byref(length)))
    show("recvfrom keeps the length", length.value)
    message.name, message.name_len = ctypes.addressof(source), 16
    message.control, message.control_len, message.flags = ctypes.addressof(room), 64, 7
    show("recvmsg discards nothing", call("recvmsg", fd, ctypes.byref(message), socket.MSG_TRUNC | NOWAIT))
    show("recvmsg keeps the header", (message.name_len, message.control_len, message.flags))
    server.sendall(b"first")
    show("discards", events(client, select.POLLIN, 30000))
    many = (Many.Part * 2000)()
    for name, parts, count in (("many", ctypes.addressof(many), 2000), ("unreadable", 16, 1), ("long", ctypes.addressof(many), 1)):
        many[0].len = 2**63 if name == "long" else 0
        refused = Many.Message(parts=ctypes.cast(parts, ctypes.POINTER(Many.Part)), count=count)
        show(f"recvmsg refuses {name} buffers", call("recvmsg", fd, ctypes.byref(refused), socket.MSG_TRUNC | NOWAIT))
    show("recvfrom discards", call("recvfrom", fd, None, 4, socket.MSG_TRUNC, source, ctypes.byref(length)))
    show("recvfrom stores the length", length.value)
    show("recvmsg discards", call("recvmsg", fd, ctypes.byref(message), socket.MSG_TRUNC))
    show("recvmsg stores the header", (message.name_len, message.control_len, message.flags))
    for _ in range(40):
        server.sendall(b"x")
        client.recv(1)
    server.sendall(bytes(100000))
    show("discards much", call("recv", fd, None, 100000, socket.MSG_TRUNC | socket.MSG_WAITALL))
    server.sendall(b"end")
    server.close()
    show("discards the end", events(client, select.POLLIN | select.POLLRDHUP, 30000) != [])
    show("discards the end", call("recv", fd, None, 3, socket.MSG_TRUNC | socket.MSG_WAITALL))
    show("discards the end", call("recv", fd, None, 10, socket.MSG_TRUNC))


def fast_opens():
    """Sends that connect. Without a cookie of the server, they connect as usual."""
    fast = socket.MSG_FASTOPEN
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    where = listener.getsockname()
    client = socket.socket()
    show("fast open refused", lambda: client.sendto(b"x", fast, where))
    listener.listen()
    for name, send in (
        ("sendto", lambda sock: sock.sendto(b"fast", fast | NOSIGNAL, where)),
        ("sendmsg", lambda sock: sock.sendmsg([b"fa", b"st"], [], fast | NOSIGNAL, where)),
    ):
        client = socket.socket()
        show(f"fast open {name}", lambda: send(client))
        kept, server = client, listener.accept()[0]
        show(f"fast open {name}", server.recv(10))
        show(f"fast open {name} again", lambda: send(client))
        show(f"fast open {name} peer", client.getpeername() == where)
        client = socket.socket()
        client.setblocking(False)
        show(f"fast open {name} without blocking", lambda: send(client))
        show(f"fast open {name} without blocking", events(client, select.POLLOUT, 30000))
        show(f"fast open {name} without blocking", client.send(b"sent later"))
        show(f"fast open {name} without blocking", listener.accept()[0].recv(10, socket.MSG_WAITALL))
    client = socket.socket()
    show("fast open without address", lambda: client.send(b"x", fast | NOSIGNAL))
    show("fast open connected", call("sendto", fd := kept.fileno(), b"x", 1, fast | NOSIGNAL, None, 0))
    show("fast open connected", call("send", fd, b"x", 1, fast | NOSIGNAL))
    show("fast open connected", call("sendto", fd, b"x", 1, fast | NOSIGNAL, address(family=47), 16))
    show("fast open connected", call("sendto", fd, b"x", 1, fast | NOSIGNAL, address(family=0), 16))
    show("fast open other family", call("sendto", client.fileno(), b"x", 1, fast | NOSIGNAL, address(family=47), 16))
    for flags in (fast | NOSIGNAL, fast | NOSIGNAL | socket.MSG_DONTWAIT):
        client = socket.socket()
        client.bind(("127.0.0.1", 0))
        show("fast open bound", lambda: client.sendto(b"x", flags, where))
        show("fast open bound", events(client, select.POLLOUT, 30000))
        show("fast open bound", client.send(b"y"))
        listener.accept()[0].recv(1, socket.MSG_WAITALL)


def ends():
    """Options of sockets whose connection has ended, and how a refused connection is reported."""
    listener, client, server = pair()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    server.close()
    show("reset", [found & select.POLLHUP for found in events(client, select.POLLIN, 30000)])
    for name in (socket.TCP_NODELAY, socket.TCP_KEEPIDLE, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT):
        show("reset option", lambda: client.getsockopt(socket.IPPROTO_TCP, name))
    show("reset state", client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)[0])
    show("reset set", lambda: client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1))
    show("reset ToS", lambda: client.getsockopt(socket.IPPROTO_IP, socket.IP_TOS))
    show("reset unknown", call("getsockopt", client.fileno(), 6, 99, ctypes.create_string_buffer(8), number(4)))

    free = socket.socket()
    free.bind(("127.0.0.1", 0))
    nobody = free.getsockname()
    free.close()
    found = set()
    for _ in range(50):
        client = socket.socket()
        client.setblocking(False)
        client.connect_ex(nobody)
        events(client, select.POLLOUT | select.POLLIN, 30000)
        # The kernel closes the engine's end of the pair in steps: first the client's end has hung up, then it has its
        # error, and then it is writable. A poll between two of them finds only the first.
        time.sleep(0.001)
        found.update(one & ~select.POLLOUT for one in events(client, select.POLLOUT | select.POLLIN))
    show("refused events", found)


def inherited():
    """Options that an accepted socket has from its listener."""
    listener = socket.socket()
    options = (
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 7)),
        (socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 70, 0)),
        (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
        (socket.IPPROTO_IP, socket.IP_TOS, 0x20),
        (socket.IPPROTO_IP, socket.IP_TTL, 33),
    )
    for level, name, value in options:
        listener.setsockopt(level, name, value)
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    client = socket.create_connection(listener.getsockname())
    for kind, sock in (("listener", listener), ("accepted", listener.accept()[0])):
        for level, name, _ in options:
            show(f"{kind} {level},{name}", sock.getsockopt(level, name, 8)[:8])
    # The ioctl of an internet socket that asks for an interface's address.
    request = struct.pack("16s24s", b"lo", b"")
    show("interface", lambda: fcntl.ioctl(client, 0x8915, request)[20:24])


def sources():
    """The addresses that sockets get without bind."""
    listener = socket.socket()
    listener.bind(("0.0.0.0", 0))
    listener.listen()
    for host in ("127.0.0.1", "127.5.6.7", "0.0.0.0"):
        client = socket.create_connection((host, listener.getsockname()[1]))
        server, where = listener.accept()
        show(f"source for {host}", (where[0], server.getsockname()[0], client.getpeername()[0], client.getsockname()[0]))
    receiver, sender = socket.socket(type=socket.SOCK_DGRAM), socket.socket(type=socket.SOCK_DGRAM)
    receiver.bind(("127.5.6.7", 0))
    sender.sendto(b"x", receiver.getsockname())
    show("source of a datagram", lambda: receiver.recvfrom(8)[1][0])


def roots():
    """A process with another root directory, where the engine's control socket has no path."""
    folder = tempfile.mkdtemp()
    for kind, fork in (("fork", os.fork), ("clone", lambda: C.syscall(CLONE, signal.SIGCHLD, 0, 0, 0, 0))):
        before = socket.socket()
        before.bind(("127.0.0.1", 0))
        inner, outer = os.pipe()
        child = fork()
        if child == 0:
            signal.alarm(30)
            os.chroot(folder)
            before.listen()
            listener = socket.socket()
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            os.write(outer, str(listener.getsockname()[1]).encode())
            for one in (listener, before):
                one.accept()[0].sendall(b"from another root")
            os._exit(0)
        where = ("127.0.0.1", int(os.read(inner, 10)))
        show(f"{kind}, then chroot", lambda: socket.create_connection(where).recv(20))
        show(f"{kind}, then chroot", lambda: socket.create_connection(before.getsockname()).recv(20))
        show(f"{kind}, then chroot", os.waitpid(child, 0)[1])
    os.rmdir(folder)


def unaccepted():
    """A listener that closes resets the connections that nobody has accepted, and no other ones."""
    for closes in ("close", "shutdown", "exit"):
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        clients = [socket.create_connection(listener.getsockname()) for _ in range(4)]
        for client in clients:
            client.settimeout(10)
        if closes == "exit":
            child = os.fork()
            if child == 0:
                kept = [listener.accept()[0] for _ in range(2)]
                os._exit(0)
            listener.close()
            os.waitpid(child, 0)
        else:
            kept = [listener.accept()[0] for _ in range(2)]
            listener.shutdown(socket.SHUT_RDWR) if closes == "shutdown" else listener.close()
            show(f"{closes}: accepted", lambda: clients[0].send(b"x") + len(kept[0].recv(1)))
            for sock in kept:
                sock.close()
        for index, client in enumerate(clients):
            show(f"{closes}: connection {index}", lambda: client.recv(1))
        listener.close()


def rebinds():
    """UDP sockets that disconnect and are bound again."""
    for where in (None, ("127.0.0.1", 0), ("0.0.0.0", 0)):
        receiver, sock = socket.socket(type=socket.SOCK_DGRAM), socket.socket(type=socket.SOCK_DGRAM)
        receiver.bind(("127.0.0.1", 0))
        receiver.settimeout(10)
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, 9)
        if where:
            sock.bind(where)
        sock.connect(receiver.getsockname())
        port = sock.getsockname()[1]
        show(f"bind of {where}: bind while connected", lambda: sock.bind(("127.0.0.1", port)))
        # connect with an address of family AF_UNSPEC.
        show(f"bind of {where}: disconnect", call("connect", sock.fileno(), bytes(16), 16))
        show(f"bind of {where}: disconnected", sock.getsockname())
        show(f"bind of {where}: bind again", lambda: sock.bind(("127.0.0.1", port)))
        show(f"bind of {where}: bound", sock.getsockname() == ("127.0.0.1", port))
        show(f"bind of {where}: TTL", sock.getsockopt(socket.IPPROTO_IP, socket.IP_TTL))
        show(f"bind of {where}: bind a third time", lambda: sock.bind(("127.0.0.1", 0)))
        sock.sendto(b"x", receiver.getsockname())
        show(f"bind of {where}: datagram", lambda: receiver.recvfrom(8)[1] == ("127.0.0.1", port))
    bound = socket.socket(type=socket.SOCK_DGRAM)
    bound.bind(("127.0.0.1", port + 1 if port < 60000 else port - 1))
    bound.connect(receiver.getsockname())
    call("connect", bound.fileno(), bytes(16), 16)
    show("bind after a disconnect with a chosen port", lambda: bound.bind(("127.0.0.1", 0)))


def ranges():
    """Values at the ends of the ranges of options, and what the options are then."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    client = socket.create_connection(listener.getsockname())
    values = (-2, -1, 0, 1, 87, 88, 127, 128, 255, 256, 32767, 32768, 100000)
    names = "KEEPIDLE KEEPINTVL KEEPCNT SYNCNT USER_TIMEOUT LINGER2".split()
    options = [(socket.IPPROTO_TCP, getattr(socket, f"TCP_{name}")) for name in names]
    for level, name in options + [(socket.IPPROTO_IP, socket.IP_TTL)]:
        for value in values:
            show(f"set {level},{name} to {value}", lambda: client.setsockopt(level, name, value))
            show(f"get {level},{name}", client.getsockopt(level, name))
    for value in values:
        show(f"MSS of {value}", lambda: client.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, value))
        show(f"window of {value}", lambda: client.setsockopt(socket.IPPROTO_TCP, socket.TCP_WINDOW_CLAMP, value))
    for name in (b"cubic", b"nonsense", b"", b"cubic\0and more"):
        show(f"congestion {name}", lambda: client.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name))
        show("congestion", lambda: client.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 20).rstrip(b"\0"))


def refused_events(sock):
    """Waits until the socket is refused, and returns its events.

    A refused socket is writable. When the engine closes its end of the pair, the kernel first reports the end, and then frees the bytes that kept the
    socket from being writable, so the first look may come between the two.
    """
    found, until = [], time.monotonic() + 30
    while not (found and found[0] & select.POLLOUT) and time.monotonic() < until:
        found = events(sock, select.POLLOUT, 1000)
    return found


def connects_again():
    """Connects of a socket that is already connected, or whose connection was refused."""
    listener, client, server = pair()
    where, refuses = address(listener.getsockname()[1]), socket.socket()
    refuses.bind(("127.0.0.1", 0))
    refused = address(refuses.getsockname()[1])
    show("connect again", call("connect", client.fileno(), where, 16))
    for waits in (False, True):
        sock = socket.socket()
        sock.setblocking(False)
        show("connect", call("connect", sock.fileno(), where, 16))
        show("connect ends", events(sock, select.POLLOUT, 30000))
        sock.setblocking(waits)
        show("connect once more", [call("connect", sock.fileno(), where, 16) for _ in range(2)])
        sock.close()
        accepted = listener.accept()[0]
        show("connect of an accepted connection", call("connect", accepted.fileno(), where, 16))
        sock = socket.socket()
        sock.setblocking(False)
        show("connect refused", call("connect", sock.fileno(), refused, 16))
        show("connect refused", refused_events(sock))
        sock.setblocking(waits)
        show("connect refused", call("connect", sock.fileno(), refused, 16))
        sock.setblocking(False)
        show("connect after it", call("connect", sock.fileno(), where, 16))
        show("connect after it", events(sock, select.POLLOUT, 30000))
        show("connect after it", [call("connect", sock.fileno(), where, 16) for _ in range(2)])


def families():
    """Addresses of another family than the one to which the socket is bound."""
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        sock = socket.socket(socket.AF_INET6, kind)
        sock.bind(("::1", 0))
        show("::1 connects to a mapped address", lambda: sock.connect(("::ffff:127.0.0.1", 9)))
        if kind == socket.SOCK_DGRAM:
            show("::1 sends to a mapped address", lambda: sock.sendto(b"x", ("::ffff:127.0.0.1", 9)))
    sock = socket.socket(socket.AF_INET6)
    sock.bind(("::ffff:127.0.0.1", 0))
    show("mapped address connects to ::1", lambda: sock.connect(("::1", 9)))


def datagram_ends():
    """UDP sockets that are connected to port 0, and those that are shut down."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    show("UDP connect to port 0", call("connect", sock.fileno(), address(0), 16))
    show("UDP peer of port 0", lambda: sock.getpeername())
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind(("127.0.0.1", 0))
    sock.connect(sock.getsockname())
    show("UDP shutdown", lambda: sock.shutdown(socket.SHUT_RD))
    show("UDP shutdown receives", lambda: sock.recv(10, NOWAIT))
    show("UDP shutdown waits", lambda: sock.recv(10))
    sock.setblocking(False)
    show("UDP shutdown receives", lambda: sock.recv(10))


def ports_in_use():
    """Binds without SO_REUSEADDR to the port of a connection, also of one in TIME-WAIT."""
    for open_still in (True, False):
        listener, client, server = pair()
        where, other = listener.getsockname(), client.getsockname()
        listener.close()
        if not open_still:
            server.close()
            show("port in use ends", client.recv(1))
            client.close()
        show("port in use", [call_of(lambda: socket.socket().bind(port)) for port in (where, other)])
        show("port in use at all addresses", call_of(lambda: socket.socket().bind(("0.0.0.0", where[1]))))


def call_of(function):
    try:
        return function()
    except OSError as error:
        return errno.errorcode[error.errno]


def after_the_end():
    """Options after the peer has reset a connection that it had closed."""
    listener, client, server = pair()
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    server.close()
    show("end", events(client, select.POLLIN, 30000))
    show("end", client.send(b"x"))
    show("end", events(client, 0, 30000) != [])
    show("option after the end", client.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))


def shutdowns():
    """Shutdowns of sockets that connect, and of the receiving direction of a connection."""
    for how in (socket.SHUT_RD, socket.SHUT_WR, socket.SHUT_RDWR):
        sock = socket.socket()
        sock.setblocking(False)
        # No host of this test has the address, so the attempt goes on.
        show("connecting", sock.connect_ex(("10.79.0.77", 9)))
        show(f"shutdown {how} while connecting", lambda: sock.shutdown(how))
        show(f"shutdown {how} while connecting: peer", lambda: sock.getpeername())
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        sock.setblocking(True)
        # The kernel's first connect may still report the end of the attempt.
        for _ in range(2):
            if sock.connect_ex(listener.getsockname()) == 0:
                break
        show(f"shutdown {how} while connecting: send", lambda: sock.send(b"x"))
        show(f"shutdown {how} while connecting: send", lambda: listener.accept()[0].recv(1))
    listener, client, server = pair()
    server.sendall(b"before")
    show("shut down to receive", events(client, select.POLLIN, 30000))
    show("shut down to receive", lambda: client.shutdown(socket.SHUT_RD))
    show("shut down to receive", [client.recv(10), client.recv(10)])
    show("shut down to receive", events(client, select.POLLIN | select.POLLRDHUP, 30000))
    show("shut down to receive", lambda: client.send(b"x"))
    show("shut down to receive", lambda: server.recv(10))


def many_wait():
    """A negative backlog is the largest one, and so is a too large one."""
    for backlog in (-1, 1 << 20):
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        show(f"backlog {backlog}", call("listen", listener.fileno(), backlog))
        show(f"backlog {backlog}", len([socket.create_connection(listener.getsockname(), 30) for _ in range(100)]))


def stamps():
    """The time of the last packet, which the kernel's TCP sockets do not record."""
    listener, client, server = pair()
    for request in (0x8906, 0x8907, 0x80108906, 0x80108907):
        server.sendall(b"x")
        client.recv(1)
        unused = socket.socket(type=socket.SOCK_DGRAM)
        unused.bind(("127.0.0.1", 0))
        for kind, sock in (("connection", client), ("listener", listener), ("UDP", unused)):
            show(f"stamp of {kind}", call("ioctl", sock.fileno(), ctypes.c_ulong(request), ctypes.create_string_buffer(16)))


def full_backlogs():
    """A listener holds one connection more than its backlog. The peer of a further one repeats its SYN."""
    for backlog in (0, 1, 3):
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        listener.listen(backlog)
        for _ in range(2):
            clients = [socket.create_connection(listener.getsockname(), 30) for _ in range(backlog + 1)]
            late = socket.socket()
            late.setblocking(False)
            late.connect_ex(listener.getsockname())
            show(f"backlog {backlog} is full", events(late, select.POLLOUT, 300))
            show(f"backlog {backlog} gives the oldest", listener.accept()[0].getpeername() == clients[0].getsockname())
            show(f"backlog {backlog} has room", events(late, select.POLLOUT, 30000))
            for client in clients[1:] + [late]:
                show(f"backlog {backlog} keeps the order", listener.accept()[0].getpeername() == client.getsockname())


def any_address():
    """A UDP socket that connects to the address 0.0.0.0."""
    receiver = socket.socket(type=socket.SOCK_DGRAM)
    receiver.bind(("127.0.0.1", 0))
    receiver.settimeout(10)
    sock = socket.socket(type=socket.SOCK_DGRAM)
    show("UDP connect to any address", lambda: sock.connect(("0.0.0.0", receiver.getsockname()[1])))
    show("UDP peer of any address", lambda: sock.getpeername() == receiver.getsockname())
    show("UDP sends to any address", lambda: sock.send(b"x"))
    show("UDP receives from any address", lambda: receiver.recv(10))


unaccepted()
rebinds()
ranges()
discards()
fast_opens()
ends()
inherited()
sources()
connects_again()
families()
datagram_ends()
ports_in_use()
after_the_end()
shutdowns()
many_wait()
full_backlogs()
stamps()
any_address()
roots()
