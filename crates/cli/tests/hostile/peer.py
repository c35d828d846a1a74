"""Programs that send the engine descriptors whose close blocks, and programs that notice whether the engine waits.

    peer.py echo ADDRESS             answers connections on port 8007
    peer.py exchange ADDRESS         prints the longest round trip, in seconds, when standard input ends
    peer.py connect PORT             connects before and after the engine stops
    peer.py give-up HOW              gives up connecting while the engine has stopped, after a limit or by a signal
    peer.py block ADDRESS CONTROL    sends such descriptors over connections and over the control socket
"""

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
    start = time.monotonic()
    signal.signal(signal.SIGALRM, give_up)
    signal.alarm(14)
    try:
        while True:
            waiting.append(socket.create_connection(address))
            start = time.monotonic()
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


if __name__ == "__main__":
    {"echo": echo, "exchange": exchange, "block": block, "connect": connect_twice, "give-up": give_up}[sys.argv[1]](*sys.argv[2:])
