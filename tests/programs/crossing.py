"""Two of these connect to each other, and each sends before it accepts: crossing.py PORT PORT-OF-THE-OTHER ROUNDS
Says how long each round took, milliseconds."""

import socket
import sys
import time

own, other, rounds = map(int, sys.argv[1:])
listener = socket.create_server(("127.0.0.1", own))


def connected():
    """The other one may not listen yet."""
    while True:
        try:
            return socket.create_connection(("127.0.0.1", other))
        except ConnectionRefusedError:
            time.sleep(0.01)


def whole(connection, size):
    got = b""
    while len(got) < size:
        piece = connection.recv(size - len(got))
        assert piece, "no early end of the stream"
        got += piece
    return got


for number in range(rounds):
    to = connected()
    began = time.monotonic()
    to.sendall(b"%08d" % number)
    source, _ = listener.accept()
    assert whole(source, 8) == b"%08d" % number
    source.sendall(b"!")
    assert whole(to, 1) == b"!"
    print(round(1000 * (time.monotonic() - began)), flush=True)
    source.close(), to.close()
