"""What the tests of an operator's tools share: a pair of programs that have dialogues as they are told, and tools that may
refuse."""

import json
import os
import subprocess
import sys

from harness import BINARY, Accel
from procs import free_port, until

SERVER = """
import selectors, socket, sys
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])), backlog=256)
selector = selectors.DefaultSelector()
selector.register(listener, selectors.EVENT_READ)
while True:
    for key, _ in selector.select():
        if key.fileobj is listener:
            selector.register(listener.accept()[0], selectors.EVENT_READ)
        elif data := key.fileobj.recv(1 << 20):
            key.fileobj.sendall(data[-1:])
        else:
            selector.unregister(key.fileobj)
            key.fileobj.close()
"""

CLIENT = """
import socket, sys
connections = []
for line in sys.stdin:
    count, size, times = map(int, line.split())
    while len(connections) < count:
        connections.append(socket.create_connection(("127.0.0.1", int(sys.argv[1]))))
    for connection in connections[:count]:
        for _ in range(times):
            connection.sendall(bytes(size - 1) + b"!")
            while connection.recv(1 << 20)[-1:] not in (b"!", b"\\0"):
                pass
    for connection in connections[:count]:
        connection.setblocking(False)
        try:
            while connection.recv(1 << 20):
                pass
        except BlockingIOError:
            connection.setblocking(True)
    print("done", flush=True)
"""


class Pair:
    """A client that opens connections and has dialogues on them as it is told, and its server."""

    def __init__(self, world, *broker_options):
        self.accel, self.port = Accel(world, "both", ["--eager"], broker_options), free_port()
        self.broker, self.rounds = self.accel.broker, 0
        self.server = self.accel.server("server", [sys.executable, "-c", SERVER, self.port]).wait_listening(self.port)
        orders, self.orders = os.pipe()
        self.client = self.accel.client("client", [sys.executable, "-c", CLIENT, self.port], stdin=orders)
        os.close(orders)

    def talk(self, connections=1, size=100, times=10):
        os.write(self.orders, f"{connections} {size} {times}\n".encode())
        self.rounds += 1
        until(lambda: self.client.out.count("done") == self.rounds, lambda: self.client.describe(), seconds=30)

    def modes(self):
        return {connection["mode"] for connection in self.broker.connections()}

    def has(self, mode, connections=1):
        """Talks until all ends have this mode."""
        def so():
            self.talk(connections)
            return self.modes() == {mode}

        until(so, lambda: f"{mode}; have {self.broker.connections()}", seconds=20)

    def wakeups(self):
        """Wake-ups of both programs so far, by latency."""
        return json.loads(self.broker.tool("stats", "--json"))["wakeups"]["classes"]

    def sending(self):
        (client,) = [c for c in self.broker.connections() if c["role"] == "client"]
        return client["tx"]

    def close(self):
        os.close(self.orders)
        self.client.finish()


def asked(broker, *arguments):
    """A tool that may refuse: its status and what it says."""
    env = broker.world.env | {"SHUNPIKE_SOCKET": str(broker.socket)}
    result = subprocess.run([BINARY, *arguments], env=env, capture_output=True, text=True, timeout=60)
    return result.returncode, result.stdout + result.stderr
