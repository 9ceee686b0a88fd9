r"""What a program was told of it finds, while the lane ends that it came by and its way is TCP.

    shown.py server PORT fionread|peek|corked|shut
    shown.py client PORT fionread|peek|corked|shut

The client ends its lane by an option that no lane can have, in `corked` with TCP_CORK set; in `shut` the server does, by SHUT_RD, while the client calls.
"""

import fcntl
import select
import socket
import struct
import sys
import time

ASKED = 30  # calls, more than it takes to be worth a lane
CONNECTIONS = 60
TEXT = b"x" * 100
FIONREAD = 0x541B


def server(port, how):
    listener = socket.create_server(("127.0.0.1", port))
    for _ in range(CONNECTIONS):
        connection, _ = listener.accept()
        for _ in range(ASKED):
            connection.recv(1)
            connection.sendall(b"!")
        select.select([connection], [], [], 5)
        connection.setblocking(False)
        if how == "shut":
            assert connection.recv(1, socket.MSG_PEEK) == b"x"
            connection.shutdown(socket.SHUT_RD)
        else:
            end = time.monotonic() + 0.006
            while time.monotonic() < end:
                assert seen(connection, how) == len(TEXT)
        assert connection.recv(1000) == TEXT
        connection.sendall(b".")
        connection.close()
    print("all")


def seen(connection, how):
    if how == "fionread":
        return struct.unpack("i", fcntl.ioctl(connection, FIONREAD, bytes(4)))[0]
    return len(connection.recv(1000, socket.MSG_PEEK))


def client(port, how):
    for _ in range(CONNECTIONS):
        connection = socket.create_connection(("127.0.0.1", port))
        for _ in range(ASKED):
            connection.sendall(b"?")
            connection.recv(1)
        connection.sendall(TEXT)
        if how == "corked":
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
        if how == "shut":
            while not select.select([connection], [], [], 0)[0]:
                pass
        else:
            time.sleep(0.002)  # the end is to come while the server looks
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, 1)
        assert connection.recv(1) == b"."
        connection.close()
    print("all")


(server if sys.argv[1] == "server" else client)(int(sys.argv[2]), sys.argv[3])
