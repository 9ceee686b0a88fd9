"""Runtimes that bring their own event loops: Python's asyncio, node, the JVM."""

import subprocess
import sys

import pytest

from harness import programs
from procs import finish_together, free_port

pytestmark = pytest.mark.programs
CONNECTIONS = 8


def echo(accel, server, client):
    """Runs `server` and `client`, programs that take PORT CONNECTIONS and end by themselves; the client's hashes."""
    port = free_port()
    process = accel.server("server", [*server, port, CONNECTIONS]).wait_listening(port)
    out, _ = finish_together(accel.client("client", [*client, port, CONNECTIONS]), process, seconds=40)
    assert len(set(out.split())) == CONNECTIONS, out
    # A lane has to be earned, and some of these dialogues may be over first.
    accel.verify(lanes=CONNECTIONS // 2, lane_bytes=100_000)


def test_asyncio(accel):
    program = [sys.executable, programs() / "asyncio_echo.py"]
    echo(accel, [*program, "server"], [*program, "client"])


def test_node(accel):
    program = ["node", programs() / "echo.js"]
    echo(accel, [*program, "server"], [*program, "client"])


@pytest.fixture(scope="session")
def java(tmp_path_factory):
    """The command that runs Echo.class. Without the performance file that the JVM leaves in /tmp while it runs."""
    classes = tmp_path_factory.mktemp("classes")
    subprocess.run(["javac", "-d", str(classes), str(programs() / "Echo.java")], check=True)
    return ["java", "-XX:-UsePerfData", "-XX:TieredStopAtLevel=1", "-cp", classes, "Echo"]


@pytest.mark.parametrize("server", ["server", "nio-server"])
def test_java(accel, java, server):
    echo(accel, [*java, server], [*java, "client"])


def test_java_closes_under_a_blocked_reader(accel, java, bed):
    port = free_port()
    accel.server("server", [bed / "echo", "server", "lt", port, 1]).wait_listening(port)
    out = accel.client("client", [*java, "close", port, 1]).finish()
    assert out.splitlines() == ["read: Socket closed", "reader ended: true"]
    accel.verify(lane_bytes=100_000)
