"""Readiness at the borders between TCP and a lane: what a look alone shows, and that no edge is lost and none is one too many."""

import os
import re
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
