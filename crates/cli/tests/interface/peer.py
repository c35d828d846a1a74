"""A client that exchanges messages while the interface of its engine changes.

    peer.py echo ADDRESS        answers connections on port 8007
    peer.py exchange ADDRESS    exchanges a message for each line of standard input, and prints how that ended
"""

import socket
import sys
import time

PORT = 8007


def echo(address):
    listener = socket.create_server((address, PORT))
    while True:
        connection, _ = listener.accept()
        while data := connection.recv(4096):
            connection.sendall(data)


def exchange(address):
    while True:
        try:
            connection = socket.create_connection((address, PORT))
            break
        except ConnectionRefusedError:
            time.sleep(0.05)
    print("connected", flush=True)
    for _ in sys.stdin:
        try:
            connection.sendall(b"message")
            print(connection.recv(4096).decode(), flush=True)
        except ConnectionError as error:
            print(type(error).__name__, flush=True)
            return


if __name__ == "__main__":
    {"echo": echo, "exchange": exchange}[sys.argv[1]](sys.argv[2])
