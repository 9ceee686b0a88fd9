"""Who waits past the hooks must get what the kernel has: each call to wait x each way to make it."""

import pytest

from harness import EAGER_MODES, Accel
from procs import finish_together, free_port

pytestmark = pytest.mark.fallback

# Connections of one server (programs/seen.c): calls x blocking or not.
CONNECTIONS = 7 * 2
ROUNDS = 400


# With --eager lanes are there before anything can be seen: one who waits by raw calls on a socket that blocks is not known.
WAYS = [(mode, way) for mode in EAGER_MODES for way in ("raw", "syscall", "libc") if (mode, way) != ("both", "raw")]


@pytest.mark.parametrize("mode,way", WAYS)
def test_each_call(world, bed, mode, way):
    accel = Accel.eager(world, mode)
    whos = 1 if way == "raw" else 3

    def dialogue():
        port = free_port()
        server = accel.server("server", [bed / "seen", "server", port, whos, ROUNDS, way]).wait_listening(port)
        out, served = finish_together(accel.client("client", [bed / "seen", "client", port, whos, ROUNDS]), server)
        assert len(out.splitlines()) == CONNECTIONS * whos and served == "served\n"

    dialogue()
    if way == "raw" and mode == "earned":
        reasons = accel.broker.stats().reasons
        assert accel.broker.stats().lanes == 0 and reasons.get("waits_unseen"), reasons
    if way != "raw":
        accel.verify(lanes=CONNECTIONS, more=dialogue)
