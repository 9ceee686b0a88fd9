"""Runtimes that bring their own event loops: Python's asyncio, node, the JVM."""

import json
import os
import subprocess
import sys

import pytest

from harness import Accel, programs
from procs import finish_together, free_port, until

pytestmark = pytest.mark.programs
CONNECTIONS = 8


def echo(accel, server, client, is_eager=False):
    """Runs `server` and `client`, programs that take PORT CONNECTIONS and end by themselves."""

    def dialogue():
        port = free_port()
        process = accel.server("server", [*server, port, CONNECTIONS]).wait_listening(port)
        out, _ = finish_together(accel.client("client", [*client, port, CONNECTIONS]), process, seconds=40)
        assert len(set(out.split())) == CONNECTIONS, out

    dialogue()
    if is_eager:
        accel.verify(lanes=CONNECTIONS, lane_bytes=100_000)
    else:
        accel.verify(lanes=CONNECTIONS // 2, lane_bytes=100_000, more=dialogue)


def test_asyncio(accel):
    program = [sys.executable, programs() / "asyncio_echo.py"]
    echo(accel, [*program, "server"], [*program, "client"])


def test_node(accel):
    program = ["node", programs() / "echo.js"]
    echo(accel, [*program, "server"], [*program, "client"])


@pytest.mark.parametrize("runtime", [[sys.executable, "asyncio_echo.py"], ["node", "echo.js"]], ids=["asyncio", "node"])
def test_eager_event_loops(world, runtime):
    """connect() that does not wait, and ends that sleep in epoll_wait in the middle of the handshake: a lane for each."""
    program = [runtime[0], programs() / runtime[1]]
    echo(Accel(world, "both", ["--eager"]), [*program, "server"], [*program, "client"], is_eager=True)


@pytest.fixture(scope="session")
def java(tmp_path_factory):
    """The command that runs Echo.class. Without the performance file that the JVM leaves in /tmp while it runs."""
    classes = tmp_path_factory.mktemp("classes")
    subprocess.run(["javac", "-d", str(classes), str(programs() / "Echo.java")], check=True)
    return ["java", "-XX:-UsePerfData", "-XX:TieredStopAtLevel=1", "-cp", classes, "Echo"]


@pytest.mark.parametrize("server", ["server", "nio-server"])
def test_java(accel, java, server):
    echo(accel, [*java, server], [*java, "client"])


def test_java_starts_a_program(world, java, bed):
    """Java's sockets survive an exec; the process that starts a program for it closes them. The lane comes back."""
    accel, port = Accel(world, "both"), free_port()
    server = accel.server("server", [bed / "spawns", "server", port]).wait_listening(port)
    client = accel.client("client", [*java, "spawn", port, 1], stdin=subprocess.PIPE)
    rows = lambda: [(row["mode"], row["reason"]) for row in accel.broker.connections()]
    on_a_lane = lambda: rows() == [("SMCD", None)] * 2
    until(on_a_lane, lambda: f"both ends on a lane: {rows()}", seconds=30)
    os.write(client.popen.stdin.fileno(), b"\n")
    until(lambda: client.out == "spawned 0\n", client.describe, seconds=30)
    until(on_a_lane, lambda: f"both ends on a lane again: {rows()}", seconds=30)
    assert json.loads(accel.broker.tool("stats", "--json"))["connections"]["revoked"] > 0, "it had left it"
    os.write(client.popen.stdin.fileno(), b"\n")
    client.popen.stdin.close()
    client.finish()
    server.finish()


def test_java_closes_under_a_blocked_reader(accel, java, bed):
    def dialogue():
        port = free_port()
        accel.server("server", [bed / "echo", "server", "lt", port, 1]).wait_listening(port)
        out = accel.client("client", [*java, "close", port, 1]).finish()
        assert out.splitlines() == ["read: Socket closed", "reader ended: true"]

    dialogue()
    accel.verify(lane_bytes=100_000, more=dialogue)
