"""Readiness at the borders between TCP and a lane: what a look alone shows, and that no edge is lost and none is one too many."""

import json
import os
import re
import subprocess
import sys

import pytest

from harness import Accel, programs
from procs import free_port, until

pytestmark = pytest.mark.parity

STATES = ("watched", "nominated", "granted_tcp", "granted_ring", "granted_both", "granted_ended", "lane", "ended", "stopped", "taken",
          "revoked")  # fmt: skip


@pytest.mark.parametrize("mode", ["tcp", "earned"])
def test_a_short_read_is_followed_by_an_edge(world, bed, mode):
    """An edge-triggered server that takes a short read for the last byte that is there hears of those that come after, also where
    TCP's end and a lane's begin."""
    accel, port = Accel(world, "tcp" if mode == "tcp" else "both"), free_port()
    server = accel.server("server", [bed / "drained", "server", port, 500, 20]).wait_listening(port)
    assert accel.client("client", [bed / "drained", "client", port, 500, 20]).finish() == "done\n"
    assert server.finish() == "done\n"
    if mode == "earned":
        until(lambda: accel.broker.stats().lanes >= 50, lambda: f"lanes in the middle of dialogues; have {accel.broker.stats()}")


def looks(world, state, reader, broker):
    """What looks.py says, told meanwhile where its newest connection runs."""
    orders, writer = os.pipe()
    accel = Accel(world, "both" if broker else "tcp")
    pid = accel.broker.proc.pid if broker else 0
    program = accel.client("looks", [sys.executable, programs() / "looks.py", pid, state, reader], stdin=orders)
    os.close(orders)
    answered = 0
    has_more = lambda: len(questions()) > answered or program.popen.poll() is not None
    questions = lambda: re.findall(r"ask (\d+)\n", program.out)
    with os.fdopen(writer, "w", buffering=1) as answers:
        while until(has_more, program.describe, pause=0.002) and program.popen.poll() is None:
            port = questions()[answered]
            ends = [end for end in accel.broker.connections() if port in (end["local"].split(":")[-1], end["remote"].split(":")[-1])]
            modes = [f"{end['role']}.{way}={end[way]['mode']}" for end in ends for way in ("rx", "tx")]
            print(*modes, file=answers)
            answered += 1
    return re.sub(r"ask \d+\n", "", program.finish())


@pytest.mark.parametrize("reader", ["server", "client"])
@pytest.mark.parametrize("state", STATES)
def test_a_look_alone_sees_what_a_read_would_get(world, state, reader):
    expected = looks(world, state, reader, broker=False)
    assert expected.endswith("done\n")
    world.procs.clear()
    assert looks(world, state, reader, broker=True) == expected


def events(rounds):
    dialogue = "answer: IN OUT\nread 100\nread: nothing\n" * rounds
    return ("registered: OUT\nat first: nothing\nat first: nothing\n" + dialogue + "idle: nothing\nidle: nothing\n"
            "closed: IN OUT RDHUP\nread 0\nended: nothing\nended: nothing\n")  # fmt: skip


@pytest.mark.parametrize("how", ["tcp", "earned", "eager", "revoked"])
def test_edges_are_those_of_tcp_one_for_one(world, bed, how):
    """Not one more for a lane that opens, of room for writing for one, nor for one that closes; nor one fewer."""
    accel, port = Accel(world, "tcp" if how == "tcp" else "both", ["--eager"] if how == "eager" else []), free_port()
    clients, rounds = 40, 400 if how == "revoked" else 20
    server = accel.server("server", [bed / "events", "server", port, clients, rounds]).wait_listening(port)
    client = accel.client("client", [bed / "events", "client", port, clients, rounds])
    while how == "revoked" and client.popen.poll() is None:
        for end in accel.broker.connections():
            subprocess.run([accel.world.binary, "revoke", str(end["pid"])], env=world.env | {"SHUNPIKE_SOCKET": str(accel.broker.socket)})
    assert client.finish() == events(rounds) * clients + "done\n"
    assert server.finish() == "done\n"
    if how == "revoked":
        assert json.loads(accel.broker.tool("stats", "--json"))["connections"]["revoked"] > clients / 4
    if how != "tcp":
        # Of 20 rounds, some are over before they have earned one.
        until(lambda: accel.broker.stats().lanes >= clients / 5, lambda: f"lanes; have {accel.broker.stats()}")
