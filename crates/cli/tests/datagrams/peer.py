"""Exchanges UDP datagrams with itself on another stack.

peer.py serve ADDRESS PORT      echoes datagrams until it receives b'quit'; a datagram b'tos' is answered by its
                                type of service and TTL
peer.py check ADDRESS PORT      checks sizes, flags, errors and ancillary data of sockets against such a server
"""
import array
import ctypes
import errno
import fcntl
import os
import select
import socket
import struct
import sys
import termios

role, address, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
V6 = ':' in address
FAMILY = socket.AF_INET6 if V6 else socket.AF_INET
LEVEL = socket.IPPROTO_IPV6 if V6 else socket.IPPROTO_IP
RECEIVE_TTL, TTL = (socket.IPV6_RECVHOPLIMIT, socket.IPV6_HOPLIMIT) if V6 else (12, socket.IP_TTL)  # IP_RECVTTL
RECEIVE_TOS, TOS = (socket.IPV6_RECVTCLASS, socket.IPV6_TCLASS) if V6 else (socket.IP_RECVTOS, socket.IP_TOS)
INFO, RECEIVE_INFO = (socket.IPV6_PKTINFO, socket.IPV6_RECVPKTINFO) if V6 else (8, 8)
SET_TTL = socket.IPV6_UNICAST_HOPS if V6 else socket.IP_TTL


def new(connected=False):
    s = socket.socket(FAMILY, socket.SOCK_DGRAM)
    if connected:
        s.connect((address, port))
    return s


def number(data):
    return data[0] if len(data) == 1 else struct.unpack('i', data)[0]


def serve():
    s = new()
    s.bind((address, port))
    s.setsockopt(LEVEL, RECEIVE_TTL, 1)
    s.setsockopt(LEVEL, RECEIVE_TOS, 1)
    print('ready', flush=True)
    while True:
        data, ancillary, _, sender = s.recvmsg(65535, 200)
        if data == b'quit':
            return
        if data == b'tos':
            found = {kind: number(value) for level, kind, value in ancillary if level == LEVEL}
            data = f'{found[TOS]} {found[TTL]}'.encode()
        s.sendto(data, sender)


def expect(error, call, *arguments):
    try:
        result = call(*arguments)
    except OSError as found:
        assert found.errno == error, (call, arguments, found)
    else:
        raise AssertionError(f'{call} {arguments}: no {errno.errorcode[error]} but {result!r}')


def check_sizes():
    plain, connected = new(), new(True)
    for size in [0, 1, 5, 100, 1400, 1452, 1453, 1472, 1473, 3000, 9000, 30000, 65507]:
        data = os.urandom(size)
        assert plain.sendto(data, (address, port)) == size
        received, sender = plain.recvfrom(70000)
        assert received == data and sender[:2] == (address, port), (size, len(received), sender)
        assert connected.send(data) == size and connected.recv(70000) == data, size
    too_long = 65528 if V6 else 65508
    expect(errno.EMSGSIZE, plain.sendto, bytes(too_long), (address, port))
    expect(errno.EMSGSIZE, connected.send, bytes(too_long))


def check_flags():
    s = new(True)
    s.send(b'0123456789')
    assert select.select([s], [], [], 30)[0]
    waiting = array.array('i', [0])
    fcntl.ioctl(s, termios.FIONREAD, waiting)
    assert waiting[0] == 10
    assert s.recv(4, socket.MSG_PEEK) == b'0123'
    assert s.recv(4, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b'0123'
    buffer = bytearray(4)
    assert s.recv_into(buffer, 4, socket.MSG_PEEK | socket.MSG_TRUNC) == 10 and buffer == b'0123'
    data, _, flags, sender = s.recvmsg(4)
    assert (data, flags, sender[:2]) == (b'0123', socket.MSG_TRUNC, (address, port))
    expect(errno.EAGAIN, s.recv, 4, socket.MSG_DONTWAIT)
    # The functions of files.
    assert os.write(s.fileno(), b'written') == 7 and os.read(s.fileno(), 100) == b'written'
    assert os.writev(s.fileno(), [b'a', b'', b'bc']) == 3
    parts = [bytearray(2), bytearray(5)]
    assert os.readv(s.fileno(), parts) == 3 and parts[0] == b'ab' and parts[1][:1] == b'c'
    # An empty datagram is data, not the end.
    assert s.send(b'') == 0 and s.recv(10) == b''
    assert s.sendmsg([b'x', b'yz'], [], 0, (address, port)) == 3
    parts = [bytearray(1), bytearray(10)]
    length, _, flags, sender = s.recvmsg_into(parts)
    assert (length, flags, parts[0], parts[1][:2]) == (3, 0, b'x', b'yz')
    # Data sent with MSG_MORE becomes one datagram with what follows.
    assert s.send(b'first ', socket.MSG_MORE) == 6 and s.send(b'last') == 4
    assert s.recv(100) == b'first last'
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack('ll', 0, 200000))
    expect(errno.EAGAIN, s.recv, 1)
    s.setblocking(False)
    expect(errno.EAGAIN, s.recv, 1)
    poll = select.epoll()
    poll.register(s, select.EPOLLIN)
    assert poll.poll(0) == []
    s.send(b'again')
    assert poll.poll(30) == [(s.fileno(), select.EPOLLIN)] and s.recv(100) == b'again'


def check_connecting():
    s = new()
    expect(errno.EDESTADDRREQ, new().send, b'x')
    expect(errno.ENOTCONN, s.getpeername)
    expect(errno.ENOTCONN, new().shutdown, socket.SHUT_RDWR)
    expect(errno.EOPNOTSUPP, s.listen)
    expect(errno.EINVAL, s.sendto, b'x', (address, 0))
    s.connect((address, port))
    name = s.getsockname()
    assert name[1] != 0 and s.getpeername()[:2] == (address, port)
    # A connected socket receives nothing from others.
    other = new()
    other.sendto(b'intruder', name[:2])
    s.send(b'x')
    assert s.recv(10) == b'x'
    s.connect((address, port))
    assert s.getsockname() == name
    s.send(b'y')
    assert s.recv(10) == b'y'
    disconnect(s)
    expect(errno.ENOTCONN, s.getpeername)
    expect(errno.EDESTADDRREQ, s.send, b'x')
    s.sendto(b'z', (address, port))
    assert s.recvfrom(10)[0] == b'z' and s.getsockname()[1] != 0
    # Options that tell what a socket is.
    assert s.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE) == socket.SOCK_DGRAM
    assert s.getsockopt(socket.SOL_SOCKET, socket.SO_DOMAIN) == FAMILY
    assert s.getsockopt(socket.SOL_SOCKET, socket.SO_PROTOCOL) == socket.IPPROTO_UDP


def disconnect(s):
    unspecified = ctypes.create_string_buffer(28)
    assert ctypes.CDLL(None).connect(s.fileno(), unspecified, 28 if V6 else 16) == 0


def check_refused():
    s = new()
    s.connect((address, 9))
    s.send(b'nobody listens there')
    expect(errno.ECONNREFUSED, s.recv, 10)
    s.send(b'again')
    assert select.select([s], [], [], 30)[0]
    assert s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ECONNREFUSED
    assert s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
    s.send(b'again')
    select.select([s], [], [], 30)
    expect(errno.ECONNREFUSED, s.send, b'the error comes first')
    # A socket that is not connected gets no error.
    u = new()
    u.sendto(b'x', (address, 9))
    u.sendto(b'y', (address, port))
    assert u.recv(10) == b'y'


def check_ancillary():
    s = new()
    s.connect((address, port))
    s.setsockopt(LEVEL, RECEIVE_TTL, 1)
    s.setsockopt(LEVEL, RECEIVE_TOS, 1)
    s.setsockopt(LEVEL, RECEIVE_INFO, 1)
    assert s.getsockopt(LEVEL, RECEIVE_TTL) == 1
    s.send(b'x')
    _, ancillary, flags, _ = s.recvmsg(10, 200)
    found = {kind: value for level, kind, value in ancillary if level == LEVEL}
    assert number(found[TTL]) == 64 and number(found[TOS]) == 0 and flags == 0, ancillary
    info = found[INFO]
    local = socket.inet_ntop(FAMILY, info[:16] if V6 else info[8:])
    assert local == s.getsockname()[0], (local, s.getsockname())
    # Too little room: the message says so, and the data is whole.
    s.send(b'cut')
    data, ancillary, flags, _ = s.recvmsg(10, socket.CMSG_LEN(4))
    assert data == b'cut' and flags & socket.MSG_CTRUNC and len(ancillary) <= 1
    # What this side sets, the other side sees.
    s.setsockopt(LEVEL, TOS, 0x48)
    s.setsockopt(LEVEL, SET_TTL, 33)
    assert s.getsockopt(LEVEL, TOS) == 0x48 and s.getsockopt(LEVEL, SET_TTL) == 33
    s.send(b'tos')
    assert s.recv(100) == b'72 33'
    ancillary = [(LEVEL, TOS, struct.pack('i', 0x20)), (LEVEL, TTL, struct.pack('i', 5))]
    s.sendmsg([b'tos'], ancillary)
    assert s.recv(100) == b'32 5'
    expect(errno.EINVAL, s.sendmsg, [b'x'], [(LEVEL, TTL, struct.pack('i', 300))])
    # The source address that the program asks for.
    u = new()
    source = socket.inet_pton(FAMILY, local)
    info = source + bytes(4) if V6 else bytes(4) + source + bytes(4)
    u.sendmsg([b'from'], [(LEVEL, INFO, info)], 0, (address, port))
    assert u.recv(10) == b'from'


class Part(ctypes.Structure):
    _fields_ = [('base', ctypes.c_void_p), ('len', ctypes.c_size_t)]


class Message(ctypes.Structure):
    """The C library's struct mmsghdr."""
    _fields_ = [
        ('name', ctypes.c_void_p), ('name_len', ctypes.c_uint32), ('parts', ctypes.POINTER(Part)), ('count', ctypes.c_size_t),
        ('control', ctypes.c_void_p), ('control_len', ctypes.c_size_t), ('flags', ctypes.c_int), ('padding', ctypes.c_int), ('len', ctypes.c_uint32)]


def messages(buffers):
    """Returns an array of messages, each with one of the buffers, and what must live as long as the array."""
    parts = [Part(ctypes.cast(buffer, ctypes.c_void_p), len(buffer)) for buffer in buffers]
    return (Message * len(parts))(*(Message(parts=ctypes.pointer(part), count=1) for part in parts)), (parts, buffers)


def check_many():
    """sendmmsg and recvmmsg: several datagrams with one call."""
    libc = ctypes.CDLL(None, use_errno=True)
    s = new(True)
    sent = [bytes([n]) * (10 * n + 1) for n in range(5)]
    out, _keep = messages([ctypes.create_string_buffer(data, len(data)) for data in sent])
    assert libc.sendmmsg(s.fileno(), out, 5, 0) == 5
    assert [one.len for one in out] == [len(data) for data in sent]
    # The third buffer is too short for its datagram. Wait until all are there, because MSG_WAITFORONE may return fewer.
    found, names = [], []
    while len(found) < 5:
        buffers = [ctypes.create_string_buffer(100) for _ in range(len(found), 5)]
        if len(found) <= 2:
            buffers[2 - len(found)] = ctypes.create_string_buffer(4)
        into, _parts = messages(buffers)
        names = [ctypes.create_string_buffer(28) for _ in buffers]
        for one, name in zip(into, names):
            one.name, one.name_len = ctypes.cast(name, ctypes.c_void_p), 28
        count = libc.recvmmsg(s.fileno(), into, len(buffers), 0x10000, None)  # MSG_WAITFORONE
        assert count > 0, os.strerror(ctypes.get_errno())
        for one, buffer, name in zip(into[:count], buffers, names):
            assert struct.unpack('!H', name.raw[2:4])[0] == port and one.name_len == (28 if V6 else 16)
            found.append((buffer.raw[:one.len], one.flags))
    assert found == [(data[:4] if n == 2 else data, socket.MSG_TRUNC if n == 2 else 0) for n, data in enumerate(sent)], found
    # Nothing waits: an error, or after the first datagram a count.
    into, _parts = messages([ctypes.create_string_buffer(100) for _ in range(2)])
    assert libc.recvmmsg(s.fileno(), into, 2, socket.MSG_DONTWAIT, None) == -1 and ctypes.get_errno() == errno.EAGAIN
    s.send(b'one')
    assert select.select([s], [], [], 30)[0]
    assert libc.recvmmsg(s.fileno(), into, 2, socket.MSG_DONTWAIT, None) == 1 and into[0].len == 3
    # An error after the first datagram: the count of those that were sent.
    too_long = 65536
    out, _keep = messages([ctypes.create_string_buffer(b'fits', 4), ctypes.create_string_buffer(too_long)])
    assert libc.sendmmsg(s.fileno(), out, 2, 0) == 1
    assert s.recv(100) == b'fits'


def check_descriptors():
    """A socket that is duplicated, inherited and passed on works in the other place, too."""
    s = new(True)
    d = s.dup()
    d.send(b'one')
    assert s.recv(10) == b'one'
    child = os.fork()
    if child == 0:
        s.send(b'from the child')
        os._exit(0)
    assert d.recv(100) == b'from the child' and os.waitpid(child, 0)[1] == 0
    script = f'import socket; s = socket.socket(fileno={d.fileno()}); s.send(b"after exec"); assert s.recv(99) == b"after exec"'
    child = os.spawnvp(os.P_NOWAIT, sys.executable, [sys.executable, '-c', script]) if d.set_inheritable(True) is None else 0
    assert os.waitpid(child, 0)[1] == 0
    left, right = socket.socketpair()
    script = ('import socket; u = socket.socket(fileno=%d); fds = socket.recv_fds(u, 9, 1)[1]; '
              's = socket.socket(fileno=fds[0]); s.send(b"passed"); assert s.recv(99) == b"passed"' % right.fileno())
    right.set_inheritable(True)
    child = os.spawnvp(os.P_NOWAIT, sys.executable, [sys.executable, '-c', script])
    socket.send_fds(left, [b'x'], [d.fileno()])
    assert os.waitpid(child, 0)[1] == 0


if role == 'serve':
    serve()
else:
    for check in (check_sizes, check_flags, check_connecting, check_refused, check_ancillary, check_many, check_descriptors):
        check()
    new().sendto(b'quit', (address, port))
    print('all right')
