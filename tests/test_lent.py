"""MSG_ZEROCOPY where a lane saves the copy (`lent.c`): every byte as it was sent, notices that tell the truth, and no way out
of a connection or a process on which bytes are lost or read from memory that is something else by then."""

import os
import pathlib
import re
import signal
import time

import pytest

from harness import Accel, fifos
from netns import needs_root
from procs import finish_together, free_port, until

pytestmark = pytest.mark.parity

HASH = re.compile(r"hash ([0-9a-f]{16})")


def start(world, bed, case, mode="both", env=None, prefix=()):
    """The two ends of a case, and who runs them; the sender by way of `prefix`. All that can be lent is, however fast this machine
    copies."""
    accel, port = Accel.eager(world, mode, broker_options=["--set", "lend_bytes=32K"]), free_port()
    env = fifos(world) | (env or {})
    if mode == "both":
        env["BED_ORDER"] = "1"
    server = accel.server("server", [bed / "lent", "server", case, port], env=env).wait_listening(port)
    client = accel.client("client", [*prefix, bed / "lent", "client", case, port], env=env)
    return accel, server, client


def run(world, bed, case, mode="both", **more):
    accel, server, client = start(world, bed, case, mode, **more)
    sent, received = finish_together(client, server)
    assert HASH.findall(sent)[-1:] == HASH.findall(received)[-1:] != [], (sent, received)
    accel.verify(lane_bytes=100_000)
    return sent


@pytest.mark.parametrize("mode", ["tcp", "client", "both"])
@pytest.mark.parametrize("case", ["mixed", "reused"])
def test_all_bytes_in_order(world, bed, case, mode):
    """Calls of all sizes, of one piece and of several, with and without the flag; read in all ways. Buffers that are reused
    once they are told of, by several threads."""
    sent = run(world, bed, case, mode)
    assert f"not all copied: {int(mode == 'both')}" in sent


@pytest.mark.timed
@pytest.mark.parametrize("mebibytes", [64, pytest.param(1024, marks=pytest.mark.soak)])
def test_a_single_call(world, bed, mebibytes):
    assert "not all copied: 1" in run(world, bed, "huge", env={"BED_CALL": str(mebibytes)})


HUGE_PAGES = pathlib.Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.mark.skipif(not HUGE_PAGES.exists() or "[always]" in HUGE_PAGES.read_text(), reason="needs a kernel with huge pages, given by choice")
@pytest.mark.parametrize("mode, huge", [("tcp", 0), ("both", 2048)])
def test_memory_that_is_lent_again_and_again(world, bed, mode, huge):
    """It is in a huge page then; but not where that would make the program grow."""
    assert f"huge: {huge}, thin: 0" in run(world, bed, "hot", mode)


def test_what_is_copied_says_so(world, bed):
    sent = run(world, bed, "small")
    assert "all copied: 1\nnowhere: EFAULT\none with small parts, too: 1\none without is not: 1" in sent


@pytest.mark.parametrize("case, copied", [("closed", None), ("shut", 1), ("awaited", 1), ("unread", 0), ("forked", 1), ("hidden", 1), ("hidden-by-syscall", 1), ("shown", 0)])
@pytest.mark.parametrize("mode", ["tcp", "both"])
def test_no_memory_is_lent_beyond(world, bed, case, copied, mode):
    """The sender's memory is overwritten after the close, the notice, the fork; the reader gets what was sent."""
    sent = run(world, bed, case, mode)
    assert mode == "tcp" or "complete: 0" in sent
    if copied is not None:
        assert f"copied: {1 if mode == 'tcp' else copied}" in sent


def tell_client(world):
    with open(world.directory / "sync" / "to-client", "r+b", buffering=0) as fifo:
        fifo.write(b"!")


def test_the_operator_revokes(world, bed):
    """With a loan outstanding: it goes to TCP, and then its notice."""
    accel, server, client = start(world, bed, "revoked")
    until(lambda: "hash" in client.out, lambda: f"the loan; {client.describe()}")
    accel.broker.tool("revoke", str(client.pid))
    tell_client(world)
    sent, received = finish_together(client, server)
    assert HASH.findall(sent)[-1:] == HASH.findall(received)[-1:] != []
    assert "copied: 1" in sent


@pytest.mark.parametrize("mode", ["tcp", "both"])
@pytest.mark.parametrize("case", ["exits", "leaves", "executes"])
def test_a_process_that_ends_by_itself_hands_over(world, bed, case, mode):
    """exit, _exit, execve: all that it sent is there to be read."""
    accel, server, client = start(world, bed, case, mode)
    sent, received = client.finish(), server.finish()
    assert "66536 bytes, 0" not in received and "132072 bytes, 0" in received
    assert HASH.findall(sent)[-1:] == HASH.findall(received)[-1:]


def test_a_reader_that_is_stopped(world, bed):
    """Again and again, for longer than a full ring is waited for: what it was lent goes by TCP, and all of it arrives."""
    accel, server, client = start(world, bed, "mixed")
    until(lambda: accel.broker.stats().lanes, "the lane is there")
    for _ in range(4):
        if server.popen.poll() is None:
            os.kill(server.pid, signal.SIGSTOP)
            time.sleep(0.3)
            os.kill(server.pid, signal.SIGCONT)
            time.sleep(0.01)
    sent, received = finish_together(client, server)
    assert HASH.findall(sent) == HASH.findall(received) != []


def test_a_sender_in_a_pid_namespace_of_its_own(world, bed):
    """Its number there says nothing here: every call is copied."""
    assert "not all copied: 0" in run(world, bed, "mixed", prefix=["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"])


@pytest.mark.crash
def test_a_killed_sender(world, bed):
    """What it copied is read, then comes ECONNRESET: no silence, and no byte that was not sent."""
    accel, server, client = start(world, bed, "killed")
    client.finish(status=-signal.SIGKILL)
    assert "1000 bytes, ECONNRESET" in server.finish()
    until(lambda: accel.broker.stats().reasons.get("lent_unreadable"), lambda: f"the reason; {accel.broker.stats()}")


WAYS_TO_GO = ["unmapped", "by-syscall", "discarded", "replaced", "protected", "moved", "shrunk", "freed-lazily", "removed", "guarded", "keyed",
              "keyed-by-syscall", "advised", "advised-by-syscall", "remapped", "remapped-by-syscall"]  # fmt: skip


@pytest.mark.parametrize("how", WAYS_TO_GO)
@pytest.mark.parametrize("mode", ["tcp", "both"])
def test_memory_that_goes_before_its_notice(world, bed, how, mode):
    """TCP has pinned the pages: the reader gets what was sent, and not what is there since."""
    sent = run(world, bed, "gone", mode, env={"BED_HOW": how})
    if "not here" in sent:
        pytest.skip(f"this kernel has no such call: {sent}")
    # What had been lent is copied by then, also where the bytes stay for a while.
    assert mode == "tcp" or ("complete: 0" in sent and "complete then: 1" in sent), sent


@pytest.mark.parametrize("whose", ["brk", "shm", "file"])
@pytest.mark.parametrize("mode", ["tcp", "both"])
def test_memory_that_no_mapping_of_its_own_made(world, bed, whose, mode):
    """sbrk, shmat, a file's: nobody sees such memory go, or reading it may take as long as it likes. It is copied at once."""
    sent = run(world, bed, "elsewhere", mode, env={"BED_MEMORY": whose})
    assert mode == "tcp" or "complete: 1" in sent, sent


@pytest.mark.parametrize("mode", ["tcp", "both"])
def test_memory_that_malloc_gives_back(world, bed, mode):
    """... by a call within libc: it is not lent in the first place."""
    run(world, bed, "freed", mode)


def test_memory_that_goes_unseen(world, bed):
    """The reader asks its sender, who has it no more: a reset, after all bytes before."""
    accel, server, client = start(world, bed, "unseen")
    assert "1000 bytes, ECONNRESET" in server.finish()
    client.finish()


@pytest.mark.parametrize("mode", ["tcp", "both"])
def test_a_sender_whose_first_thread_has_ended(world, bed, mode):
    """Its memory is no longer to be had by its number; the sender, asked, sends the bytes by TCP."""
    sent = run(world, bed, "orphaned", mode)
    assert mode == "tcp" or "complete: 0" in sent


@pytest.mark.parametrize("mode", ["tcp", "both"])
def test_a_child_is_told_of_every_call(world, bed, mode):
    assert "the child was told of all: 1" in run(world, bed, "told-in-a-child", mode)


@needs_root
@pytest.mark.parametrize("case", ["denied", "denied-polled"])
@pytest.mark.parametrize("mode", ["tcp", "both"])
def test_a_reader_that_may_no_longer(world, bed, case, mode):
    """Becomes another user while a loan is outstanding. Its sender, which waits for an answer and for no notice, would let it stand:
    the bytes come by TCP because it is asked to send them so."""
    accel, server, client = start(world, bed, case, mode)
    if mode == "both" and case == "denied-polled":
        until(lambda: accel.broker.stats().reasons.get("lent_denied"), lambda: f"the reason; {accel.broker.stats()}")
    tell_client(world)
    sent, received = finish_together(client, server)
    assert HASH.findall(sent)[-1:] == HASH.findall(received)[-1:] != [] and "copied: 1" in sent, (sent, received)


@needs_root
@pytest.mark.crash
def test_a_sender_killed_before_it_has_sent_again(world, bed):
    """What a reader that may no longer was lent: ECONNRESET, not silence."""
    accel, server, client = start(world, bed, "denied-killed")
    until(lambda: "1000 bytes, then EAGAIN" in server.out, lambda: f"it asks; {server.describe()}")
    os.kill(client.pid, signal.SIGKILL)
    client.finish(status=-signal.SIGKILL)
    assert "1000 bytes, ECONNRESET" in server.finish()


def test_a_reader_that_may_not(world, bed):
    """A process that nobody may look at lends nothing: every call is copied."""
    sent = run(world, bed, "mixed", env={"BED_HIDDEN": "1"})
    assert "not all copied: 0" in sent
