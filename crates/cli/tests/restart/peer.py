"""A server and a client that outlive an engine.

    peer.py serve ADDRESS WAIT   answers connections on port 8011, and prints its process IDs, how its connections end, and
                                 its failures; WAIT is how it waits: epoll, exclusive, poll, select, block, timed, or
                                 accepts (four threads in accept)
    peer.py hold ADDRESS         exchanges a message, then waits for the end of the connection, and prints how it ended
    peer.py ask ADDRESS [COUNT]  exchanges a message on each of COUNT new connections, one after the other
    peer.py datagrams ADDRESS WAIT   answers datagrams on port 8011, like serve
    peer.py ask-datagrams ADDRESS    exchanges a datagram
"""

import os
import select
import selectors
import socket
import sys
import threading
import time

PORT = 8011


def say(*words):
    # One write, because several threads report.
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def answer(connection):
    try:
        while data := connection.recv(4096):
            connection.sendall(data)
        say("end", "finished")
    except OSError as error:
        say("end", type(error).__name__)
    connection.close()


def events(listener, wait):
    """Yields each time the listener may be ready."""
    if wait == "epoll":
        with selectors.EpollSelector() as selector:
            selector.register(listener, selectors.EVENT_READ)
            while True:
                selector.select()
                yield
    elif wait == "exclusive":
        with select.epoll() as epoll:
            epoll.register(listener, select.EPOLLIN | select.EPOLLEXCLUSIVE)
            while True:
                epoll.poll()
                yield
    elif wait == "poll":
        poll = select.poll()
        poll.register(listener, select.POLLIN)
        while True:
            poll.poll()
            yield
    elif wait == "select":
        while True:
            select.select([listener], [], [])
            yield
    else:
        while True:
            yield


def accept(listener, wait):
    for _ in events(listener, wait):
        try:
            connection, _ = listener.accept()
        except BlockingIOError:
            continue
        except TimeoutError:
            continue
        except OSError as error:
            say("failure", error)
            continue
        connection.setblocking(True)
        threading.Thread(target=answer, args=(connection,), daemon=True).start()


def serve(address, wait):
    listener = socket.create_server((address, PORT))
    if wait == "timed":
        listener.settimeout(30)
    elif wait not in ("block", "accepts"):
        listener.setblocking(False)
    if wait == "exclusive":
        for _ in range(2):
            child = os.fork()
            if child == 0:
                accept(listener, wait)
            say("process", child)
        time.sleep(3600)
    say("process", os.getpid())
    if wait == "accepts":
        for _ in range(3):
            threading.Thread(target=accept, args=(listener, wait), daemon=True).start()
    accept(listener, wait)


def connect(address):
    start = time.monotonic()
    while True:
        try:
            connection = socket.create_connection((address, PORT), 5)
            break
        except OSError:
            if time.monotonic() > start + 20:
                raise
            time.sleep(0.1)
    connection.settimeout(20)
    connection.sendall(b"message")
    assert connection.recv(4096) == b"message"
    return connection


def ask(address, count):
    for _ in range(int(count)):
        connect(address).close()


def hold(address):
    connection = connect(address)
    say("connected")
    sys.stdin.readline()
    try:
        while True:
            connection.sendall(b"more")
            connection.recv(4096)
    except OSError as error:
        say("end", type(error).__name__)


def datagrams(address, wait):
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind((address, PORT))
    server.setblocking(wait == "block")
    say("process", os.getpid())
    for _ in events(server, wait):
        try:
            data, peer = server.recvfrom(4096)
            server.sendto(data, peer)
        except BlockingIOError:
            continue
        except OSError as error:
            say("failure", error)


def ask_datagrams(address):
    client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    client.settimeout(0.2)
    for _ in range(100):
        client.sendto(b"message", (address, PORT))
        try:
            assert client.recv(4096) == b"message"
            return
        except TimeoutError:
            pass
    sys.exit("no answer")


if __name__ == "__main__":
    calls = {"serve": serve, "hold": hold, "ask": ask, "datagrams": datagrams, "ask-datagrams": ask_datagrams}
    calls[sys.argv[1]](*sys.argv[2:])
