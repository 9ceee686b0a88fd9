"""Random payloads through redis or memcached: set and get on several connections at once, hashes compared.

usage: cache_client.py redis|memcached PORT CONNECTIONS ROUNDS
"""

import hashlib
import random
import socket
import sys
import threading


class Connection:
    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.pending = b""

    def fill(self):
        more = self.socket.recv(65536)
        if not more:
            raise EOFError("the server closed the connection")
        self.pending += more

    def line(self):
        while b"\r\n" not in self.pending:
            self.fill()
        line, self.pending = self.pending.split(b"\r\n", 1)
        return line

    def exactly(self, count):
        while len(self.pending) < count:
            self.fill()
        data, self.pending = self.pending[:count], self.pending[count:]
        return data


class Redis(Connection):
    def set(self, key, value):
        head = b"*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n" % (len(key), key, len(value))
        self.socket.sendall(head + value + b"\r\n")
        assert self.line() == b"+OK"

    def get(self, key):
        self.socket.sendall(b"*2\r\n$3\r\nGET\r\n$%d\r\n%s\r\n" % (len(key), key))
        return self.exactly(int(self.line()[1:]) + 2)[:-2]


class Memcached(Connection):
    def set(self, key, value):
        self.socket.sendall(b"set %s 0 0 %d\r\n" % (key, len(value)) + value + b"\r\n")
        assert self.line() == b"STORED"

    def get(self, key):
        self.socket.sendall(b"get %s\r\n" % key)
        value = self.exactly(int(self.line().split()[3]) + 2)[:-2]
        assert self.line() == b"END"
        return value


def work(kind, port, index, rounds, hashes):
    connection, source, total = kind(port), random.Random(index), hashlib.sha256()
    for number in range(rounds):
        value = source.randbytes(source.choice((10, 100, 1000, 5000, 60000)) + source.randrange(1000))
        connection.set(b"key-%d-%d" % (index, number % 7), value)
        back = connection.get(b"key-%d-%d" % (index, number % 7))
        assert back == value, f"connection {index}, round {number}: the value came back changed"
        total.update(back)
    hashes[index] = total.hexdigest()


def main():
    kind = {"redis": Redis, "memcached": Memcached}[sys.argv[1]]
    port, connections, rounds = (int(argument) for argument in sys.argv[2:5])
    hashes = [None] * connections
    threads = [threading.Thread(target=work, args=(kind, port, index, rounds, hashes)) for index in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(hashes), "a connection failed; see above"
    print("\n".join(hashes))


main()
