r"""A server that gives a connection with bytes unread to another program, which sends all back. It may have left its lane before.

    unread.py server PORT option|revoked|stays executes|passes [by-number]     prints "waits"; gives it away at a line on its standard input
    unread.py client PORT never|before|after|small|ends      prints "sent"; may add to what it sent at a line

option: it leaves by an option of the server's that no lane can have; revoked: by an operator, meanwhile. by-number: by syscall(2). small: with a small send buffer;
ends: so, and its stream ends.
"""

import ctypes
import os
import select
import socket
import struct
import sys

ASKED = 30  # calls, more than it takes to be worth a lane
PART = b"0123456789" * 700


def server(port, why, how, by_number=None):
    ours, others = socket.socketpair()
    if how == "passes" and os.fork() == 0:
        ours.close()
        _, fds, _, _ = socket.recv_fds(others, 1, 1)
        return echo(socket.socket(fileno=fds[0]))
    connection, _ = socket.create_server(("127.0.0.1", port)).accept()
    for _ in range(ASKED):
        connection.recv(1)
        connection.sendall(b"!")
    connection.recv(len(PART), socket.MSG_PEEK | socket.MSG_WAITALL)
    if why == "option":
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, 1)
    print("waits", flush=True)
    # Waits for it, too: it is told that it was revoked.
    while not select.select([0, connection], [], [], 0)[0].count(0):
        pass
    if how == "executes":
        for number in (0, 1):
            os.dup2(connection.fileno(), number)
        execute_by_number() if by_number else os.execv("/bin/cat", ["cat"])
    if by_number:
        send_by_number(ours.fileno(), connection.fileno())
    else:
        socket.send_fds(ours, [b"!"], [connection.fileno()])
    connection.close()
    os.wait()


def execute_by_number():
    strings = ctypes.c_char_p * 2
    call(59, b"/bin/cat", strings(b"cat", None), strings(None, None))  # execve


def send_by_number(through, fd):
    byte, control = ctypes.create_string_buffer(b"!", 1), struct.pack("=Qiii4x", 20, socket.SOL_SOCKET, socket.SCM_RIGHTS, fd)
    control = ctypes.create_string_buffer(control, len(control))
    part = ctypes.create_string_buffer(struct.pack("PN", ctypes.addressof(byte), 1))
    message = struct.pack("PIPNPNi", 0, 0, ctypes.addressof(part), 1, ctypes.addressof(control), len(control), 0)
    call(46, through, ctypes.create_string_buffer(message), 0)  # sendmsg


def call(number, *arguments):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(number, *arguments) < 0:
        raise OSError(ctypes.get_errno(), "syscall")


def echo(connection):
    while data := connection.recv(1000):
        connection.sendall(data)


def client(port, adds):
    is_small = adds in ("small", "ends")
    connection = socket.socket()
    if is_small:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    connection.connect(("127.0.0.1", port))
    for _ in range(ASKED):
        connection.sendall(b"?")
        connection.recv(1)
    connection.sendall(PART)
    if adds == "ends":
        connection.shutdown(socket.SHUT_WR)
    print("sent", flush=True)
    if adds in ("before", "after"):
        os.read(0, 1)
        connection.sendall(PART)
        print("added", flush=True)
    connection.settimeout(20)
    want = PART * (2 if adds in ("before", "after") else 1)
    got = b""
    while len(got) < len(want):
        data = connection.recv(1000)
        assert data, f"the stream ended after {len(got)} of {len(want)} bytes"
        got += data
    assert got == want, got
    if is_small:
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 4608, "the buffer is as it was"
    if adds != "ends":
        connection.shutdown(socket.SHUT_WR)
    assert connection.recv(1) == b""
    print("all")


if sys.argv[1] == "server":
    server(int(sys.argv[2]), *sys.argv[3:])
else:
    client(int(sys.argv[2]), sys.argv[3])
