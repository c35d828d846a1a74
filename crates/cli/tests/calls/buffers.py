"""Sends 1.1 MB through connections with small buffers, in both directions, and prints how many seconds each took."""

import socket
import threading
import time

DATA = bytes(1_100_000)


def run(options, which):
    listener, client = socket.socket(), socket.socket()
    for sock in {"client": [client], "server": [listener], "both": [listener, client]}[which]:
        for option in options:
            sock.setsockopt(socket.SOL_SOCKET, option, 4096)
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    client.connect(listener.getsockname())
    server, _ = listener.accept()
    for what, source, sink in (("to the client", server, client), ("to the server", client, server)):
        start = time.monotonic()
        thread = threading.Thread(target=source.sendall, args=(DATA,))
        thread.start()
        left = len(DATA)
        while left:
            left -= len(sink.recv(65536))
        thread.join()
        print(f"options {options} of {which}, {what}: {time.monotonic() - start:.2f}", flush=True)


for which in "client", "server", "both":
    run([socket.SO_RCVBUF], which)
    run([socket.SO_SNDBUF], which)
run([socket.SO_SNDBUF, socket.SO_RCVBUF], "both")
