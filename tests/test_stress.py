"""Lanes opened and closed at random under full flow: a bounded sample. `make stress` runs the same for long."""

import pytest

from harness import MODES, Accel
from procs import free_port
from stress import Round

pytestmark = pytest.mark.stress

WITHOUT_STOPS = {deed: weight for deed, weight in Round.DEEDS.items() if not deed.startswith("stop")}


def test_every_byte_arrives_whatever_happens(world, bed):
    stream = Round(world, bed, seed=11)
    stream.run(seconds=10)
    assert stream.finish() > 0
    # Both ends of each connection at first: what is more came back.
    assert stream.opened > 2 * stream.conns, f"lanes come back: {stream.describe()}"


def test_calls_that_block_do_all_they_are_asked(world, bed):
    """Without SIGSTOP, after which they return early on TCP, too, a write sends all and MSG_WAITALL fills its buffer."""
    stream = Round(world, bed, seed=12, deeds=WITHOUT_STOPS)
    stream.run(seconds=6)
    stream.finish()


@pytest.mark.parametrize("oneway", [False, True], ids=["both-ways", "one-way"])
@pytest.mark.parametrize("victim", ["client", "server"])
def test_an_end_is_killed(world, bed, victim, oneway):
    """Both ways: what arrives is right, and it ends. One way, the sender killed: all that its calls returned for arrives."""
    stream = Round(world, bed, seed=13 + oneway, conns=8, oneway=oneway)
    stream.run(seconds=1.5)
    stream.kill(victim)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("how", ["blocking", "poll", "epoll"])
def test_a_stopped_peer_takes_what_tcp_takes(world, bed, mode, how):
    """A writer whose peer is stopped gets rid of as much as TCP's buffers hold, and no byte of it is lost."""
    accel = Accel.eager(world, mode)
    port = free_port()
    server = accel.server("server", [bed / "stopped", "server", port, how]).wait_listening(port)
    client = accel.client("client", [bed / "stopped", "client", port, how])
    assert client.finish(40) == "as much as TCP takes: 1\nall received: 1\n", server.describe()
    server.finish()
    accel.verify(lane_bytes=100_000)
