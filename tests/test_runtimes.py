"""Runtimes that bring their own event loops: Python's asyncio, node, the JVM, Bun, Deno, tokio with a ring."""

import ctypes
import errno
import json
import os
import platform
import subprocess
import sys

import pytest

from harness import MODES, Accel, programs
from packages import by_cargo, by_npm
from procs import finish_together, free_port, until
from test_suites import ALL

pytestmark = pytest.mark.programs
CONNECTIONS = 8
IS_ARM = platform.machine() == "aarch64"


def dialogue_of(accel, server, client):
    """Runs `server` and `client`, programs that take PORT CONNECTIONS and end by themselves."""
    port = free_port()
    process = accel.server("server", [*server, port, CONNECTIONS]).wait_listening(port)
    out, _ = finish_together(accel.client("client", [*client, port, CONNECTIONS]), process, seconds=40)
    assert len(set(out.split())) == CONNECTIONS, out


def echo(accel, server, client, is_eager=False):
    """The same, with lanes where both are under Shunpike."""
    dialogue = lambda: dialogue_of(accel, server, client)
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


@pytest.mark.parametrize("version", [pytest.param("22.20.0", marks=pytest.mark.suites), "24.9.0"])
def test_node_with_a_ring(world, version):
    """Its libuv has a ring, for changes of its epoll set alone: lanes all the same."""
    if version != "24.9.0" and not ALL:
        pytest.skip("another one is enough: make suites")
    node = by_npm(f"node-linux-{'arm64' if IS_ARM else 'x64'}", version, "bin/node")
    program = [node, programs() / "echo.js"]
    echo(Accel(world, "both"), [*program, "server"], [*program, "client"])


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


@pytest.mark.parametrize("options", [[], ["--eager"]], ids=["earned", "eager"])
def test_java_asks_what_is_available(world, java, bed, options):
    """A loop until available() tells of the whole answer: it had no end once its half was granted and the answer came by a lane."""
    accel = Accel(world, "both", options)

    def dialogue():
        port = free_port()
        server = accel.server("server", [bed / "echo", "server", "lt", port, 1]).wait_listening(port)
        said, _ = finish_together(accel.client("client", [*java, "available", port, 1]), server, seconds=40)
        assert said == "all were available\n"

    for _ in range(3):
        dialogue()
    accel.verify(lane_bytes=50_000, more=dialogue)


def test_java_closes_under_a_blocked_reader(accel, java, bed):
    def dialogue():
        port = free_port()
        accel.server("server", [bed / "echo", "server", "lt", port, 1]).wait_listening(port)
        out = accel.client("client", [*java, "close", port, 1]).finish()
        assert out.splitlines() == ["read: Socket closed", "reader ended: true"]

    dialogue()
    accel.verify(lane_bytes=100_000, more=dialogue)


# Each side and both, in the default setting and with --eager.
SETTINGS = [(mode, options) for options in ([], ["--eager"]) for mode in MODES if mode != "tcp" or not options]
in_all_settings = pytest.mark.parametrize("mode, options", SETTINGS, ids=lambda part: part if isinstance(part, str) else "-".join(part) or "default")


@pytest.fixture(scope="session")
def deno():
    program = by_npm(f"@deno/linux-{'arm64' if IS_ARM else 'x64'}-glibc", "2.9.6", "deno")
    return ["env", "DENO_NO_UPDATE_CHECK=1", program, "run", "--allow-net", programs() / "sockets.mjs"]


@pytest.fixture(scope="session")
def bun():
    return [by_npm(f"@oven/bun-linux-{'aarch64' if IS_ARM else 'x64'}", "1.4.5", "bin/bun"), programs() / "sockets.mjs"]


@in_all_settings
def test_deno(world, deno, mode, options):
    echo(Accel(world, mode, options), [*deno, "server"], [*deno, "client"])


@in_all_settings
def test_bun(world, bun, mode, options):
    """It reads and writes by libc and waits by system calls of its own: no lane, whatever the counts say."""
    accel = Accel(world, mode, options)
    dialogue_of(accel, [*bun, "server"], [*bun, "client"])
    if not accel.broker:
        return
    # Who waits for a peer alone with --eager has not come so far.
    if mode == "both" or not options:
        until(lambda: accel.broker.stats().reasons.get("waits_unseen"), lambda: f"its reason; have {accel.broker.stats()}")
    assert accel.broker.stats().lanes == 0


@pytest.fixture(scope="session")
def rings():
    """The command that runs tests/tokio_rings; where the kernel lets nobody have a ring, it has nothing to show."""
    made = ctypes.CDLL(None, use_errno=True).syscall(425, 1, None)
    assert made == -1, "a ring without parameters"
    if (error := ctypes.get_errno()) in (errno.ENOSYS, errno.EPERM):
        pytest.skip(f"no io_uring here: {os.strerror(error)}")
    return [by_cargo("tokio_rings", "tokio-rings-echo", "--cfg tokio_unstable")]


@in_all_settings
def test_tokio_with_a_ring_for_files(world, rings, mode, options):
    """Its ring is set up in the middle of the dialogues, and names no connection: lanes stay."""
    accel = Accel(world, mode, options)
    dialogue = lambda: dialogue_of(accel, [*rings, "files", "server"], [*rings, "files", "client"])
    dialogue()
    accel.verify(more=dialogue)
    if accel.broker:
        assert "io_uring" not in accel.broker.stats().reasons, accel.broker.stats()


@in_all_settings
def test_tokio_with_a_ring_for_sockets(world, rings, mode, options):
    accel = Accel(world, mode, options)
    dialogue_of(accel, [*rings, "sockets", "server"], [*rings, "sockets", "client"])
    assert not accel.broker or accel.broker.stats().lanes == 0, accel.broker.stats()
