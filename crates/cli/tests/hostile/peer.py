"""Programs that send the engine descriptors whose close blocks, and programs that notice whether the engine waits.

    peer.py echo ADDRESS             answers connections on port 8007
    peer.py exchange ADDRESS         prints the longest round trip, in seconds, when standard input ends
    peer.py connect PORT             connects before and after the engine stops
    peer.py give-up HOW              gives up connecting while the engine has stopped, after a limit or by a signal
    peer.py withdraw                 closes such connections in each way, while the engine has stopped
    peer.py restart                  a signal with SA_RESTART does not end a connect
    peer.py retry                    connects again after a limit
    peer.py block ADDRESS CONTROL    sends such descriptors over connections and over the control socket
"""

import ctypes
import errno
import os
import select
import signal
import socket
import struct
import sys
import threading
import time

PORT = 8007
# Keeps the peers of the sockets open whose close blocks.
peers = []


def connect(address):
    while True:
        try:
            return socket.create_connection((address, PORT))
        except ConnectionRefusedError:
            time.sleep(0.05)


def echo(address):
    def answer(connection):
        try:
            while data := connection.recv(4096):
                connection.sendall(data)
        except ConnectionResetError:
            pass

    listener = socket.create_server((address, PORT))
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=answer, args=[connection], daemon=True).start()


def exchange(address):
    connection = connect(address)
    print("connected", flush=True)
    longest = 0
    while not select.select([sys.stdin], [], [], 0.001)[0]:
        start = time.monotonic()
        connection.sendall(b"message")
        connection.recv(4096)
        longest = max(longest, time.monotonic() - start)
    print(longest)


def lingering():
    """Returns a TCP socket of the kernel with unsent data, whose close blocks for ten seconds."""
    listener = socket.create_server(("127.0.0.1", 0))
    sender = socket.create_connection(listener.getsockname())
    peers.append(listener.accept()[0])
    sender.setblocking(False)
    try:
        while True:
            sender.send(bytes(65536))
    except BlockingIOError:
        pass
    sender.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 10))
    return sender


def pass_on(way, message=b"message"):
    with lingering() as sender:
        socket.send_fds(way, [message], [sender.fileno()])


def block(address, path):
    def control():
        client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        client.connect(path)
        return client

    # Python knows how to pass descriptors only over UNIX sockets.
    def pair():
        return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, fileno=connect(address).detach())

    pass_on(control())
    # The engine does not read the second message, because it disconnects the client after the first one.
    client = control()
    client.send(b"not a request")
    try:
        pass_on(client)
    except BrokenPipeError:
        pass
    pass_on(pair())
    with pair() as closed:
        pass_on(closed)
    with pair() as stuck:
        # The last messages stay in the pair, because the echo's answers are not read.
        stuck.setblocking(False)
        try:
            while True:
                stuck.send(bytes(65536))
        except BlockingIOError:
            time.sleep(0.5)
        try:
            pass_on(stuck)
        except BlockingIOError:
            pass
    print("sent", 5, flush=True)
    time.sleep(2)
    # Ends without closing the descriptors one by one, so the peers go first.
    for peer in peers:
        peer.close()
    os._exit(0)


def connect_twice(port):
    address = ("127.0.0.1", int(port))
    listener = socket.create_server(address, backlog=1)
    first = socket.create_connection(address)
    listener.accept()
    print("connected", flush=True)

    def give_up(number, frame):
        raise TimeoutError

    # The listener's queue is full, so it answers no further SYN.
    waiting = []
    signal.signal(signal.SIGALRM, give_up)
    try:
        while True:
            start = time.monotonic()
            signal.alarm(14)
            waiting.append(socket.create_connection(address))
    except TimeoutError:
        seconds = time.monotonic() - start
    listener.close()
    for connection in waiting:
        connection.close()
    listener = socket.create_server(address)
    print(seconds, flush=True)
    sys.stdin.readline()
    second = socket.create_connection(address)
    print(*second.getsockname(), sep=":", flush=True)


def give_up(how):
    def interrupt(number, frame):
        raise TimeoutError

    listener = socket.create_server(("127.0.0.1", 0))
    address = listener.getsockname()
    first = socket.create_connection(address)
    listener.accept()
    print("connected", flush=True)
    sys.stdin.readline()
    second = socket.socket()
    start = time.monotonic()
    try:
        if how == "limit":
            # A time limit of the kernel, which leaves the descriptor blocking.
            second.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 4, 0))
        else:
            signal.signal(signal.SIGALRM, interrupt)
            signal.alarm(12)
        second.connect(address)
        raise AssertionError("connected to an engine that has stopped")
    except (BlockingIOError, TimeoutError):
        pass
    seconds = time.monotonic() - start
    second.close()
    print(seconds, flush=True)
    sys.stdin.readline()
    listener.settimeout(2)
    try:
        listener.accept()
        print("accepted", flush=True)
    except TimeoutError:
        print("nothing", flush=True)
    third = socket.create_connection(address)
    listener.accept()
    print("connected", flush=True)


def call(function, *arguments):
    """Returns the result of a function of the C library, and errno, which is 77 before the call."""
    library = ctypes.CDLL(None, use_errno=True)
    ctypes.set_errno(77)
    return getattr(library, function)(*arguments), ctypes.get_errno()


def connect_blocking(sock, address):
    raw = struct.pack("=H", socket.AF_INET) + struct.pack("!H", address[1]) + socket.inet_aton(address[0]) + bytes(8)
    return call("connect", sock.fileno(), raw, len(raw))


def start():
    """Returns a listener to which the program has connected once, its address, and the connection."""
    listener = socket.create_server(("127.0.0.1", 0))
    # The engine is asked for the address, so this must precede its stop.
    address = listener.getsockname()
    kept = socket.create_connection(address), listener.accept()
    print("connected", flush=True)
    sys.stdin.readline()
    return listener, address, kept


def arrived(listener):
    """Returns how many connections arrive until none arrives for three seconds."""
    listener.settimeout(3)
    count = 0
    try:
        while True:
            listener.accept()
            count += 1
    except TimeoutError:
        return count


def withdraw():
    listener, address, kept = start()
    signal.signal(signal.SIGALRM, lambda *_: None)

    def given_up():
        sock = socket.socket()
        # The first signal may come before the connect, so there are more.
        signal.setitimer(signal.ITIMER_REAL, 0.2, 0.2)
        assert (result := connect_blocking(sock, address)) == (-1, errno.EINTR), result
        signal.setitimer(signal.ITIMER_REAL, 0)
        return sock.detach()

    def stream(name, fd, *arguments):
        library = ctypes.CDLL(None)
        library.fdopen.restype = ctypes.c_void_p
        file = ctypes.c_void_p(library.fdopen(fd, b"r+"))
        return call(name, *arguments, file)[0] != -1

    def copied(fd):
        copy = os.dup(fd)
        return call("close", fd) == (0, 77) and call("close", copy) == (0, 77)

    def ranged(fd):
        copy = os.dup2(fd, 900)
        return call("close_range", fd, fd, 0)[0] == 0 and call("close_range", copy, copy + 1, 0)[0] == 0

    ways = {
        "close": lambda fd: call("close", fd) == (0, 77),
        "dup2": lambda fd: call("dup2", 0, fd)[0] == fd,
        "dup3": lambda fd: call("dup3", 0, fd, os.O_CLOEXEC)[0] == fd,
        "close_range": lambda fd: call("close_range", fd, fd, 0)[0] == 0,
        "fclose": lambda fd: stream("fclose", fd),
        "freopen": lambda fd: stream("freopen", fd, b"/dev/null", b"r"),
        "copies": copied,
        "ranges": ranged,
    }
    failed = [name for name, close in ways.items() if not close(given_up())]
    # These calls close nothing, so they must not end the connections.
    open_still = [given_up() for _ in range(4)]
    call("dup2", open_still[0], open_still[0])
    call("dup2", 12345, open_still[1])
    call("dup3", 0, open_still[2], 1)
    call("close_range", open_still[3], open_still[3], 4)
    # A child of fork uses the connection that its parent closes.
    shared = socket.socket()
    shared.setblocking(False)
    shared.connect_ex(address)
    child = os.fork()
    if child == 0:
        poll = select.poll()
        poll.register(shared, select.POLLOUT)
        events = poll.poll(60000)
        error = shared.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        os._exit(0 if events == [(shared.fileno(), select.POLLOUT)] and error == 0 else 1)
    shared.close()
    print("closed", failed, flush=True)
    sys.stdin.readline()
    print("child", os.waitpid(child, 0)[1], "arrived", arrived(listener), flush=True)


def restart():
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGALRM, lambda *_: None)
    listener, address, kept = start()
    for limited in (True, False):
        sock = socket.socket()
        if limited:
            signal.siginterrupt(signal.SIGALRM, True)
        else:
            signal.siginterrupt(signal.SIGALRM, False)
            print("waiting", flush=True)
        signal.setitimer(signal.ITIMER_REAL, 0.2, 0.2)
        begin = time.monotonic()
        result = connect_blocking(sock, address)
        signal.setitimer(signal.ITIMER_REAL, 0)
        # Python would ask the stopped engine for the address of a socket that it frees.
        sock.close()
        print(*result, time.monotonic() - begin > 2, flush=True)


def retry():
    listener, address, kept = start()
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 0, 300000))
    print(*connect_blocking(sock, address), flush=True)
    sys.stdin.readline()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 0, 0))
    print(*connect_blocking(sock, address), arrived(listener), flush=True)


if __name__ == "__main__":
    modes = [echo, exchange, block, give_up, withdraw, restart, retry]
    modes = {mode.__name__.replace("_", "-"): mode for mode in modes} | {"connect": connect_twice}
    modes[sys.argv[1]](*sys.argv[2:])
