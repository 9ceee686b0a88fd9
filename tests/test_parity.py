"""The C test-bed: each program prints what a TCP program may observe, and must print the same on lanes.

Modes: one side or both under `shunpike run --eager` (the lane is there from the first byte on), and `earned`: both
sides in the default setting, so that the lane opens somewhere in the middle of the program.
"""

import functools
import hashlib
import random

import pytest

from harness import EAGER_MODES, MODES, Accel, World, compile_program, fifos, programs
from procs import finish_together, free_port

pytestmark = pytest.mark.parity

CASES = {
    "flags": ["peek", "waitall", "dontwait", "lengths", "files", "vectors", "dups", "refused", "blocks", "dissolved",
              "undone"],
    "endings": ["halfclose", "shutdowns", "pipe", "unread", "linger", "goodbye", "timeouts", "signals", "sendsignal", "messages",
                "again", "heir", "elder"],
    "readiness": ["states", "edges", "room", "mixed", "inherited", "asked", "ended", "killed", "space", "elapsing", "shared", "twice",
                  "leftover", "finished"],
    "processes": ["child", "parent", "turns", "split", "exec", "exec-child", "exec-foreign", "spawn", "system", "passed",
                  "stdio", "raw", "output", "file", "input", "reopened", "shell", "clones", "spliced"],
    "waits": ["thousands", "masks", "refused", "timers", "flood", "filled", "few", "exceptional", "mutual"],
    "corks": ["more", "cork", "push", "timer", "added", "limit", "shutdown", "close", "killed", "leaves", "edge", "early"],
    "hazards": ["cancel", "jump", "handler", "corks", "closeall", "frames", "readers", "urgent", "unknown", "dispositions"],
    "interrupted": ["calls", "once"],
    "handled": ["jumps", "masked", "part", "restarts", "looks", "sends", "messages", "late", "cancelled", "copying", "anew",
                "within"],
}  # fmt: skip


def run_case(world, mode, bed, program, case, lanes=1, lane_bytes=1000):
    """What the two ends print."""
    accel, env = Accel.eager(world, mode, warms=True), fifos(world)

    def dialogue():
        port = free_port()
        server = accel.server("server", [bed / program, "server", case, port], env=env).wait_listening(port)
        client = accel.client("client", [bed / program, "client", case, port], env=env)
        accel.warmed(max(1, lanes), lane_bytes)
        return finish_together(client, server)

    def once_more():
        accel.begin_again()
        assert dialogue() == outputs

    outputs = dialogue()
    accel.verify(lanes, lane_bytes, more=once_more)
    return outputs


@functools.cache
def on_tcp(bed, program, case):
    world = World()
    try:
        return run_case(world, "tcp", bed, program, case)
    finally:
        world.close()


@pytest.mark.parametrize("mode", EAGER_MODES)
@pytest.mark.parametrize("program,case", [(program, case) for program, cases in CASES.items() for case in cases])
def test_case(world, bed, mode, program, case):
    wanted = on_tcp(bed, program, case)
    for end, got, should in zip(("client", "server"), run_case(world, mode, bed, program, case), wanted, strict=True):
        assert got.splitlines() == should.splitlines(), f"the {end} sees something else than on TCP"


# What 100 connections of 80 messages each print, whoever echoes them.
ECHO_HASHES = "f83676265e37a64604ed6ae65db1165bbcb1e4294bd0d94092e0860a02eb4e2f"


@pytest.mark.parametrize("mode", EAGER_MODES)
@pytest.mark.parametrize("how,client", [("lt", "client"), ("et", "client"), ("oneshot", "client"), ("exclusive", "client"),
                                        ("poll", "client-poll"), ("select", "client-poll")])  # fmt: skip
def test_echo_server(world, bed, mode, how, client):
    """100 connections with random messages; each way to wait on the server, epoll (edges) and poll on the client."""
    accel, port = Accel.eager(world, mode), free_port()
    server = accel.server("server", [bed / "echo", "server", how, port, 100]).wait_listening(port)
    hashes, echoed = finish_together(accel.client("client", [bed / "echo", client, port, 100, 80]), server)
    assert hashlib.sha256(hashes.encode()).hexdigest() == ECHO_HASHES
    assert echoed == "echoed 30781507 on 100\n"
    # A lane that is earned may come late; under --eager the first connections have none where threads are yet to wait for their set.
    accel.verify(lanes=1 if mode == "earned" else 60, lane_bytes=1 << 20)


@pytest.mark.parametrize("mode", EAGER_MODES)
def test_ping_pong_in_threads(world, bed, mode):
    """Every read and write call of libc, blocking, random sizes, eight threads at each end."""
    accel, port = Accel.eager(world, mode, warms=True), free_port()
    server = accel.server("server", [bed / "pingpong", "server", port, 8, 400]).wait_listening(port)
    client = accel.client("client", [bed / "pingpong", "client", port, 8, 400])
    accel.warmed(lanes=8)
    out, served = finish_together(client, server)
    assert len(set(out.splitlines())) == 9 and served == "done\n"
    accel.verify(lanes=8, lane_bytes=1 << 20)


@pytest.mark.parametrize("mode", EAGER_MODES)
def test_a_second_number_in_a_forked_child(world, bed, mode):
    """Its connection moves to a lane by both: one that stayed behind went on by TCP beside it, and bytes overtook one another."""
    accel, port = Accel.eager(world, mode), free_port()
    server = accel.server("server", [bed / "names", "server", port]).wait_listening(port)
    assert finish_together(accel.client("client", [bed / "names", "client", port]), server)[0] == "in order\n"
    accel.verify(lane_bytes=100)


@pytest.mark.parametrize("mode", EAGER_MODES)
def test_forks_among_threads(world, bed, mode):
    """A server forks all the while, also in the middle of its handshakes; the children close their copies and end."""
    accel, port = Accel.eager(world, mode, warms=True), free_port()
    server = accel.server("server", [bed / "pingpong", "forking-server", port, 8, 400]).wait_listening(port)
    client = accel.client("client", [bed / "pingpong", "client", port, 8, 400])
    accel.warmed()
    out, served = finish_together(client, server)
    assert len(set(out.splitlines())) == 9 and served == "done\n"
    accel.verify(lane_bytes=10_000)


@pytest.mark.parametrize("mode", MODES)
def test_forks_in_the_middle_of_handshakes(world, bed, mode):
    """300 connections that come to the point of a lane while the server forks: some handshakes end, none hangs."""
    accel, seed = Accel(world, mode), random.randrange(1 << 32)
    print(f"seed {seed}")

    def dialogue():
        port = free_port()
        server = accel.server("server", [bed / "forks", "server", port, 300, seed]).wait_listening(port)
        client = accel.client("client", [bed / "forks", "client", port, 300, seed])
        assert finish_together(client, server) == ["asked 300\n", "served 300\n"]

    dialogue()
    accel.verify(lanes=10, more=dialogue)


@pytest.mark.timed
@pytest.mark.parametrize("mode", EAGER_MODES)
def test_small_buffers_bound_what_is_in_flight(world, bed, mode):
    """SO_SNDBUF and SO_RCVBUF, set before the lane opens."""
    accel, port, env = Accel.eager(world, mode, warms=True), free_port(), fifos(world)
    server = accel.server("server", [bed / "bounded", "server", port], env=env).wait_listening(port)
    client = accel.client("client", [bed / "bounded", "client", port], env=env)
    accel.warmed()
    out, received = finish_together(client, server)
    assert out == "then: EAGAIN, less than 64 KiB: 1\ndone\n" and received == "received some: 1\ndone\n"
    accel.verify(lane_bytes=10_000)


@pytest.mark.parametrize("mode", ["tcp", "both", "earned"])
@pytest.mark.parametrize("program", [["pingpong", "both"], ["onethread"]], ids="-".join)
def test_both_ends_in_one_process(world, bed, mode, program):
    accel, port = Accel.eager(world, mode, warms=True), free_port()
    both = accel.client("both", [bed / program[0], *program[1:], port, 8, 300])
    accel.warmed(lanes=8)
    out = both.finish()
    assert out.endswith("done\n")
    accel.verify(lanes=8, lane_bytes=1 << 20)


@pytest.mark.parametrize("mode", ["tcp", "earned"])
def test_events_in_the_order_of_arrival(world, bed, mode):
    """A program that writes to one connection and then to another may count on the server's hearing in that order."""
    accel, port = Accel.eager(world, mode, warms=True), free_port()
    both = accel.client("both", [bed / "order", port])
    accel.warmed(lanes=8)
    assert both.finish() == "50 rounds\n"
    accel.verify(lanes=8)


@pytest.mark.parametrize("mode", EAGER_MODES)
@pytest.mark.parametrize("how", ["lt", "et"])
def test_storm_of_short_connections(world, bed, mode, how):
    """2000 connections, four at a time, on descriptor numbers that are used again at once."""
    accel, port = Accel.eager(world, mode), free_port()
    server = accel.server("server", [bed / "echo", "server", how, port, 2000]).wait_listening(port)
    out, echoed = finish_together(accel.client("client", [bed / "storm", port, 4, 500]), server)
    assert out.split()[2::3] == ["2501139e", "65be09f6", "b95681af", "37036e92"]
    assert echoed == "echoed 5387500 on 2000\n"
    if mode == "both":  # in the default setting they are too short to earn a lane
        accel.verify()


@pytest.mark.parametrize("mode", EAGER_MODES)
def test_set_that_one_thread_waits_for_and_others_fill(world, bed, mode):
    """As Apache's event module: 1600 connections that come on lanes while their set tells of them. Each is told of once."""
    accel, port = Accel.eager(world, mode), free_port()

    def dialogue():
        server = accel.server("server", [bed / "removes", "server", port, 1600]).wait_listening(port)
        assert finish_together(accel.client("client", [bed / "removes", "client", port, 8, 40, 200]), server) == ["done\n", "done\n"]

    dialogue()
    # On a busy machine most may be over before they have earned it.
    accel.verify(lanes=1000, more=dialogue)


@pytest.mark.parametrize("mode", ["tcp", "earned"])
def test_set_whose_changes_take_long(world, bed, mode):
    """The same, with each epoll_ctl held up: what is taken out of the set while its lane opens is not told of again."""
    accel, port = Accel.eager(world, mode), free_port()
    held_up = ["strace", "-f", "-o", "/dev/null", "-e", "trace=epoll_ctl", "-e", "inject=epoll_ctl:delay_enter=2000"]
    server = accel.server("server", [*held_up, bed / "removes", "server", port, 32, 1000]).wait_listening(port)
    assert finish_together(accel.client("client", [bed / "removes", "client", port, 8, 40, 4]), server) == ["done\n", "done\n"]
    accel.verify(lanes=10)


@pytest.mark.parametrize("mode", ["tcp", "both"])
def test_set_that_is_nested_after_a_nomination(world, bed, mode):
    """The kernel answers for sets in sets: a connection that was on its way to a lane gets none."""
    accel, port = Accel(world, mode), free_port()
    assert accel.client("both", [bed / "nested", port]).finish() == "outer 1, inner 1\n"
    if accel.broker:
        stats = accel.broker.stats()
        assert stats.lanes == 0 and stats.reasons.get("nested_sets") == 1, stats


@pytest.mark.parametrize("mode", EAGER_MODES)
@pytest.mark.parametrize("exec_options", ["", ",nofork"], ids=["relayed", "inherited"])
def test_socat_hands_the_connection_to_a_program(world, bed, mode, exec_options):
    """As inetd does: a child for each connection; `cat` talks to socat, or has the connection itself."""
    accel, port = Accel.eager(world, mode), free_port()
    argv = ["socat", f"TCP-LISTEN:{port},bind=127.0.0.1,fork,reuseaddr", f"EXEC:cat{exec_options}"]
    accel.server("socat", argv).wait_listening(port)
    hashes = accel.client("client", [bed / "echo", "client", port, 6, 80]).finish()
    assert len(hashes.splitlines()) == 6
    if mode in ("client", "server"):  # whether a connection that is handed over gets a lane is open
        accel.verify()


@pytest.mark.parametrize("how", ["called", "linked", "early", "plugin"])
@pytest.mark.parametrize("mode", EAGER_MODES)
def test_io_uring(world, bed, mode, how):
    """A ring reads and writes: what it names is on TCP, from then on. `early`: nobody has seen it made, and all is."""
    accel, port = Accel.eager(world, mode, warms=True), free_port()
    program = [bed / "rings"]
    if how == "plugin":
        program, how = [world.directory / "host", world.directory / "plugin.so"], "linked"
        compile_program(programs() / "rings.c", program[0], "-DHOST", "-Wl,--as-needed")
        compile_program(programs() / "rings.c", program[1], "-Dmain=run", "-shared", "-fPIC")
    server = accel.server("server", [*program, "server", port, how]).wait_listening(port)
    client = accel.client("client", [bed / "rings", "client", port])
    accel.warmed(lanes=0 if how == "early" else 1)
    out, read = finish_together(client, server)
    assert out == "all came back\n" and read == "read 657163 bytes, hash 102dbc2e3797af1d\n"
    if mode in ("both", "earned") and how == "early":
        stats = accel.broker.stats()
        # One that has to earn its lane is not nominated: its calls are too few.
        assert stats.lanes == 0 and (mode == "earned" or stats.reasons.get("io_uring") == 1), stats
    elif how != "early":
        accel.verify()


@pytest.mark.parametrize("program,how", [("ringed", "sets"), ("ringed", "files"), ("ringed", "lane"), ("ringed", "indexed"), ("rings", "files")])
@pytest.mark.parametrize("mode", EAGER_MODES)
def test_io_uring_that_is_seen(world, bed, mode, program, how):
    """A ring that is made, mapped and entered by libc's names, or by liburing's: lanes stay where it does not name a connection, and for changes of an
    epoll set."""
    accel, port = Accel.eager(world, mode, warms=True), free_port()
    server = accel.server("server", [bed / program, "server", port, how]).wait_listening(port)
    client = accel.client("client", [bed / "rings", "client", port])
    accel.warmed()
    out, read = finish_together(client, server)
    assert out == "all came back\n" and read == "read 657163 bytes, hash 102dbc2e3797af1d\n"
    accel.verify(lane_bytes=657163 if how in ("sets", "files") else 1)


@pytest.mark.parametrize("wrap", [[], ["wrap", "no-io_uring_setup"]], ids=["wrong", "forbidden"])
@pytest.mark.parametrize("mode", EAGER_MODES)
def test_io_uring_refused(world, bed, mode, wrap):
    """A ring that the kernel refuses, for its arguments or by a filter of system calls as containers have it, is none."""
    accel, port = Accel.eager(world, mode, warms=True), free_port()
    program = [bed / "rings", "server", port, "refused"]
    server = accel.server("server", [bed / "confined", *wrap, *program] if wrap else program).wait_listening(port)
    client = accel.client("client", [bed / "rings", "client", port])
    accel.warmed()
    out, read = finish_together(client, server)
    assert out == "all came back\n" and read == "read 657163 bytes, hash 102dbc2e3797af1d\n"
    accel.verify(lane_bytes=657163)


@pytest.mark.parametrize("mode", EAGER_MODES)
@pytest.mark.parametrize("how", ["close", "dup2"])
def test_descriptor_that_goes_away_under_a_reader(world, bed, mode, how):
    """On TCP the thread keeps the socket and gets what comes; on a lane its call ends (COMPLIANCE.md)."""
    accel, port, env = Accel.eager(world, mode, warms=True), free_port(), fifos(world)
    server = accel.server("server", [bed / "closed", "server", how, port], env=env).wait_listening(port)
    client = accel.client("client", [bed / "closed", "client", port], env=env)
    accel.warmed()
    said, _ = finish_together(server, client)
    assert said == ("reader: EBADF\n" if mode in ("both", "earned") else "reader: 1\n")
    accel.verify(lane_bytes=1000)


@pytest.mark.parametrize("mode", ["tcp", "both"])
def test_registration_that_no_hook_sees(world, bed, mode):
    """The kernel refuses a second one: the connection stays where it reports it."""
    accel, port, env = Accel(world, mode), free_port(), fifos(world)
    server = accel.server("server", [bed / "unseen", "server", port], env=env).wait_listening(port)
    assert finish_together(accel.client("client", [bed / "unseen", "client", port], env=env), server) == ["woken: 1 7\n", ""]
    if accel.broker:
        stats = accel.broker.stats()
        assert stats.lanes == 0 and stats.reasons.get("set_unseen") == 1, stats
