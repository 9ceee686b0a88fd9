"""Who waits past the hooks must get what the kernel has: each call to wait x each way to make it."""

import subprocess

import pytest

from harness import EAGER_MODES, ROOT, TARGET, Accel
from procs import finish_together, free_port

pytestmark = pytest.mark.fallback

# programs/seen.c: calls to wait, of which so many are no epoll_wait; each on a socket that blocks and one that does not.
CALLS, NO_SETS = 7, 4
ROUNDS = 400


def dialogue(accel, bed, calls, whos, way):
    port = free_port()
    server = accel.server("server", [bed / "seen", "server", port, calls, whos, ROUNDS, way]).wait_listening(port)
    client = accel.client("client", [bed / "seen", "client", port, calls, whos, ROUNDS])
    out, served = finish_together(client, server, seconds=60)
    assert len(out.splitlines()) == calls * 2 * whos and served == "served\n"


@pytest.mark.parametrize("way", ["raw", "syscall", "libc"])
@pytest.mark.parametrize("mode", EAGER_MODES)
def test_each_call(world, bed, mode, way):
    """One thread that waits past the hooks has no lane, or loses it (--eager gives one before anything can be seen)."""
    accel, whos = Accel.eager(world, mode), 1 if way == "raw" else 3
    dialogue(accel, bed, CALLS, whos, way)
    if way != "raw":
        accel.verify(lanes=CALLS * 2, more=lambda: dialogue(accel, bed, CALLS, whos, way))
    elif mode == "earned":
        stats = accel.broker.stats()
        assert stats.lanes == 0 and stats.reasons.get("waits_unseen"), stats


@pytest.mark.parametrize("mode", ["tcp", "earned"])
def test_waits_past_the_hooks_beside_others_and_after_them(world, bed, mode):
    """What was known has become false: what lies in a ring comes by TCP after the grace, and the connection stays there."""
    accel = Accel.eager(world, mode)
    dialogue(accel, bed, NO_SETS, 3, "raw")
    accel.verify(more=lambda: dialogue(accel, bed, NO_SETS, 3, "raw"))


@pytest.fixture(scope="module")
def async_io():
    """An echo server on async-io, which waits by rustix: reads and writes by libc, waits by system calls of its own."""
    target = TARGET.parent / "async_io"
    command = ["cargo", "build", "--release", "--locked", "--manifest-path", ROOT / "tests/async_io/Cargo.toml", "--target-dir", target]
    built = subprocess.run(command, capture_output=True, text=True)
    if built.returncode and "failed to download" in built.stderr:
        pytest.skip("async-io cannot be had")
    assert built.returncode == 0, built.stderr
    return target / "release" / "async-io-echo"


@pytest.mark.programs
@pytest.mark.parametrize("mode", EAGER_MODES)
def test_async_io(world, bed, async_io, mode):
    accel, port = Accel.eager(world, mode), free_port()
    server = accel.server("server", [async_io, port]).wait_listening(port)
    hashes, _ = finish_together(accel.client("client", [bed / "echo", "client", port, 1, 100]), server)
    assert len(hashes.splitlines()) == 1
    if mode == "earned":
        stats = accel.broker.stats()
        assert stats.lanes == 0 and stats.reasons.get("waits_unseen"), stats
