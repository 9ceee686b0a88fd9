"""Who waits past the hooks must get what the kernel has: each call to wait x each way to make it."""

import sys

import pytest

from harness import EAGER_MODES, Accel
from packages import by_cargo
from procs import finish_together, free_port

pytestmark = pytest.mark.fallback

# programs/seen.c: calls to wait, of which the first so many need no set; each on a socket that blocks and one that does not.
CALLS, NO_SETS = 8, 5
ROUNDS = 400


def dialogue(accel, bed, calls, whos, way, rounds=ROUNDS):
    port = free_port()
    server = accel.server("server", [bed / "seen", "server", port, calls, whos, rounds, way]).wait_listening(port)
    client = accel.client("client", [bed / "seen", "client", port, calls, whos, rounds])
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


@pytest.mark.parametrize("mode", ["tcp", "both", "earned"])
def test_waits_past_the_hooks_beside_others_and_after_them(world, bed, mode):
    """What was known has become false: what lies in a ring comes by TCP after the grace, and the connection stays there. Of a set that libc
    waits for, too, such a wait may be told a word of ours (COMPLIANCE.md); in the default setting nobody waits in vain for that."""
    accel = Accel.eager(world, mode)
    # With --eager each round may have the grace to wait for.
    if mode == "both":
        dialogue(accel, bed, NO_SETS, 3, "raw", ROUNDS // 40)
    else:
        dialogue(accel, bed, CALLS, 3, "raw")
    accel.verify(more=lambda: dialogue(accel, bed, NO_SETS, 3, "raw"))


@pytest.mark.parametrize("mode", EAGER_MODES)
def test_a_quiet_set_s_sender_takes_back_what_nobody_waits_for(world, bed, mode):
    """Its set had left the connection alone until it sent: it slept without a look at what is unread. Nor was there one where the reader had
    declared a wait that was over."""
    accel, port = Accel.eager(world, mode), free_port()
    server = accel.server("server", [bed / "quiet", "server", port]).wait_listening(port)
    client = accel.client("client", [bed / "quiet", "client", port])
    told, _ = finish_together(client, server, seconds=60)
    assert told.splitlines() == [f"way {way}" for way in range(8)]
    if mode in ("both", "earned"):
        assert accel.broker.stats().lanes, "there were lanes before"


@pytest.mark.parametrize("call", ["recv", "poll"])
@pytest.mark.parametrize("mode", EAGER_MODES)
def test_a_signal_that_comes_before_the_sleep_ends_the_call(world, bed, mode, call):
    """Its handler runs while the call spins or declares its sleep: it slept on, as if there had been none."""
    accel, port = Accel.eager(world, mode), free_port()
    server = accel.server("server", [bed / "alarms", "server", port, call]).wait_listening(port)
    client = accel.client("client", [bed / "alarms", "client", port, call])
    said, _ = finish_together(client, server, seconds=60)
    assert said == "ended\n"


@pytest.mark.parametrize("mode", EAGER_MODES)
def test_who_exits_is_seen_to_have_ended_at_once(world, bed, mode):
    """A reader that naps looks at no TCP: it saw the end when its nap was over, up to 10 ms late."""
    accel, port = Accel.eager(world, mode), free_port()
    server = accel.server("server", [bed / "exits", "server", port]).wait_listening(port)
    for number in range(15):
        accel.client(f"client{number}", [bed / "exits", "client", port]).finish(30)
    assert server.finish(30) == "ended\n"


# Its set, of which it has waited by epoll_wait, is waited for by somebody else from then on.
GIVES = """
import ctypes, os, select, socket, struct, subprocess, sys
port, way = int(sys.argv[1]), sys.argv[2]
connection, _ = socket.create_server(("127.0.0.1", port)).accept()
known = select.epoll()
known.register(connection, select.EPOLLIN)
for _ in range(4000):
    assert known.poll(20)
    connection.sendall(connection.recv(100))
if way == "rights":
    # While the connection is on its way back, words of ours may come, too (COMPLIANCE.md).
    WAITS = '''
import select, socket, sys
ours = socket.socket(fileno=0)
known = select.epoll.fromfd(socket.recv_fds(ours, 1, 1)[1][0])
ours.sendall(b"waits")
told = [("nothing", 0)]
while told and told[0][0] != int(sys.argv[1]):
    told = known.poll(10)
print(told)
'''
    ours, theirs = socket.socketpair()
    without = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    other = subprocess.Popen([sys.executable, "-c", WAITS, str(connection.fileno())], stdin=theirs, stdout=subprocess.PIPE, env=without, text=True)
    socket.send_fds(ours, [b"s"], [known.fileno()])
    assert ours.recv(5, socket.MSG_WAITALL) == b"waits"
    connection.sendall(b"go")
    told = eval(other.stdout.readline())
else:
    libc, (SETUP, EVENTS, SUBMIT) = ctypes.CDLL(None, use_errno=True), (206, 208, 209) if os.uname().machine == "x86_64" else (0, 4, 2)
    context, events, time = ctypes.c_ulong(), ctypes.create_string_buffer(32), struct.pack("qq", 10, 0)
    assert libc.syscall(SETUP, 1, ctypes.byref(context)) == 0
    IOCB_CMD_POLL = 5
    job = ctypes.create_string_buffer(struct.pack("=QIIHhIQQqQII", 7, 0, 0, IOCB_CMD_POLL, 0, known.fileno(), select.POLLIN, 0, 0, 0, 0, 0))
    jobs = (ctypes.c_void_p * 1)(ctypes.addressof(job))
    assert libc.syscall(SUBMIT, context, ctypes.c_long(1), jobs) == 1
    connection.sendall(b"go")
    assert libc.syscall(EVENTS, context, ctypes.c_long(1), ctypes.c_long(1), events, time) == 1, "nothing is told"
    told = known.poll(10)
assert told == [(connection.fileno(), select.EPOLLIN)], told
assert connection.recv(100) == b"news"
print("told")
"""

ASKS = """
import socket, sys
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
for number in range(4000):
    connection.sendall(b"%04d" % number)
    assert connection.recv(4, socket.MSG_WAITALL) == b"%04d" % number
assert connection.recv(2, socket.MSG_WAITALL) == b"go"
connection.sendall(b"news")
# Not its end, which TCP would tell of.
assert connection.recv(1) == b""
"""


@pytest.mark.parametrize("mode", EAGER_MODES)
@pytest.mark.parametrize("way", ["rights", "aio"])
def test_a_set_that_others_wait_for(world, mode, way):
    """A set that was sent to another program, or is polled by Linux AIO, is told of all as on TCP."""
    accel, port = Accel.eager(world, mode), free_port()
    server = accel.server("server", [sys.executable, "-c", GIVES, port, way]).wait_listening(port)
    client = accel.client("client", [sys.executable, "-c", ASKS, port])
    assert server.finish(40) == "told\n"
    client.finish()
    if mode in ("both", "earned"):
        assert accel.broker.stats().lanes, "there was a lane before"


@pytest.fixture(scope="module")
def async_io():
    """An echo server on async-io, which waits by rustix: reads and writes by libc, waits by system calls of its own."""
    return by_cargo("async_io", "async-io-echo")


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
