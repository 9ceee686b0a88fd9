"""What an operator turns, under programs that run: settings take effect without a restart of anything."""

import json
import os
import subprocess
import sys

import pytest

from harness import BINARY, Accel
from procs import free_port, until

pytestmark = pytest.mark.operators

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


def test_a_programs_lanes_follow_the_device(world):
    pair = Pair(world)
    pair.has("SMCD")
    moved = int(pair.broker.tool("device", "get", "xfer_bytes"))
    assert moved > 0 and int(pair.broker.tool("device", "get", "dmbs_cnt")) == 2
    pair.broker.tool("device", "set", "loopback-ism", "active", "off")
    pair.has("TCP 0x0a010002")
    pair.broker.tool("sysctl", "-w", "active=1")
    pair.has("SMCD")
    assert int(pair.broker.tool("device", "get", "loopback-ism", "xfer_bytes")) > moved
    pair.close()


def test_wmem_bounds_what_a_sender_has_under_way(world):
    """At run time, for a lane that is open: less first, then as before."""
    pair = Pair(world, "--set", "wmem=64K")
    pair.has("SMCD")
    pair.talk(size=1 << 20, times=64)
    assert 0 < pair.sending()["window"] <= 64 << 10, pair.sending()
    assert pair.sending()["ring"] == 8 << 20
    pair.broker.tool("sysctl", "-w", "wmem=16M")
    pair.talk(size=1 << 20, times=64)
    assert pair.sending()["window"] > 64 << 10, pair.sending()
    pair.close()


def test_rmem_is_the_size_of_new_rings(world):
    pair = Pair(world)
    pair.broker.tool("sysctl", "-w", "rmem=128K")
    pair.has("SMCD")
    assert pair.sending()["ring"] == 128 << 10
    pair.close()


def test_a_full_link_group_is_followed_by_another(world):
    pair = Pair(world, "--set", "max_conns_per_lgr=16")
    pair.has("SMCD", connections=20)
    groups = json.loads(pair.broker.tool("linkgroup", "--json"))["link_groups"]
    assert sorted(group["conns"] for group in groups) == [4, 16]
    pair.broker.tool("sysctl", "-w", "net.smc.smcr_max_conns_per_lgr=255")
    pair.has("SMCD", connections=40)
    groups = json.loads(pair.broker.tool("linkgroup", "--json"))["link_groups"]
    assert len(groups) == 2, f"further ones find room in the groups that there are: {groups}"
    pair.close()


def test_a_setting_that_cannot_be_is_refused_with_the_reason(world):
    broker = world.broker()
    for arguments, words in [
        (("sysctl", "-w", "rmem=1"), ("rmem=1", "16384 to 16777216")),
        (("sysctl", "autocorking_size"), ("autocorking_size", "SMC has this setting", "held back")),
        (("sysctl", "-w", "net.smc.smcr_testlink_time=5"), ("smcr_testlink_time", "SMC-R")),
        (("device", "set", "dmb_type", "physical"), ("physical", "virtual")),
    ]:
        status, said = asked(broker, *arguments)
        assert status == 1 and all(word in said for word in words), f"{arguments}: {said}"
        assert len(said.splitlines()) == 1, said
