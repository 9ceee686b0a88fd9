"""A connection ends while whoever else may have a copy of its descriptor is stopped.

    ending.py server PORT
    ending.py client PORT close|option|unread|linger|exit|given

The first connection goes on until the client's standard input has a line; the second is asked a while, then ends. The server says what it sees, before
and after it sends something more.
"""

import contextlib
import os
import select
import socket
import struct
import sys

ASKED = 30  # calls, more than it takes to be worth a lane


def exchange(connection):
    connection.sendall(b"?")
    connection.recv(1)


def server(port):
    listener = socket.create_server(("127.0.0.1", port))
    first, _ = listener.accept()
    while first.recv(1):
        first.sendall(b"!")
    second, _ = listener.accept()
    second.settimeout(10)
    for _ in range(ASKED):
        second.recv(1)
        second.sendall(b"!")
    second.sendall(b"more")  # unread by a client that does not want it
    before = seen(second)
    with contextlib.suppress(OSError):
        second.sendall(b"more")
    print(before, seen(second), flush=True)


def seen(connection):
    try:
        return repr(connection.recv(1))
    except OSError as error:
        return type(error).__name__


def client(port, how):
    first = socket.create_connection(("127.0.0.1", port))
    print("asks", flush=True)
    while not select.select([0], [], [], 0.001)[0]:
        exchange(first)
    os.read(0, 1)
    first.close()
    second = socket.create_connection(("127.0.0.1", port))
    for _ in range(ASKED):
        exchange(second)
    if how != "unread":
        second.recv(4, socket.MSG_WAITALL)
    else:
        second.recv(1, socket.MSG_PEEK)
    if how == "exit":
        os._exit(0)
    if how == "linger":
        second.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    if how == "option":  # that no lane can have
        second.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, 1)
    if how == "given":
        pair = socket.socketpair()
        socket.send_fds(pair[0], [b"-"], [second.fileno()])
    second.close()
    if how == "given":
        _, others, _, _ = socket.recv_fds(pair[1], 1, 1)
        os.write(others[0], b"zz")
    print("closed", flush=True)
    os.read(0, 1)


if sys.argv[1] == "server":
    server(int(sys.argv[2]))
else:
    client(int(sys.argv[2]), sys.argv[3])
