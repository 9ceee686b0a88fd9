"""A peer that completes the handshake and then writes what it likes (tests/hostile), against servers of each kind.

The victim may lose that one connection. It serves its other connections, whose bytes are checked, it neither crashes
nor hangs nor spins. HOSTILE_ROUNDS and HOSTILE_SEED choose how long, and replay: `make hostile`."""

import os
import random

import pytest

from harness import HOSTILE, Accel
from procs import free_port, until

pytestmark = pytest.mark.hostile
ROUNDS = int(os.environ.get("HOSTILE_ROUNDS", "60"))
SEED = int(os.environ.get("HOSTILE_SEED", random.randrange(1 << 32)))
SECONDS = 20 + ROUNDS / 4
EVENTS = ("lt", "et", "oneshot", "exclusive", "poll", "select")
CALLS = ("threads", "peek")


@pytest.fixture
def victim(request, world, bed):
    accel, port = Accel(world, "both"), free_port()
    argv = [bed / "echo", "server", request.param, port, 1 << 30] if request.param in EVENTS else [bed / "victim", request.param, port]
    return accel, accel.server("victim", argv).wait_listening(port), port


def attack(accel, port, pid, rounds, only=(), seed=SEED):
    argv = [HOSTILE, accel.broker.socket, f"127.0.0.1:{port}", pid, seed, rounds, *only]
    return accel.world.start("hostile", argv)


def stood(accel, server):
    """The victim still runs, and has counted what it refused."""
    assert server.popen.poll() is None, f"the victim ended: {server.describe()}"
    until(lambda: accel.broker.stats().reasons.get("peer_violation", 0) > 0, lambda: f"a violation is counted: {accel.broker.stats()}")


@pytest.mark.parametrize("victim", [*EVENTS, *CALLS, "trusting"], indirect=True)
def test_victim_alone(victim):
    """Probed by a bystander after each round, and idle whenever nobody wants anything of it."""
    accel, server, port = victim
    attack(accel, port, server.pid, ROUNDS).finish(SECONDS)
    stood(accel, server)


@pytest.mark.parametrize("victim", ["threads"], indirect=True)
def test_urgent_data_in_place_of_a_lane(victim):
    """It kept a blocking reader on the CPU where its lane was to begin: seen in two of three runs of 60 rounds."""
    accel, server, port = victim
    attack(accel, port, server.pid, 120, ["TcpUrgent"]).finish(SECONDS)


@pytest.mark.parametrize("victim", ["knowing"], indirect=True)
def test_bytes_that_nobody_tells_of(victim):
    """A call that shows them tells the sets: seen as a poll() with bytes before an epoll_wait() without."""
    accel, server, port = victim
    attack(accel, port, 0, 60, ["Mute"]).finish(SECONDS)
    assert server.popen.poll() is None, f"the victim ended: {server.describe()}"


@pytest.mark.parametrize("victim", ["threads", "peek", "lt"], indirect=True)
def test_loans(victim):
    """Of what is not there, is not the peer's, or was read already."""
    accel, server, port = victim
    attack(accel, port, server.pid, 120, ["Lend"]).finish(SECONDS)
    stood(accel, server)


@pytest.mark.parametrize("victim", ["trusting"], indirect=True)
def test_loans_that_poll_told_of(victim):
    """The read finds them gone, asks for them by TCP, and is never answered: it waited for ever in round 19 of this seed."""
    accel, server, port = victim
    attack(accel, port, 0, 20, ["Lend"], seed=1).finish(SECONDS)
    stood(accel, server)


# Not `trusting`: it drops whoever does not read at once.
@pytest.mark.parametrize("victim", EVENTS + CALLS, indirect=True)
def test_victim_among_honest_connections(victim, bed):
    """Meanwhile others echo random bytes over lanes of the same server, and check each."""
    accel, server, port = victim
    hostile = attack(accel, port, 0, ROUNDS // 2)
    finished = 0
    while hostile.popen.poll() is None or finished == 0:
        accel.client("honest", [bed / "echo", "client", port, 3, 150]).finish(SECONDS)
        finished += 1
    hostile.finish(SECONDS)
    stood(accel, server)
    accel.verify(lanes=3)
