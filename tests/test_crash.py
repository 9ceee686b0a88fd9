"""One end is killed or stopped at some moment: the other gets every byte that was sent, then what TCP says."""

import random
import signal
import struct
import time

import pytest

from harness import MODES, Accel, fifos
from procs import free_port, until

pytestmark = pytest.mark.crash
NEVER = 1 << 60


class Stream:
    """A sender and a receiver of bed/crash, and how far they are."""

    def __init__(self, world, mode, bed, limit=0, pause_at=NEVER, sender_listens=False):
        self.accel = Accel.eager(world, mode)
        self.tally = world.directory / "tally"
        self.tally.write_bytes(bytes(4096))
        port, env = free_port(), fifos(world)
        self.sync = world.directory / "sync"
        send = [bed / "crash", "send", "listen" if sender_listens else "connect", port, self.tally, limit]
        receive = [bed / "crash", "receive", "connect" if sender_listens else "listen", port, self.tally, pause_at]
        first, second = (send, receive) if sender_listens else (receive, send)
        server = self.accel.server("server", first, env=env).wait_listening(port)
        client = self.accel.client("client", second, env=env)
        self.sender, self.receiver = (server, client) if sender_listens else (client, server)

    def counts(self):
        return struct.unpack("=QQ", self.tally.read_bytes()[:16])

    def wait_until_full(self):
        """The sender blocks: nothing was sent for 300 ms, and something is on its way."""
        last, since = None, time.monotonic()

        def quiet():
            nonlocal last, since
            if self.counts() != last:
                last, since = self.counts(), time.monotonic()
            return last[0] > last[1] > 0 and time.monotonic() - since > 0.3

        until(quiet, lambda: f"the sender blocks; sent, received: {self.counts()}")

    def tell(self, end):
        with open(self.sync / ("to-server" if end is self.receiver else "to-client"), "wb") as fifo:
            fifo.write(b"!")

    def assert_all_received(self):
        assert self.receiver.finish(20).splitlines() == [
            "end: 0", "all that sends returned for: 1", "nothing more than was handed to send: 1"]  # fmt: skip


each_mode = pytest.mark.parametrize("mode", MODES)
each_side = pytest.mark.parametrize("sender_listens", [False, True], ids=["client-sends", "server-sends"])


@each_mode
@each_side
def test_sender_killed_with_everything_full(world, bed, mode, sender_listens):
    stream = Stream(world, mode, bed, pause_at=40_000, sender_listens=sender_listens)
    stream.wait_until_full()
    stream.sender.kill()
    stream.tell(stream.receiver)
    stream.assert_all_received()
    stream.accel.verify(lane_bytes=10_000)


@each_mode
@each_side
def test_sender_killed_in_full_flow(world, bed, mode, sender_listens):
    """The moment of death is random; whatever it is, no byte is lost, and none is made up."""
    stream = Stream(world, mode, bed, sender_listens=sender_listens)
    moment = random.Random(f"{mode}{sender_listens}").randrange(1 << 20, 30 << 20)
    until(lambda: stream.counts()[0] > moment, "the stream flows", pause=0.0005)
    stream.sender.kill()
    stream.assert_all_received()
    stream.accel.verify(lane_bytes=1 << 20)


@each_mode
@each_side
def test_receiver_killed_with_bytes_unread(world, bed, mode, sender_listens):
    stream = Stream(world, mode, bed, pause_at=40_000, sender_listens=sender_listens)
    stream.wait_until_full()
    stream.receiver.kill()
    assert stream.sender.finish(20).splitlines() == ["send: ECONNRESET", "again: EPIPE"]
    stream.accel.verify(lane_bytes=10_000)


@each_mode
def test_receiver_killed_in_full_flow(world, bed, mode):
    stream = Stream(world, mode, bed)
    until(lambda: stream.counts()[1] > 5 << 20, "the stream flows", pause=0.0005)
    stream.receiver.kill()
    first, second = stream.sender.finish(20).splitlines()
    assert first in ("send: ECONNRESET", "send: EPIPE") and second == "again: EPIPE"
    stream.accel.verify(lane_bytes=1 << 20)


@each_mode
def test_sender_is_not_held_up_by_a_stopped_receiver(world, bed, mode):
    """TCP's buffers take 300 KB for a peer that does not run; so must what replaces them, and no byte gets lost."""
    stream = Stream(world, mode, bed, limit=10_000_000)
    until(lambda: stream.counts()[1] > 100_000, "the stream flows", pause=0.0005)
    stream.receiver.signal(signal.SIGSTOP)
    sent, received = stream.counts()
    until(lambda: stream.counts()[0] >= min(received + 300_000, 10_000_000), "300 KB are taken", seconds=5)
    stream.receiver.signal(signal.SIGCONT)
    stream.tell(stream.sender)
    assert stream.sender.finish(20) == "all sent\n"
    stream.assert_all_received()
    assert stream.counts() == (10_000_000, 10_000_000)
    stream.accel.verify(lane_bytes=50_000)


@each_mode
@each_side
def test_idle_reader_sees_the_death_of_the_other_end(world, bed, mode, sender_listens):
    """Nothing is on its way, the reader sleeps: only the kernel can wake it."""
    stream = Stream(world, mode, bed, limit=2_000_000, sender_listens=sender_listens)
    until(lambda: stream.counts() == (2_000_000, 2_000_000), "all is sent and received")
    stream.sender.kill()
    stream.assert_all_received()
    stream.accel.verify(lane_bytes=1 << 20)
