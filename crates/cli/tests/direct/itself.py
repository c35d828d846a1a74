"""Connects sockets to themselves. Each sends 1 MiB while another thread receives. Prints "all right"."""

import socket
import threading

DATA = bytes(range(256)) * 4096


def receive(connection, got):
    while len(got) < len(DATA) and (part := connection.recv(65536)):
        got.extend(part)


for number in range(40):
    with socket.socket() as connection:
        connection.bind(("127.0.0.1", 0))
        connection.connect(connection.getsockname())
        connection.settimeout(20)
        got = bytearray()
        receiver = threading.Thread(target=receive, args=(connection, got))
        receiver.start()
        connection.sendall(DATA)
        receiver.join()
        assert got == DATA, f"socket {number} got {len(got)} bytes"
print("all right")
