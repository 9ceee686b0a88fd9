r"""Asks a server for bytes, line by line, on several connections: "N\n" for the first N bytes of SHAKE-256 of N.

usage: lines_client.py PORT CONNECTIONS LINES
"""

import hashlib
import random
import socket
import sys
import threading


def exactly(connection, count):
    parts = []
    while count:
        data = connection.recv(min(count, 65536))
        assert data, f"the stream ended with {count} bytes of an answer missing"
        parts.append(data)
        count -= len(data)
    return b"".join(parts)


def talk(port, index, lines, done):
    source = random.Random(index)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for number in range(lines):
            count = source.choice((1, 100, 5000, 70000)) + source.randrange(300)
            connection.sendall(b"%d\n" % count)
            wanted = hashlib.shake_256(b"%d" % count).digest(count)
            assert exactly(connection, count) == wanted, f"connection {index}, line {number}: not what was asked for"
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b"", f"connection {index}: bytes after the end"
    done[index] = True


def main():
    port, connections, lines = (int(argument) for argument in sys.argv[1:4])
    done = [False] * connections
    threads = [threading.Thread(target=talk, args=(port, index, lines, done)) for index in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(done), "a connection failed; see above"
    print("all", connections)


main()
