"""An echo server, and clients that send by every way a program has. Each client checks that the echo is what it sent, in order.

    peer.py serve PORT             prints "ready", then echoes each connection until its end
    peer.py drain PORT             prints "ready", then receives the bytes of one connection after the other
    peer.py bulk PORT              sends 32 MiB to the latter
    peer.py NAME PORT              runs the client NAME, and prints "all right"
    peer.py NAME PORT many         opens many short connections before, so that later ones have slots from the start
"""

import array
import ctypes
import errno
import fcntl
import os
import random
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time

# The address of the server. If it is that of another engine, only clients of the role `serve` work.
ADDRESS = os.environ.get("INLANE_TEST_ADDRESS", "127.0.0.1")
libc = ctypes.CDLL(None, use_errno=True)


def serve(port):
    server = socket.create_server((ADDRESS, port))
    print("ready", flush=True)
    while True:
        threading.Thread(target=echo, args=(server.accept()[0],), daemon=True).start()


def open_many(port):
    """Opens so many connections that this process and the server have shared memory before further ones."""
    for _ in range(40):
        with socket.create_connection((ADDRESS, port)) as connection:
            connection.sendall(b"x")
            assert connection.recv(1) == b"x"


def short(port):
    """Opens connections that send one byte each."""
    for _ in range(5):
        open_many(port)


CLIENT = """
import socket, sys
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])))
connection.sendall(b"waiting...")
connection.recv(1)
"""


def queued(port):
    """Accepts connections whose first bytes have arrived before. Only one connection exists at a time."""
    server = socket.create_server((ADDRESS, port))
    epoll = select.epoll()
    for _ in range(48):
        client = subprocess.Popen([sys.executable, "-c", CLIENT, ADDRESS, str(port)])
        assert select.select([server], [], [], 60)[0]
        time.sleep(0.001)
        connection = server.accept()[0]
        epoll.register(connection, select.EPOLLIN)
        assert epoll.poll(60) == [(connection.fileno(), select.EPOLLIN)]
        assert connection.recv(100) == b"waiting..."
        connection.close()
        assert client.wait() == 0


def answer(port):
    """Echoes messages of a connection, without waits in the kernel. Answers the last one and closes at once."""
    open_server = socket.create_server((ADDRESS, port))
    print("ready", flush=True)
    for _ in range(40):
        connection = open_server.accept()[0]
        message = None
        while message != b"last":
            try:
                message = connection.recv(4, socket.MSG_DONTWAIT)
                connection.sendall(message if message != b"last" else b"answer" * 100)
            except BlockingIOError:
                pass
            if message == b"":
                break
        connection.close()
        if message == b"last":
            print("closed", flush=True)


def question(port):
    """Sends messages for some time, and the last one when its input ends. Reads all of the answer."""
    for _ in range(20):
        socket.create_connection((ADDRESS, port)).close()
    # The server then has accepted these, and gets a slot for the next one from the start.
    time.sleep(0.1)
    connection = socket.create_connection((ADDRESS, port))
    end = time.monotonic() + 0.1
    while time.monotonic() < end:
        connection.sendall(b"next")
        assert connection.recv(4) == b"next"
    print("warm", flush=True)
    sys.stdin.read()
    connection.sendall(b"last")
    answer = b""
    while part := connection.recv(1000):
        answer += part
    assert answer == b"answer" * 100, answer


def drain(port):
    server = socket.create_server((ADDRESS, port))
    print("ready", flush=True)
    while True:
        connection = server.accept()[0]
        while connection.recv(1 << 20):
            pass


def bulk(port):
    """Sends more than any buffer holds in large blocking calls. Ends when its input ends."""
    connection = socket.create_connection((ADDRESS, port))
    for _ in range(128):
        connection.sendall(bytes(256 << 10))
    print("sent", flush=True)
    sys.stdin.read()
    os._exit(0)


def echo(connection):
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            while data := connection.recv(100_000):
                connection.sendall(data)
        except OSError:
            pass


class Client:
    """A connection to the server. Sends numbered bytes, and checks the echo."""

    def __init__(self, port):
        self.socket = socket.create_connection((ADDRESS, port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.random = random.Random(port)
        self.sent = bytearray()
        self.checked = 0
        self.warm()

    def next(self, count):
        """Returns the next bytes to send."""
        data = self.random.randbytes(count)
        self.sent += data
        return data

    def check(self, count=None):
        """Receives `count` bytes, or all that are missing, and checks them."""
        count = len(self.sent) - self.checked if count is None else count
        while count > 0:
            data = self.socket.recv(count)
            assert data, "the connection has ended early"
            assert data == self.sent[self.checked:self.checked + len(data)], f"wrong bytes from {self.checked}"
            self.checked += len(data)
            count -= len(data)

    def warm(self):
        """Exchanges so many short messages that both programs use shared memory."""
        for _ in range(60):
            self.socket.sendall(self.next(50))
            self.check()

    def finish(self):
        self.check()
        self.socket.shutdown(socket.SHUT_WR)
        assert self.socket.recv(1) == b"", "bytes that were not sent"
        self.socket.close()


def ways(client):
    """Returns functions that send bytes on the client's connection, by all ways that the library sees or does not see."""
    connection = client.socket
    fd = connection.fileno()
    duplicate = connection.dup()
    file = tempfile.TemporaryFile()
    reader, writer = os.pipe()

    def from_file(data):
        file.seek(0)
        file.truncate()
        file.write(data)
        file.flush()
        done = 0
        while done < len(data):
            done += os.sendfile(fd, file.fileno(), done, len(data) - done)

    def from_pipe(data):
        data = data[:60_000]
        os.write(writer, data)
        done = 0
        while done < len(data):
            done += os.splice(reader, fd, len(data) - done)
        return len(data)

    def parts(data):
        middle = len(data) // 2
        return [data[:middle], data[middle:]]

    def with_stdio(data):
        stream = libc_fdopen(os.dup(fd))
        assert libc.fwrite(data, 1, len(data), stream) == len(data)
        assert libc.fclose(stream) == 0

    def with_print(data):
        """Sends up to eight bytes. The arguments lie in registers and on the stack."""
        data = data[:8]
        assert libc.dprintf(fd, b"%c" * len(data), *data) == len(data)
        assert libc.dprintf(writer, b"%d %.2f %s", 7, ctypes.c_double(2.5), b"text") == 11
        assert os.read(reader, 100) == b"7 2.50 text"
        return len(data)

    return [
        connection.send,
        connection.send,
        connection.send,
        with_print,
        lambda data: os.write(fd, data),
        lambda data: os.writev(fd, parts(data)),
        lambda data: connection.sendmsg(parts(data)),
        duplicate.send,
        connection.sendall,
        from_file,
        from_pipe,
        with_stdio,
    ]


def libc_fdopen(fd):
    libc.fdopen.restype = ctypes.c_void_p
    libc.fwrite.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p]
    libc.fclose.argtypes = [ctypes.c_void_p]
    return libc.fdopen(fd, b"w")


def mixed(port):
    client = Client(port)
    functions = ways(client)
    choose = random.Random(1)
    reader = threading.Thread(target=read_all, args=(client, done := threading.Event()))
    reader.start()
    for _ in range(200):
        data = client.random.randbytes(choose.choice([1, 7, 100, 1000, 1000, 5000, 40_000]))
        way = choose.choice(functions)
        # The reader compares with `sent`, so it must hold the bytes before they are echoed.
        start = len(client.sent)
        client.sent += data
        count = way(data)
        while count is not None and count < len(data):
            count += client.socket.send(data[count:])
        assert len(client.sent) == start + len(data)
    done.set()
    reader.join()
    client.finish()


def read_all(client, done):
    while not done.is_set() or client.checked < len(client.sent):
        if select.select([client.socket], [], [], 0.1)[0]:
            data = client.socket.recv(100_000)
            assert data == client.sent[client.checked:client.checked + len(data)], f"wrong bytes from {client.checked}"
            client.checked += len(data)


def forked(port):
    client = Client(port)
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        # Sends a byte string for each byte that the parent writes.
        copies = 0
        while theirs.recv(1) == b"x":
            client.socket.sendall(client.next(300))
            copies += 1
            theirs.send(b"y")
            client.next(300)
            if copies == 30:
                os._exit(0)
    for _ in range(30):
        client.next(300)
        ours.send(b"x")
        assert ours.recv(1) == b"y"
        client.socket.sendall(client.next(300))
        client.check()
    assert os.waitpid(child, 0)[1] == 0
    client.finish()


def spawned(port):
    client = Client(port)
    fd = client.socket.fileno()
    for step in range(10):
        client.socket.sendall(client.next(100))
        text = client.next(20).hex()
        del client.sent[-20:]
        client.sent += text.encode()
        if step % 2 == 0:
            subprocess.run(["/bin/sh", "-c", f"printf {text} >&{fd}"], pass_fds=[fd], check=True)
        else:
            os.set_inheritable(fd, True)
            assert libc.system(f"printf {text} >&{fd}".encode()) == 0
        client.socket.sendall(client.next(100))
        client.check()
    client.finish()


def passed(port):
    client = Client(port)
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        client.socket.close()
        _, control, _, _ = theirs.recvmsg(1, 100)
        fds = array.array("i")
        fds.frombytes(control[0][2][:4])
        for _ in range(40):
            data = theirs.recv(1000)
            os.write(fds[0], data)
            theirs.send(b"y")
        os._exit(0)
    fds = array.array("i", [client.socket.fileno()])
    ours.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
    for _ in range(40):
        client.socket.sendall(client.next(10))
        ours.send(client.next(500))
        assert ours.recv(1) == b"y"
        client.socket.sendall(client.next(10))
        client.check()
    assert os.waitpid(child, 0)[1] == 0
    client.finish()


def reused(port):
    for replaces in [False, True]:
        client = Client(port)
        fd = client.socket.detach()
        observer = socket.socket(fileno=os.dup(fd)) if replaces else None
        with tempfile.TemporaryFile() as file:
            if replaces:
                os.dup2(file.fileno(), fd)
            else:
                os.close(fd)
                assert os.dup2(file.fileno(), fd) == fd
            for _ in range(50):
                assert os.write(fd, b"not for the connection") == 22
            os.lseek(fd, 0, os.SEEK_SET)
            assert os.read(fd, 2000) == b"not for the connection" * 50
            os.close(fd)
        if observer:
            client.socket = observer
            client.warm()
            client.finish()


def reads(port):
    client = Client(port)
    connection = client.socket
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    for count in range(60):
        connection.sendall(client.next(100))
        first = connection.recv(10)
        assert first == client.sent[client.checked:client.checked + len(first)]
        client.checked += len(first)
        rest = len(client.sent) - client.checked
        if count % 4 == 0:
            assert connection.recv(rest, socket.MSG_PEEK)[:1] == client.sent[client.checked:client.checked + 1]
        elif count % 4 == 1:
            data = connection.recv(rest, socket.MSG_WAITALL)
            assert data == client.sent[client.checked:]
            client.checked += len(data)
        elif count % 4 == 2:
            assert select.select([connection], [], [], 0)[0], "the rest of a message is not readable"
            assert poll.poll(0)
        client.check()
    for _ in range(10):
        connection.settimeout(0.02)
        try:
            raise AssertionError(f"received {connection.recv(1)}, which was not sent")
        except TimeoutError:
            connection.settimeout(None)
            client.socket.sendall(client.next(1))
            client.check()
    connection.setblocking(False)
    try:
        raise AssertionError(f"received {connection.recv(1)}, which was not sent")
    except BlockingIOError:
        pass
    connection.setblocking(True)
    client.finish()


def exchanges(port):
    client = Client(port)
    for _ in range(20):
        client.warm()
    client.finish()


class Waiter:
    """Waits for a socket in one of the ways that programs use."""

    def __init__(self, way, connection):
        self.way, self.fd = way, connection.fileno()
        flags = {"edge": select.EPOLLET, "once": select.EPOLLONESHOT}.get(way, 0)
        if way in ("level", "edge", "once", "nested", "copied"):
            self.fd = os.dup(self.fd) if way == "copied" else self.fd
            self.inner = self.outer = select.epoll()
            self.inner.register(self.fd, select.EPOLLIN | flags)
        if way == "nested":
            self.outer = select.epoll()
            self.outer.register(self.inner.fileno(), select.EPOLLIN)
        if way == "poll":
            self.outer = select.poll()
            self.outer.register(self.fd, select.POLLIN)

    def wait(self, seconds):
        """Returns true if the socket is readable within this time. Waits without limit for `None`."""
        if self.way == "select":
            return select.select([self.fd], [], [], seconds)[0] == [self.fd]
        found = self.outer.poll(seconds * 1000 if self.way == "poll" and seconds else seconds)
        assert len(found) <= 1 and all(events == select.POLLIN for _, events in found), found
        return bool(found)

    def rearm(self):
        if self.way == "once":
            self.inner.modify(self.fd, select.EPOLLIN | select.EPOLLONESHOT)

    def close(self):
        if self.way == "copied":
            os.close(self.fd)


def waits(port):
    """Waits for each message without blocking in receives, and checks what the next waits report."""
    client = Client(port)
    client.socket.setblocking(False)
    for way in ("level", "edge", "once", "nested", "copied", "poll", "select"):
        waiter = Waiter(way, client.socket)
        for step in range(100):
            client.socket.send(client.next(100))
            while client.checked < len(client.sent):
                assert waiter.wait(None), way
                if way == "once":
                    assert not waiter.wait(0), "a one-shot registration reports two events"
                elif way != "edge":
                    assert waiter.wait(0), f"{way}: a socket with unread bytes is not readable"
                try:
                    while client.checked < len(client.sent):
                        client.check(1)
                except BlockingIOError:
                    pass
                waiter.rearm()
            if step % 20 == 0:
                start = time.monotonic()
                assert not waiter.wait(0.003) and time.monotonic() - start >= 0.003, way
        waiter.close()
    client.socket.setblocking(True)
    client.finish()


def events(port):
    """Serves several connections from one epoll instance, as event-driven programs do."""
    clients = {}
    epoll = select.epoll()
    for _ in range(6):
        client = Client(port)
        client.socket.setblocking(False)
        clients[client.socket.fileno()] = client
        epoll.register(client.socket, select.EPOLLIN)
    room, count = bytearray(150), array.array("i", [0])

    def into(client, function):
        """Receives by a function that fills `room`, and checks the bytes."""
        length = function()
        assert 0 < length and room[:length] == client.sent[client.checked:client.checked + length]
        client.checked += length

    for step in range(240):
        for client in clients.values():
            client.socket.send(client.next(100))
        while any(client.checked < len(client.sent) for client in clients.values()):
            found = epoll.poll()
            assert len(dict(found)) == len(found), f"a descriptor is in the result twice: {found}"
            for fd, flags in found:
                client = clients[fd]
                assert flags == select.EPOLLIN and client.checked < len(client.sent), (flags, step)
                try:
                    if step % 6 == 0:
                        client.check()
                    elif step % 6 == 1:
                        fcntl.ioctl(fd, termios.FIONREAD, count)
                        assert count[0] <= len(client.sent) - client.checked
                        into(client, lambda: client.socket.recv_into(room))
                    elif step % 6 == 2:
                        into(client, lambda: client.socket.recv_into(room, 10))
                        seen = client.socket.recv(7, socket.MSG_PEEK)
                        assert seen == client.sent[client.checked:client.checked + len(seen)]
                    elif step % 6 == 3:
                        into(client, lambda: os.readv(fd, [memoryview(room)[:3], memoryview(room)[3:50]]))
                    elif step % 6 == 4:
                        into(client, lambda: client.socket.recvmsg_into([room])[0])
                    else:
                        client.check(1)
                except BlockingIOError:
                    pass
        if step % 40 == 0:
            assert not epoll.poll(0)
            for fd in clients:
                epoll.modify(fd, select.EPOLLIN | select.EPOLLOUT)
            found = epoll.poll()
            assert found and all(flags == select.EPOLLOUT for _, flags in found), found
            for fd, client in clients.items():
                epoll.modify(fd, select.EPOLLIN)
                epoll.unregister(fd)
                client.socket.send(client.next(10))
            assert not epoll.poll(0.002), "an event of a removed descriptor"
            for fd in clients:
                epoll.register(fd, select.EPOLLIN)
    # A descriptor that is closed reports nothing, also if a duplicate keeps the connection.
    closed = next(iter(clients.values()))
    duplicate = socket.socket(fileno=os.dup(closed.socket.fileno()))
    epoll.unregister(closed.socket)
    os.close(closed.socket.detach())
    closed.socket = duplicate
    duplicate.send(closed.next(100))
    assert not epoll.poll(0.002)
    for client in clients.values():
        client.socket.setblocking(True)
        client.finish()


def crowded(port):
    """Several threads, and then a forked child, wait for the same connection. Each message wakes one of them."""
    client = Client(port)
    client.socket.setblocking(False)
    epoll = select.epoll()
    epoll.register(client.socket, select.EPOLLIN)
    lock, rounds = threading.Lock(), 300

    def exchange():
        while True:
            epoll.poll()
            with lock:
                try:
                    while client.checked < len(client.sent):
                        client.check(1 + len(client.sent) % 50)
                except BlockingIOError:
                    continue
                if len(client.sent) >= start + 100 * rounds:
                    # The other threads see the last message unread until all have ended.
                    return
                client.socket.send(client.next(100))

    start = len(client.sent)
    client.socket.send(client.next(100))
    waiters = [threading.Thread(target=exchange, daemon=True) for _ in range(3)]
    for waiter in waiters:
        waiter.start()
    while len(client.sent) < start + 100 * rounds or client.checked < len(client.sent):
        time.sleep(0.001)
    child = os.fork()
    if child == 0:
        client.socket.send(b"x" * 100)
        for _ in range(100):
            epoll.poll()
            try:
                if data := client.socket.recv(100):
                    client.socket.send(data)
            except BlockingIOError:
                pass
        client.socket.send(b"end")
        os._exit(0)
    os.waitpid(child, 0)
    received = b""
    while not received.endswith(b"end"):
        epoll.poll()
        try:
            received += client.socket.recv(1000)
        except BlockingIOError:
            pass
    assert not received.strip(b"xend"), received
    client.socket.close()


def reset(_):
    """Connections are reset while received bytes are unread. The program still gets these bytes, and then the error."""
    server = socket.create_server((ADDRESS, 0))
    start, rounds, offers = time.monotonic(), 0, 0
    # On a busy machine, few resets come while bytes are in shared memory.
    while rounds < 20 or offers == 0:
        assert time.monotonic() < start + 120, "no bytes were ever in shared memory"
        rounds += 1
        client = socket.create_connection(server.getsockname())
        peer = server.accept()[0]
        client.setblocking(False)
        epoll = select.epoll()
        epoll.register(client, select.EPOLLIN)

        def receive(count):
            data = b""
            while len(data) < count:
                epoll.poll()
                try:
                    data += client.recv(count - len(data))
                except BlockingIOError:
                    pass
            return data

        for _ in range(40):
            peer.sendall(b"x" * 50)
            assert receive(50) == b"x" * 50
            client.send(b"y" * 50)
            assert peer.recv(50, socket.MSG_WAITALL) == b"y" * 50
        peer.sendall(b"z" * 100)
        epoll.poll()
        offers += has_received()
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.close()
        while not epoll.poll()[0][1] & (select.EPOLLHUP | select.EPOLLERR):
            pass
        assert receive(100) == b"z" * 100
        try:
            raise AssertionError(f"received {client.recv(1)} after a reset")
        except ConnectionResetError:
            pass


def high(_):
    """A listener and a socket that was duplicated before its connect, with descriptors above 1024."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (2048, max(2048, resource.getrlimit(resource.RLIMIT_NOFILE)[1])))
    null = os.open("/dev/null", os.O_RDONLY)
    below = [os.dup(null) for _ in range(1100)]
    server = socket.create_server((ADDRESS, 0))
    assert server.fileno() > 1024
    client = socket.socket()
    duplicate = client.dup()
    client.connect(server.getsockname())
    try:
        raise AssertionError(f"read {os.read(server.fileno(), 100)} from a listener")
    except OSError as error:
        assert error.errno == errno.ENOTCONN, error
    peer = server.accept()[0]
    peer.sendall(b"x")
    assert duplicate.recv(1) == b"x"
    for fd in below:
        os.close(fd)


def connected():
    """Returns a connection and its other end, both on the engine and with shared memory."""
    server = socket.create_server((ADDRESS, 0))
    client = socket.create_connection(server.getsockname())
    peer = server.accept()[0]
    for _ in range(40):
        for sender, receiver in ((client, peer), (peer, client)):
            sender.sendall(b"x" * 50)
            assert receiver.recv(50, socket.MSG_WAITALL) == b"x" * 50
    return client, peer


def unread(_):
    """Sends without waiting to a peer that does not read. The peer then gets exactly the bytes that were sent."""
    # More than all buffers on the way hold.
    data = random.Random(3).randbytes(1 << 20) * 64
    client, peer = connected()
    sent = bytearray()
    try:
        while True:
            sent += data[: client.send(data, socket.MSG_DONTWAIT)]
    except BlockingIOError:
        pass
    client.shutdown(socket.SHUT_WR)
    received = bytearray()
    while part := peer.recv(100_000):
        received += part
    assert received == sent, (len(received), len(sent))


def unregistered(_):
    """A connection that gets the descriptor of a closed, registered one has no events of this registration."""
    epoll = select.epoll()
    for _ in range(10):
        first, peer = connected()
        fd = first.fileno()
        epoll.register(fd, select.EPOLLIN | select.EPOLLOUT)
        assert epoll.poll() == [(fd, select.EPOLLOUT)]
        first.close()
        assert peer.recv(1) == b""
        peer.close()
        second, peer = connected()
        assert second.fileno() == fd
        for _ in range(40):
            second.sendall(b"y" * 50)
            assert peer.recv(50, socket.MSG_WAITALL) == b"y" * 50
            peer.sendall(b"z" * 50)
            assert not epoll.poll(0.0005), "an event of a descriptor that is not registered"
            assert second.recv(50, socket.MSG_WAITALL) == b"z" * 50
        second.close()
        peer.close()


def signalled(port):
    """Waits while a signal is pending that only the wait itself unblocks, and while a timer fires."""
    client = Client(port)
    received = []
    signal.signal(signal.SIGUSR1, lambda *_: received.append(1))
    epoll = select.epoll()
    epoll.register(client.socket, select.EPOLLIN)
    events, none = ctypes.create_string_buffer(16), ctypes.create_string_buffer(128)
    poll = (ctypes.c_int * 2)(client.socket.fileno(), select.POLLIN)
    bits = lambda: (ctypes.c_uint64 * 16)(1 << client.socket.fileno())  # noqa: E731
    ways = (
        lambda: libc.ppoll(poll, ctypes.c_ulong(1), None, none),
        lambda: libc.epoll_pwait(epoll.fileno(), events, 1, -1, none),
        lambda: libc.pselect(client.socket.fileno() + 1, bits(), None, None, None, none),
    )
    for way in ways:
        for _ in range(10):
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
            os.kill(os.getpid(), signal.SIGUSR1)
            assert way() == -1 and ctypes.get_errno() == errno.EINTR, "a pending signal did not interrupt a wait"
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])
    assert len(received) == 10 * len(ways), received

    waiters = [Waiter(way, client.socket) for way in ("level", "poll", "select")]
    for step in range(90):
        try:
            Alarm.start(0.00005 + step * 0.000004)
            raise AssertionError(f"step {step}: readable: {waiters[step % 3].wait(None)}")
        except Alarm:
            signal.setitimer(signal.ITIMER_REAL, 0)

    # An ignored signal interrupts no wait. It arrives while the library polls, because a wait that found bytes came before.
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    interrupted = 0
    for _ in range(400):
        client.socket.sendall(client.next(10))
        assert libc.epoll_wait(epoll.fileno(), events, 1, -1) == 1
        while client.checked < len(client.sent):
            client.check(1)
        signal.setitimer(signal.ITIMER_REAL, 0.00003)
        interrupted += libc.epoll_wait(epoll.fileno(), events, 1, 3) == -1
    assert interrupted < 3, f"ignored signals interrupted {interrupted} of 400 waits"
    client.finish()


def limited(port):
    """Checks what select leaves of its time limit."""
    client = Client(port)
    fd = client.socket.fileno()
    for has_bytes in (False, True):
        if has_bytes:
            client.socket.sendall(client.next(10))
        bits, limit = (ctypes.c_uint64 * 16)(1 << fd), (ctypes.c_long * 2)(60 if has_bytes else 0, 2000)
        assert libc.select(fd + 1, bits, None, None, limit) == has_bytes
        assert bits[0] == has_bytes << fd, bits[0]
        assert limit[0] * 1_000_000 + limit[1] <= (60_002_000 if has_bytes else 0), limit[:]
    client.finish()


class Alarm(Exception):
    """Is raised once by a timer."""

    is_due = False

    @classmethod
    def start(cls, seconds):
        def handler(*_):
            # The timer may fire once more before it is stopped.
            if cls.is_due:
                cls.is_due = False
                raise cls

        cls.is_due = True
        signal.signal(signal.SIGALRM, handler)
        # The timer fires again and again, because a signal just before a call does not interrupt it.
        signal.setitimer(signal.ITIMER_REAL, seconds, 0.01)


def interrupted(port):
    """Receives while a timer fires soon after the receive begins, often while the library waits actively."""
    client = Client(port)

    for step in range(60):
        try:
            Alarm.start(0.00005 + step * 0.000006)
            raise AssertionError(f"step {step}: received {client.socket.recv(1)}, which was not sent")
        except Alarm:
            signal.setitimer(signal.ITIMER_REAL, 0)
        if step % 10 == 0:
            client.socket.sendall(client.next(10))
            client.check()
    client.finish()


def ended(port):
    client = Client(port)
    client.socket.shutdown(socket.SHUT_WR)
    for send in [client.socket.send, lambda data: os.write(client.socket.fileno(), data)]:
        try:
            send(b"x")
            raise AssertionError("a send after the end of sending")
        except BrokenPipeError:
            pass
    assert client.socket.recv(1) == b""
    client = Client(port)
    client.socket.sendall(client.next(1000))
    client.check()
    client.finish()


def threads(port):
    """Threads that share a connection. Each sends records of its own letter."""
    client = Client(port)
    count, size, letters = 100, 1000, b"abcd"

    def send(letter):
        for _ in range(count):
            assert client.socket.send(bytes([letter]) * size) == size

    senders = [threading.Thread(target=send, args=(letter,)) for letter in letters]
    for sender in senders:
        sender.start()
    received = bytearray()
    while len(received) < count * size * len(letters):
        received += client.socket.recv(100_000)
    for sender in senders:
        sender.join()
    for letter in letters:
        assert received.count(letter) == count * size
    client.finish()


def killed(port):
    """Children that are killed while they send and receive: the parent, who has the same connection, finds no byte lost or doubled."""
    for step in range(4):
        client = Client(port)
        child = os.fork()
        if child == 0:
            while True:
                client.socket.sendall(b"z" * 100)
        time.sleep(0.004 * step)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        client.socket.sendall(b"end")
        received = bytearray()
        while not received.endswith(b"end"):
            data = client.socket.recv(100_000)
            assert data
            received += data
        assert received.count(b"z") == len(received) - 3, "other bytes among those of the child"
        client.warm()
        client.finish()


def hostile(port):
    """Writes random bytes into the memory that is shared with the engine, while it is used."""
    choose = random.Random(7)
    for _ in range(8):
        client = Client(port)
        assert slots(), "no memory is shared"
        client.socket.settimeout(0.2)
        try:
            for _ in range(40):
                for slot in slots()[:8]:
                    # Not the length of the rings or the distance of the doorbell, because the program itself would then write elsewhere.
                    at = slot + 8 * choose.choice([0, 0, 8, 8, 16, 24, 25, 27])
                    word = choose.choice([choose.getrandbits(64), choose.getrandbits(15) | choose.choice([1, 2]) << 62])
                    ctypes.c_uint64.from_address(at).value = word
                client.socket.send(client.next(50))
                client.socket.recv(100)
        except OSError:
            pass
        client.socket.close()
    # States that only the engine sets, or that do not exist. The engine must not wait for their end.
    for state in (2, 3):
        client = Client(port)
        for slot in slots()[:8]:
            word = ctypes.c_uint64.from_address(slot)
            word.value = word.value & (1 << 62) - 1 | state << 62
        client.socket.send(client.next(50))
        client.socket.close()


def slots():
    """Returns the addresses of the slots in the memory that the engine shares with this program."""
    for line in open("/proc/self/maps"):
        if "memfd:inlane" in line:
            start, end = (int(address, 16) for address in line.split()[0].split("-"))
            distance = (end - start - 8192 - (64 << 20)) // 64
            return [start + slot * distance + slot % 16 * 256 for slot in range(64)]
    return []


def unasked(port):
    """The library sends without asking the kernel about the pair, until the socket has a second descriptor."""
    end = time.monotonic() + 30
    while True:
        client = Client(port)
        # The words of crates/offload-protocol/src/slots: SENT is bit 0, and UNSEEN bit 1.
        used = [slot for slot in slots() if ctypes.c_uint64.from_address(slot + 216).value]
        marks = lambda: [ctypes.c_uint64.from_address(slot + 8).value & 3 for slot in used]  # noqa: E731
        if len(used) == 1 and marks() == [0]:
            break
        # The engine may have slept at each send.
        assert time.monotonic() < end, f"the library asks the kernel before each send: {used}, {marks()}"
        client.finish()
    with client.socket.dup():
        assert marks()[0] & 2, marks()
    client.warm()
    assert marks()[0] & 2, marks()
    client.finish()


def accepted_until_empty(server):
    """Accepts connections until no more wait. Returns them."""
    connections = []
    while True:
        try:
            connections.append(server.accept()[0])
        except BlockingIOError:
            return connections


def records():
    """Returns the addresses of two numbers in the shared memory: the connections that the engine has offered, and those that the library has received."""
    for line in open("/proc/self/maps"):
        if "memfd:inlane" in line:
            words = int(line.split()[0].split("-")[1], 16) - 8192 - (64 << 20)
            return words + 128, words + 192
    raise AssertionError("no shared memory")


def accepts(_):
    """Accepts until EAGAIN, which the library finds without the kernel. No connection is lost, although events are edge-triggered and processes share the listener."""
    server = socket.create_server((ADDRESS, 0), backlog=64)
    server.setblocking(False)
    epoll = select.epoll()
    epoll.register(server, select.EPOLLIN | select.EPOLLET)
    end = time.monotonic() + 60

    def exchange(count):
        clients = [socket.create_connection(server.getsockname()) for _ in range(count)]
        peers = []
        while len(peers) < count:
            assert time.monotonic() < end, f"{count - len(peers)} of {count} connections are lost"
            epoll.poll(1)
            peers += accepted_until_empty(server)
        for client in clients:
            client.sendall(b"x")
        for peer in peers:
            peer.setblocking(True)
            assert peer.recv(1) == b"x"
            peer.close()
        for client in clients:
            client.close()

    for round in range(60):
        exchange(1 + round % 4)
    number = ctypes.c_uint64.from_address
    sent, received = records()
    assert number(sent).value > 100 and number(sent).value == number(received).value, (number(sent).value, number(received).value)
    # A wrong count hides a connection for one call only. This also shows that the library uses the count.
    clients = [socket.create_connection(server.getsockname()) for _ in range(2)]
    while number(sent).value < number(received).value + 2:
        assert time.monotonic() < end
    first = server.accept()[0]
    number(received).value += 1
    assert accepted_until_empty(server) == []
    second = server.accept()[0]
    number(received).value -= 1
    # A blocking listener waits.
    server.setblocking(True)
    timer = threading.Timer(0.1, lambda: clients.append(socket.create_connection(server.getsockname())))
    timer.start()
    third = server.accept()[0]
    timer.join()
    for connection in (first, second, third, *clients):
        connection.close()
    server.setblocking(False)
    # Another process takes connections of the listener.
    clients = [socket.create_connection(server.getsockname()) for _ in range(8)]
    child = os.fork()
    if child == 0:
        taken = 0
        while taken < 3 and time.monotonic() < end:
            try:
                server.accept()[0].close()
                taken += 1
            except BlockingIOError:
                pass
        os._exit(3 - taken)
    peers = []
    while len(peers) < 5:
        assert time.monotonic() < end, f"{5 - len(peers)} connections are lost beside another process"
        try:
            peers.append(server.accept()[0])
        except BlockingIOError:
            pass
    assert os.waitpid(child, 0)[1] == 0
    for client in clients:
        client.close()
    exchange(3)


def has_received():
    """Returns true if a receive ring in the shared memory is open and has bytes for this program."""
    word, filled = ([ctypes.c_uint64.from_address(slot + at).value for slot in slots()] for at in (64, 192))
    position = (1 << 62) - 1
    return any(word >> 62 == 2 and word & position != filled & position for word, filled in zip(word, filled))


def lasting(port):
    """Sends until the connection fails, because the test kills the engine."""
    client = Client(port)
    print("sending", flush=True)
    try:
        while True:
            client.socket.sendall(b"x" * 10)
            client.socket.recv(10)
    except ConnectionError:
        pass


if __name__ == "__main__":
    role, port = sys.argv[1], int(sys.argv[2])
    if "many" in sys.argv[3:]:
        open_many(port)
    globals()[role](port)
    if role != "serve":
        print("all right", flush=True)
