# Further calls, which few programs make. This file is appended to calls.py and uses its functions.



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
        server = listener.accept()[0]
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
    show("fast open other family", call("sendto", client.fileno(), b"x", 1, fast | NOSIGNAL, address(family=47), 16))


fast_opens()
