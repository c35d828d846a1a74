"""Exchanges bytes with itself on another stack, over many connections at once.

peer.py serve ADDRESS PORT      echoes the bytes of each connection in a forked child, and datagrams
peer.py streams ADDRESS PORT    checks many connections and short connections against such a server
peer.py check ADDRESS PORT      the same, and UDP sockets, closed ports and bound sockets
peer.py held ADDRESS PORT       keeps connections open that send and receive until the engine ends
"""
import errno
import os
import select
import signal
import socket
import sys
import threading

role, address, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
FAMILY = socket.AF_INET6 if ':' in address else socket.AF_INET
AT_ONCE = 16
SHORT = 200
SECONDS = 50


def serve():
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    listener = socket.create_server((address, port), family=FAMILY, backlog=64)
    datagrams = socket.socket(FAMILY, socket.SOCK_DGRAM)
    datagrams.bind((address, port))
    print('ready', flush=True)
    while True:
        readable, _, _ = select.select([listener, datagrams], [], [])
        if datagrams in readable:
            data, sender = datagrams.recvfrom(65535)
            datagrams.sendto(data, sender)
        if listener in readable:
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                datagrams.close()
                while data := connection.recv(65536):
                    connection.sendall(data)
                os._exit(0)
            connection.close()


def connect():
    return socket.create_connection((address, port), SECONDS)


def exchange(connection, number):
    data = bytes((i * 7 + number) % 251 for i in range(100_000))
    sender = threading.Thread(target=lambda: (connection.sendall(data), connection.shutdown(socket.SHUT_WR)))
    sender.start()
    received = b''
    while part := connection.recv(65536):
        received += part
    sender.join()
    assert received == data, (number, len(received))
    connection.close()


def streams():
    connections = [connect() for _ in range(AT_ONCE)]
    failed = []

    def guarded(connection, number):
        try:
            exchange(connection, number)
        except BaseException as error:
            failed.append(error)
            raise

    threads = [threading.Thread(target=guarded, args=pair) for pair in zip(connections, range(AT_ONCE))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed
    for number in range(SHORT):
        connection = connect()
        connection.sendall(b'%d' % number)
        assert connection.recv(10) == b'%d' % number
        connection.close()


def check():
    streams()
    sockets = [socket.socket(FAMILY, socket.SOCK_DGRAM) for _ in range(AT_ONCE)]
    for number, s in enumerate(sockets):
        s.settimeout(SECONDS)
        s.connect((address, port))
        s.send(b'%d' % number * 4000)
    for number, s in enumerate(sockets):
        assert s.recv(65535) == b'%d' % number * 4000
        s.close()
    closed = port + 1
    for kind in [socket.SOCK_STREAM, socket.SOCK_DGRAM]:
        with socket.socket(FAMILY, kind) as s:
            s.settimeout(SECONDS)
            try:
                s.connect((address, closed))
                s.send(b'x')
                s.recv(1)
            except ConnectionRefusedError:
                continue
            raise AssertionError('a connection to a closed port')
    # A bound socket keeps its port, whatever queue its packets arrive on.
    for _ in range(4):
        with socket.socket(FAMILY, socket.SOCK_STREAM) as s:
            s.bind(('', 0))
            s.settimeout(SECONDS)
            own = s.getsockname()[1]
            s.connect((address, port))
            assert s.getsockname()[1] == own
            exchange(s, own)


def held():
    connections = [connect() for _ in range(AT_ONCE)]
    outcomes = []

    def run(connection):
        try:
            while True:
                connection.sendall(b'x' * 1000)
                if not connection.recv(65536):
                    outcomes.append('end')
                    return
        except OSError as error:
            outcomes.append(errno.errorcode[error.errno])

    threads = [threading.Thread(target=run, args=[connection]) for connection in connections]
    for thread in threads:
        thread.start()
    print('running', flush=True)
    for thread in threads:
        thread.join()
    assert set(outcomes) <= {'ECONNRESET', 'EPIPE'} and len(outcomes) == AT_ONCE, outcomes


{'serve': serve, 'streams': streams, 'check': check, 'held': held}[role]()
print('all right', flush=True)
