"""A server whose thread sleeps in epoll_wait between bursts of messages of many connections, and its client.

    sleepers.py serve PORT     prints "ready", then echoes
    sleepers.py client PORT    sends bursts, checks the echoes, prints "done", and waits for the end of its input
"""

import select
import socket
import sys
import time

CONNECTIONS, ROUNDS = 24, 40


def serve(port):
    server = socket.create_server(("127.0.0.1", port), backlog=CONNECTIONS)
    print("ready", flush=True)
    connections = {}
    with select.epoll() as poll:
        poll.register(server, select.EPOLLIN)
        while True:
            for fd, _ in poll.poll():
                if fd == server.fileno():
                    connection = server.accept()[0]
                    connection.setblocking(False)
                    poll.register(connection, select.EPOLLIN)
                    connections[connection.fileno()] = connection
                elif data := connections[fd].recv(100):
                    connections[fd].sendall(data)
                else:
                    connections.pop(fd).close()


def client(port):
    # The first connections give this process and the server shared memory.
    for _ in range(40):
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(b"x")
            assert connection.recv(1) == b"x"
    connections = [socket.create_connection(("127.0.0.1", port)) for _ in range(CONNECTIONS)]
    for number in range(ROUNDS):
        # The server falls asleep, because it polls for a shorter time.
        time.sleep(0.003)
        message = number.to_bytes(4, "big")
        for connection in connections:
            connection.sendall(message)
        for connection in connections:
            echo = connection.recv(4)
            assert echo == message, f"{echo} in place of {message}"
    print("done", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    globals()[sys.argv[1]](int(sys.argv[2]))
