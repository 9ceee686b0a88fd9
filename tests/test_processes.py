"""Processes that share a connection: who holds it is known exactly, however they go."""

import json
import os
import subprocess
import threading
from types import SimpleNamespace

import pytest

from bridge import ACCEPT, CONFIRM, PROPOSAL, Proxy
from harness import EAGER_MODES, Accel, fifos
from procs import finish_together, free_port, until
from test_parity import on_tcp, run_case

GONE = ["execs", "killed", "exits", "generations", "many", "vfork", "spawn", "system", "stays"]
HERE = ["tries", "waits"]


class Kin:
    """A server that has forked, and a client that asks it until told to stop."""

    def __init__(self, world, bed, case, accel=None, brokers=(None, None)):
        """`brokers`: another one for the server, or for the client."""
        self.accel, port, env = accel or Accel(world, "both"), free_port(), fifos(world)
        self.sync, self.case = world.directory / "sync", case
        argv = lambda side: [bed / "kin", side, case, port]
        self.server = self.accel.server("server", argv("server"), env=env, broker=brokers[0]).wait_listening(port)
        self.client = self.accel.client("client", argv("client"), env=env, broker=brokers[1])
        if "BED_WARM_UNTIL" not in world.env:
            self.has_forked()

    def has_forked(self):
        until(lambda: "forked" in self.server.out, lambda: f"the server forks: {self.server.describe()}")

    def ends(self):
        return self.accel.broker.connections()

    def on_lanes(self, ends=2):
        modes = [(end["tx"]["mode"], end["rx"]["mode"]) for end in self.ends()]
        return modes == [("lane", "lane")] * ends

    def revoked(self):
        return json.loads(self.accel.broker.tool("stats", "--json"))["connections"]["revoked"]

    def finish(self):
        (self.sync / "to-client").open("wb").write(b"!")
        assert self.client.finish() == "asked\n"
        if self.case == "stays":  # the program that the test started was killed by its child, which goes on
            self.server.popen.wait(10)
            until(lambda: "served" in self.server.out, self.server.describe)
        else:
            assert self.server.finish() == "forked\nserved\n"


@pytest.mark.parametrize("case", GONE)
def test_a_connection_is_its_own_again(world, bed, case):
    """The children have executed something else, were killed, or ended: a lane that is revoked opens anew."""
    kin = Kin(world, bed, case)
    # A child that inherited a lane has no session with the broker yet, which then shows the client's end only. One that was forked before
    # the lane was there has.
    until(lambda: kin.on_lanes() or case == "stays" and kin.on_lanes(1), lambda: f"on lanes: {kin.ends()}")
    kin.accel.broker.tool("revoke", str(kin.client.pid))
    until(lambda: kin.revoked() > 0 and kin.on_lanes(), lambda: f"on lanes again: {kin.ends()}")
    kin.finish()


@pytest.mark.parametrize("stage", ["nominated", PROPOSAL, ACCEPT, CONFIRM])
def test_what_a_dead_parent_asked_for_its_child_asks_for_anew(world, bed, stage):
    """The parent forks and is killed when it has been nominated and awaits its peer, or in the middle of a handshake, of which this message
    does not arrive before."""
    world.env["BED_WARM_UNTIL"] = str(world.directory / "warm")
    accel, held, on = Accel(world, "both"), threading.Event(), threading.Event()

    def hold_back(clc):
        if clc[4] == stage and not held.is_set():
            held.set()
            on.wait(60)
        return clc

    with Proxy(accel.broker, world.directory / "proxy.sock", hold_back) as proxy:
        if stage == "nominated":
            late = SimpleNamespace(socket=world.directory / "late.sock")
            kin = Kin(world, bed, "stays", accel, (None, late))
            reasons = lambda: [end["reason"] and end["reason"]["key"] for end in kin.ends()]
            until(lambda: reasons() == ["awaiting_peer"], lambda: f"the server awaits its peer: {kin.ends()}")
        else:
            kin = Kin(world, bed, "stays", accel, (None, proxy) if stage == ACCEPT else (proxy, None))
            until(held.is_set, lambda: f"message {stage} is on its way: {kin.ends()}")
        (world.directory / "warm").touch()
        kin.has_forked()
        if stage == "nominated":
            late.socket.symlink_to(accel.broker.socket)
        on.set()
        until(kin.on_lanes, lambda: f"on lanes: {kin.ends()}")
        kin.finish()


@pytest.mark.parametrize("case", HERE)
def test_a_connection_that_is_shared_gets_no_lane(world, bed, case):
    """A child that is still there, also after an exec that failed, keeps the connection off new lanes."""
    kin = Kin(world, bed, case)
    kin.accel.broker.tool("revoke", str(kin.client.pid))
    until(lambda: any(end["reason"] and end["reason"]["key"] == "shared" for end in kin.ends()), lambda: f"{kin.ends()}")
    assert not kin.on_lanes()
    kin.finish()


@pytest.mark.parametrize("case", ["sheds", "looks"])
def test_whoever_closes_our_descriptors_is_still_there(world, bed, case):
    """The parent closes all but its first descriptors by bare system calls, or opens and closes each once more; then the child closes
    its copy of the connection. The parent's goes on."""
    kin = Kin(world, bed, case)
    before = sum(end["tx"]["bytes"] + end["rx"]["bytes"] for end in kin.ends())
    until(lambda: kin.client.popen.poll() is not None or sum(end["tx"]["bytes"] + end["rx"]["bytes"] for end in kin.ends()) > before,
          lambda: f"they talk: {kin.ends()}")
    kin.finish()


@pytest.mark.parity
@pytest.mark.parametrize("mode", EAGER_MODES)
@pytest.mark.parametrize("how", ["exec", "become", "vfork", "spawn", "rights", "mistake"])
@pytest.mark.parametrize("sender", ["stay", "close", "shutdown", "exit"])
def test_unread_bytes_are_handed_over(world, bed, mode, sender, how):
    """A program that is not under Shunpike gets all that was not read before it, by a sender that is there, or was a client with
    little unread (COMPLIANCE.md: what others left in the ring is out of its reach)."""
    case = f"{sender}-{how}"
    wanted = on_tcp(bed, "handover", case)
    for end, got, should in zip(("client", "server"), run_case(world, mode, bed, "handover", case), wanted, strict=True):
        assert got.splitlines() == should.splitlines(), f"the {end} sees something else than on TCP"


@pytest.mark.parity
@pytest.mark.parametrize("mode", EAGER_MODES)
@pytest.mark.parametrize("case", ["aio", "login", "reopened", "unread", "read", "busy", "shaking"])
def test_out_of_the_hooks_sight(world, bed, mode, case):
    """libc's own calls on a descriptor, a program's end, cancellation, and forks while a lane is being opened."""
    wanted = on_tcp(bed, "unhooked", case)
    # While a child holds the connection no lane opens: it is a matter of luck whether one does among so many.
    expected = {"lanes": 0, "lane_bytes": 0} if case == "shaking" else {}
    outputs = run_case(world, mode, bed, "unhooked", case, **expected)
    for end, got, should in zip(("client", "server"), outputs, wanted, strict=True):
        assert got.splitlines() == should.splitlines(), f"the {end} sees something else than on TCP"


@pytest.mark.parity
@pytest.mark.parametrize("mode", EAGER_MODES)
@pytest.mark.parametrize("case", ["listener", "children", "family", "orphan", "edges", "fired", "unread", "divided", "witness"])
def test_one_shots_of_a_set_that_forked_processes_share(world, bed, mode, case):
    """Each event comes to one of them, once, with the program's own word. Of what was unread at the fork both may be told. `divided`:
    each process has connections of its own from before the fork, and is told of all that comes for them. `witness`: a child that waits
    for the set as well takes nothing from its parent."""
    messages = 40 if case == "listener" else 200
    expected = {"lanes": 0, "lane_bytes": 0} if case == "listener" else {}
    client, server = run_case(world, mode, bed, "oneshots", case, **expected)
    assert client == f"answered {messages}\n"
    unread = 4 if case == "unread" else 0
    assert server in [f"answered {messages}, strange 0, idle {idle}\n" for idle in range(unread + 1)]


@pytest.mark.parity
@pytest.mark.timed
@pytest.mark.parametrize("mode", EAGER_MODES)
@pytest.mark.parametrize("case", ["slept", "several", "told", "silent", "fired", "late"])
def test_a_child_that_waits_for_its_parent_s_set(world, bed, mode, case):
    """Whenever it begins to wait, and whoever sleeps there meanwhile: the parent's threads are told of all, with it and after its end. Where
    there is nothing to tell, both sleep, and use no CPU time."""
    lanes = 2 if case == "told" else 4
    client, server = run_case(world, mode, bed, "sharers", case, lanes=lanes)
    quiet = "" if case in ("slept", "several", "told") else "it sleeps: 1\n"
    # Rounds of four connections, and of six.
    assert (client, server) == (f"answered {20 * (4 + 3 * 6)}\n", f"{quiet}served\n")


class Spawning:
    """A client on a lane whose child inherits the connection (`spawns.c`), and its server."""

    def __init__(self, world, bed, how, child):
        self.accel, port = Accel(world, "both"), free_port()
        self.server = self.accel.server("server", [bed / "spawns", "server", port]).wait_listening(port)
        argv = [bed / "spawns", "client", port, how, child]
        self.client = self.accel.client("client", argv, stdin=subprocess.PIPE)
        self.has("SMCD")

    def state(self):
        """Of the client's end: on a lane, or why not."""
        found = [row for row in self.accel.broker.connections() if row["pid"] == self.client.pid]
        return found and (found[0]["reason"]["key"] if found[0]["reason"] else found[0]["mode"])

    def has(self, state):
        until(lambda: self.state() == state, lambda: f"{state}; is {self.state()}", seconds=30)

    def next(self):
        os.write(self.client.popen.stdin.fileno(), b"\n")

    def end(self):
        self.client.popen.stdin.close()
        self.client.finish()
        self.server.finish()


@pytest.mark.parametrize("how", ["spawn", "vfork", "fork"])
@pytest.mark.parametrize("child", ["closes", "ends", "keeps", "leaves", "uses"])
def test_a_child_that_inherits_a_connection(world, bed, how, child):
    """It stays on TCP as long as somebody who is not ours can use it, or has; then it gets a lane again."""
    pair = Spawning(world, bed, how, child)
    pair.next()
    until(lambda: pair.client.out == "spawned\n", pair.client.describe)
    if child in ("keeps", "leaves"):
        pair.has("handed_over")
        seen = {pair.state() for _ in range(40)}
        assert seen == {"handed_over"}, seen
        pair.next()
    pair.has("bypassed_hooks" if child == "uses" else "SMCD")
    pair.end()


def test_a_child_that_could_not_be_spawned(world, bed):
    pair = Spawning(world, bed, "none", "ends")
    pair.next()
    until(lambda: pair.client.out == "spawned\n", pair.client.describe)
    pair.has("SMCD")
    pair.end()


@pytest.mark.parametrize("mode", ["tcp", "earned", "both"])
@pytest.mark.parametrize("how", ["duplicate", "moved", "forked", "child", "sent"])
def test_names_before_a_connect(world, bed, mode, how):
    """Who reads by another name than the one that was connected reads TCP alone: there must be no lane. One that was only moved has one name."""
    accel, port = Accel.eager(world, mode), free_port()
    server = accel.server("server", [bed / "named", "server", port]).wait_listening(port)
    client = accel.client("client", [bed / "named", "client", how, port])
    assert finish_together(client, server)[0] == "read: 1000, 0\n"
    if how == "moved":
        # A stream one way need not come to a lane by itself.
        if mode == "both":
            accel.verify()
    elif mode != "tcp":
        assert accel.broker.stats().smc == 0


@pytest.mark.parametrize("how", ["killed", "exits", "closes"])
def test_what_a_child_was_left_with_is_given_back(world, bed, how):
    """A server closes connections whose last holder is a child, and goes on: neither it nor the broker keeps what belonged to them."""
    world.env["BED_WARM_MS"] = "150"
    accel, port, env = Accel(world, "both"), free_port(), fifos(world)
    argv = lambda side: [bed / "left", side, how, port]
    server = accel.server("server", argv("server"), env=env).wait_listening(port)
    client = accel.client("client", argv("client"), env=env)
    until(lambda: server.out, server.describe, seconds=60)
    mapped_before, mapped_after, opened_before, opened_after = map(int, server.out.split())
    assert 2 <= mapped_after <= mapped_before, server.out
    assert opened_after <= opened_before, server.out
    memory = lambda: [kind for kind in accel.broker.holdings()[1:] if kind == "/memfd"]
    # Two programs with one connection, some sets of pages, and what is parked.
    until(lambda: len(memory()) < 12, lambda: f"{accel.broker.holdings()}")
    (world.directory / "sync" / "to-server").open("wb").write(b"!")
    client.finish()
    server.finish()
    assert accel.broker.stats().lanes > 12


@pytest.mark.parametrize("mode", EAGER_MODES)
def test_a_vfork_child_that_closes_all_but_the_connection(world, bed, mode):
    """It hands the connection over on its parent's memory, without its parent's sets and session: the set told of nothing any more."""
    accel, port = Accel.eager(world, mode), free_port()
    server = accel.server("server", [bed / "vforked", "server", port]).wait_listening(port)
    client = accel.client("client", [bed / "vforked", "client", port])
    _, said = finish_together(client, server)
    assert said == "told\n"


@pytest.mark.parametrize(
    "case", ["spawn", "vfork", "shell", "popen", "prepared", "kept", "again", "unmarked", "cloned", "threaded", "moved"]
)
@pytest.mark.parametrize("how", ["tcp", "earned", "eager"])
def test_given_to_another_program_in_ways_that_are_not_told_of(world, bed, how, case):
    """`given.c`: the program that got the connection answers with all bytes, in time, and with TCP's end."""
    accel = Accel(world, "tcp" if how == "tcp" else "both", ["--eager"] if how == "eager" else [])
    for round in range(2):
        assert accel.client(f"given-{round}", [bed / "given", case]).finish(60) == "ok\n"
    if how == "eager":
        accel.verify()


@pytest.mark.parametrize("pipes, most", [(300, 1), (1000, 4)])
@pytest.mark.parametrize("mode", ["tcp", "both"])
def test_what_the_kernel_has_is_told_of_beside_busy_lanes(world, bed, mode, pipes, most):
    """`backlog.c`: TCP takes 0.3 and 1 ms. With one batch of the kernel's in 200 us it was 60 and 50."""
    accel = Accel(world, mode)
    took = float(accel.client("backlog", [bed / "backlog", pipes, most]).finish(60))
    assert took < 15, f"{took} ms"
    accel.verify(lanes=2 if mode == "both" else 0)
