"""Many connections at once: each gets its lane, whatever fits into a session's socket at a time."""

import contextlib
import json
import os
import re
import resource
import signal
import sys
from pathlib import Path

import pytest

from harness import LOAD, Accel
from netns import needs_root
from procs import free_port, until
from test_limits import setting

CROWD = """
import os, select, socket, sys
port, count, sign = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
connections = []
for _ in range(count):
    connections.append(socket.create_connection(("127.0.0.1", port)))
print("open", flush=True)
message = os.urandom(600)
rounds = 0
while not os.path.exists(sign):
    for connection in connections:
        connection.sendall(message)
    for connection in connections:
        left = len(message)
        got = b""
        while len(got) < len(message):
            part = connection.recv(len(message) - len(got))
            assert part, "the server has closed"
            got += part
        assert got == message
    rounds += 1
print("rounds", rounds > 0, flush=True)
"""


@pytest.mark.parametrize("eager", [False, True], ids=["earned", "eager"])
@pytest.mark.parametrize("stopped", [False, True], ids=["", "broker-stops"])
def test_each_of_a_crowd_gets_its_lane(world, bed, eager, stopped):
    """All ask at once, more of them than a session's socket holds messages for; none is lost to a step that was."""
    accel = Accel(world, "both", ["--eager"] if eager else [])
    port, sign, count = free_port(), world.directory / "enough", 240
    accel.server("echo", [bed / "echo", "server", "lt", port, 1_000_000]).wait_listening(port)
    client = accel.client("crowd", [sys.executable, "-c", CROWD, port, count, sign])
    if stopped:
        # In the middle of their handshakes.
        until(lambda: accel.broker.stats().handled > 8, lambda: f"the first connections: {accel.broker.stats()}", seconds=30)
        accel.broker.proc.signal(signal.SIGSTOP)
        until(lambda: os.path.exists(f"/proc/{accel.broker.proc.pid}") and is_stopped(accel.broker.proc.pid), "stopped")
        until(lambda: client.out == "open\n", "all are open", seconds=60)
        accel.broker.proc.signal(signal.SIGCONT)
    until(lambda: accel.broker.stats().lanes >= count, lambda: f"{count} lanes: {accel.broker.stats()}", seconds=60)
    ends = json.loads(accel.broker.tool("stats", "--json"))["connections"]
    assert ends.get("handshake_errors", 0) == 0, ends
    sign.touch()
    client.finish()


def is_stopped(pid):
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rsplit(")", 1)[1].split()[0] == "T"


ASKS = """
import socket, sys, time
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
connection.settimeout(20)
longest = 0
for number in range(200):
    begin = time.monotonic()
    connection.sendall(b"%3d" % number)
    assert connection.recv(3, socket.MSG_WAITALL) == b"%3d" % number
    longest = max(longest, time.monotonic() - begin)
    time.sleep(0.005)
print("answered", longest)
"""


def test_nobody_waits_for_the_busy_ones(world):
    """A server with busy connections in many link groups hears of one that is quiet, in a group of its own, the last."""
    accel = Accel(world, "both", ["--eager"], broker_options=["--set", "max_conns_per_lgr=16"])
    port = free_port()
    at = f"tcp:{port}"
    accel.server("echo", [LOAD, "echo", at]).wait_listening(port)
    busy = accel.client("busy", [LOAD, "crowd", at, 240, 240, 600])
    until(lambda: accel.broker.stats().lanes >= 240, lambda: f"240 lanes: {accel.broker.stats()}", seconds=60)
    asking = accel.client("asks", [sys.executable, "-c", ASKS, port])
    word, longest = asking.finish().split()
    assert word == "answered" and float(longest) < 5, longest
    assert busy.popen.poll() is None, "the busy ones still were"
    assert len(json.loads(accel.broker.tool("linkgroup", "--json"))["link_groups"]) >= 15
    busy.kill()


QUIET = """
import os, socket, sys, time
port, count, sign = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
connections = [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]
message = os.urandom(100)
rounds = 0
while not os.path.exists(sign):
    for connection in connections:
        connection.sendall(message)
        assert connection.recv(len(message), socket.MSG_WAITALL) == message
    rounds += 1
    print("round", flush=True)
    time.sleep(0.005)
print("done", flush=True)
"""


def test_what_asks_and_answers_takes_a_page_each_way(world, bed):
    """Many connections with short messages, each of which has sent several times what a first ring holds."""
    accel = Accel(world, "both")
    port, sign, count = free_port(), world.directory / "enough", 60
    accel.server("echo", [bed / "echo", "server", "lt", port, 1_000_000]).wait_listening(port)
    client = accel.client("quiet", [sys.executable, "-c", QUIET, port, count, sign])
    until(lambda: accel.broker.stats().lanes >= count, lambda: f"{count} lanes: {accel.broker.stats()}", seconds=60)
    rounds = client.out.count("round") + 100
    until(lambda: client.out.count("round") >= rounds, "so many rounds", seconds=60)
    (pid,) = {end["pid"] for end in accel.broker.connections() if end["pid"] == client.pid}
    smaps = Path(f"/proc/{pid}/smaps").read_text()
    resident = sum(int(kib) for kib in re.findall(r"memfd:shunpike-dmb.*?\nRss: +(\d+) kB", smaps, re.S))
    windows = [end[way]["window"] for end in accel.broker.connections() for way in ("tx", "rx")]
    assert resident <= 9 * count, f"{resident} KiB for {count} connections"
    assert set(windows) == {2048}, windows
    sign.touch()
    client.finish()


@needs_root
@pytest.mark.cost
def test_ten_thousand_connections(world, bed):
    """Nine of ten have been on lanes, and most are: 200 MB of shared memory in all, and 40 MB of page tables a process, at most."""
    count, port, sign = 10_000, free_port(), world.directory / "enough"
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard < count + 1000:
        pytest.skip(f"a process may have {hard} descriptors")
    many = ["prlimit", f"--nofile={hard}:{hard}"]
    # An eighth of the mappings that a process may have are for lanes.
    with setting("vm/max_map_count", 8 * 4 * count):
        policy = world.directory / "broker.toml"
        policy.write_text(f"[limits.user]\ndmbs = {3 * count}\n[limits.process]\ndmbs = {3 * count}\n")
        accel = Accel(world, "both", broker_options=["--config", policy])
        server = accel.server("echo", [*many, bed / "echo", "server", "lt", port, 1_000_000]).wait_listening(port)
        client = accel.client("crowd", [*many, sys.executable, "-c", CROWD, port, count, sign])
        have = lambda: accel.broker.stats().lanes
        until(lambda: have() >= count * 9 // 10, lambda: f"{count} lanes: {accel.broker.stats()}", seconds=120, pause=0.2)
        ours = {}
        for program in (server, client):
            for line in Path(f"/proc/{program.pid}/maps").read_text().splitlines():
                if "/memfd:shunpike-" in line:
                    # Each piece of memory once, whoever has mapped it; some go meanwhile.
                    with contextlib.suppress(FileNotFoundError):
                        found = os.stat(f"/proc/{program.pid}/map_files/{line.split()[0]}")
                        ours[found.st_ino] = found.st_blocks * 512
        tables = [int(re.search(r"VmPTE:\s+(\d+) kB", Path(f"/proc/{it.pid}/status").read_text())[1]) << 10 for it in (server, client)]
        said = f"{len(ours)} pieces of memory, {sum(ours.values()) / 1e6:.0f} MB; page tables {[size / 1e6 for size in tables]} MB"
        print(said)
        assert len(ours) > count and sum(ours.values()) <= 200e6 and max(tables) <= 40e6, said
        sign.touch()
        client.finish(60)
