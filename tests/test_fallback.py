"""What keeps a connection on TCP: each ends in a working connection, a counted reason, and nothing lost."""

import itertools
import json
import os
import random
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time

import pytest

from harness import LIBRARY, Accel, Stats, programs
from netns import join, namespace, needs_root
from procs import PATIENCE, finish_together, free_port, until

pytestmark = pytest.mark.fallback


@pytest.fixture
def both(world):
    """Both sides under Shunpike, eager, against a broker with chosen options."""

    def make(*broker_options, eager=True):
        return Accel(world, "both", ["--eager"] if eager else [], broker_options=broker_options)

    return make


def start_echo(accel, bed, **options):
    """An echo server that stays; its port."""
    port = free_port()
    accel.server("echo", [bed / "echo", "server", "lt", port, 1_000_000], **options).wait_listening(port)
    return port


def drive(accel, bed, port, conns=1, rounds=60, **options):
    """One client that checks every byte of its echoes."""
    out = accel.client("drive", [bed / "echo", "client", port, conns, rounds], **options).finish()
    assert len(out.splitlines()) == conns


def drive_on_a_lane(accel, bed, port):
    """Clients until one more connection has been on a lane (a broker that gets no CPU may miss the first ones);
    how many have been by then."""
    before = accel.broker.stats().lanes

    def one_more():
        drive(accel, bed, port)
        return (lanes := accel.broker.stats().lanes) > before and lanes

    return until(one_more, lambda: f"a lane; have {accel.broker.stats()}")


def drive_bare(accel, world, bed, port):
    """A client as a program that was preloaded long ago: without `shunpike run`, which would start a broker."""
    env = {"LD_PRELOAD": str(LIBRARY), "SHUNPIKE_SOCKET": str(accel.broker.socket), "SHUNPIKE_EAGER": "1"}
    out = world.start("drive", [bed / "echo", "client", port, 1, 60], env=env).finish()
    assert len(out.splitlines()) == 1


def assert_fell_back(accel, *reasons, at_least=1, more=lambda: None):
    """No lane, and one of `reasons` counted. `more`: has the dialogue once more, which may have been over too soon."""

    def counted():
        stats = accel.broker.stats()
        assert stats.smc == 0, stats
        return stats.fallback >= at_least and sum(stats.reasons.get(reason, 0) for reason in reasons) >= at_least

    until(lambda: counted() or more(), lambda: f"{at_least} fallbacks because of {reasons}; have {accel.broker.stats()}")


def test_no_broker(world, bed):
    """`shunpike run` where none answers and none can be started: says so, and the programs run."""
    (world.directory / "file").write_text("")
    env = {"SHUNPIKE_SOCKET": str(world.directory / "file" / "broker.sock")}
    accel = Accel(world, "tcp", ["--eager"])
    port = free_port()
    server = accel.start("server", [bed / "pingpong", "server", port, 2, 200], True, env=env).wait_listening(port)
    client = accel.start("client", [bed / "pingpong", "client", port, 2, 200], True, env=env)
    finish_dialogue(server, client)
    assert "stay on TCP" in client.err, client.err


def test_private_broker_comes_and_goes(world, bed):
    """Without a broker of its own, `shunpike run` starts one for the user; it leaves when it is no longer needed."""
    if os.path.exists("/run/shunpike/broker.sock"):
        pytest.skip("a system-wide broker runs here")
    path = world.runtime / "shunpike" / "broker.sock"
    accel = Accel(world, "tcp", ["--eager"])
    port = free_port()
    server = accel.start("server", [bed / "pingpong", "server", port, 2, 200], True).wait_listening(port)
    client = accel.start("client", [bed / "pingpong", "client", port, 2, 200], True)
    finish_dialogue(server, client)
    stats = world.start("stats", [world.binary, "stats", "--json"]).finish()
    assert Stats.parse(stats).lanes == 2, stats
    until(lambda: not path.exists(), "the idle private broker leaves", seconds=20, pause=0.1)
    shutil.rmtree(path.parent)  # keeps the device's GID for the boot


def test_who_does_not_want_to_block_is_not_kept_from_others(both):
    """Twenty connections whose peer is known and does not come: the first write waits for it, those after it for no more than
    a tenth of the time that has passed since."""
    out = both().client("unmet", [sys.executable, programs() / "unmet.py", 20]).finish()
    first, *others = (float(line) for line in out.splitlines())
    assert first > 90 and statistics.median(others) < 5, out


@pytest.mark.parametrize("how", ["child", "select"])
def test_a_client_that_reads_hears_the_broker(both, bed, how):
    """Its own forked child accepts, and is told by the broker to wait for the client, which sleeps in recv()."""
    accel, rounds = both(), 6
    out = accel.client("client", [bed / "ownchild", how, rounds]).finish()
    assert max(map(int, out.split())) < 1000, out
    accel.verify(lanes=rounds // 2, lane_bytes=1)


def test_two_that_send_to_each_other_before_they_accept(both):
    """Neither waits for its lane while the other's connection waits in its backlog."""
    accel, ports = both(), [free_port(), free_port()]
    program = [sys.executable, programs() / "crossing.py"]
    ends = [accel.client("end", [*program, *order, 6]) for order in (ports, ports[::-1])]
    times = [int(line) for out in finish_together(*ends) for line in out.splitlines()]
    # Of one round a wait may be the machine's.
    assert len(times) == 12 and sum(time > 250 * PATIENCE for time in times) <= 1 and statistics.median(times) < 50 * PATIENCE, times
    accel.verify(lane_bytes=0)


@pytest.mark.parametrize("option", [("TCP_QUICKACK", 0), ("TCP_DEFER_ACCEPT", 1)], ids=lambda option: option[0])
def test_no_lane_is_waited_for_where_the_server_cannot_accept(both, option):
    """The kernel holds the last part of the client's handshake back until it sends something: who waits for a lane waits in vain."""
    accel, port = both(), free_port()
    program = [sys.executable, programs() / "asleep.py"]
    server = accel.server("server", [*program, "server", port]).wait_listening(port)
    out = accel.client("client", [*program, "client", port, 1, *option]).finish()
    server.stop()
    assert float(out) < 50, out


def test_no_common_eid(both, bed):
    accel = both()
    accel.broker.tool("ueid", "flush")
    port = start_echo(accel, bed)
    assert_fell_back(accel, "no_seid", "no_ueid", more=lambda: drive(accel, bed, port, conns=3))


def test_ueid_taken_away_and_given_back(both, bed):
    accel = both("--ueid", "TEST-BED")
    port = start_echo(accel, bed)
    lanes = drive_on_a_lane(accel, bed, port)
    accel.broker.tool("ueid", "del", "TEST-BED")
    drive(accel, bed, port)
    assert accel.broker.stats().lanes == lanes
    accel.broker.tool("ueid", "add", "TEST-BED")
    drive_on_a_lane(accel, bed, port)


def test_dmb_limit(both, bed):
    """Two connections' worth of buffers for four connections at a time: two get them, however they crowd, and the others
    know why not. Free again when these have gone."""
    accel = both("--private", "--max-dmbs", "4", eager=False)
    server, client = long_dialogue(accel, bed, rounds=1_000_000)
    looks = []

    def two_of_four():
        ends = [row["reason"]["key"] if row["reason"] else row["mode"] for row in accel.broker.connections()]
        looks[:] = looks if sorted(ends) in looks else [*looks, sorted(ends)]
        return ends.count("SMCD") == 4 and len(ends) == 8 and "max_dmb" in ends

    until(two_of_four, lambda: f"two connections on lanes, two at the limit; seen: {looks}", seconds=30)
    client.stop()
    server.stop()
    drive_on_a_lane(accel, bed, start_echo(accel, bed))


def test_device_switched_off_and_on(both, bed):
    accel = both()
    port = start_echo(accel, bed)
    lanes = drive_on_a_lane(accel, bed, port)
    accel.broker.tool("device", "set", "active", "off")
    drive(accel, bed, port)
    stats = until(lambda: (now := accel.broker.stats()).reasons.get("inactive", 0) >= 1 and now,
                  lambda: f"a fallback because the device is off; have {accel.broker.stats()}")  # fmt: skip
    assert stats.lanes == lanes, stats
    accel.broker.tool("device", "set", "active", "on")
    drive_on_a_lane(accel, bed, port)


def long_dialogue(accel, bed, rounds=12000):
    """A ping-pong long enough to do something in its middle; its two processes."""
    port = free_port()
    server = accel.server("server", [bed / "pingpong", "server", port, 4, rounds]).wait_listening(port)
    return server, accel.client("client", [bed / "pingpong", "client", port, 4, rounds])


def finish_dialogue(server, client):
    for out in finish_together(client, server, seconds=60):
        assert out.endswith("done\n")


@pytest.mark.parametrize("eager", [True, False], ids=["eager", "earned"])
def test_device_switched_under_load(both, bed, eager):
    accel = both(eager=eager)
    server, client = long_dialogue(accel, bed)
    switched = 0
    for state in itertools.cycle(("off", "on")):
        accel.broker.tool("device", "set", "active", state)
        switched += 1
        if state == "on" and client.popen.poll() is not None:
            break
    finish_dialogue(server, client)
    assert switched >= 4, "the dialogue lasted long enough"


@pytest.mark.parametrize("side", ["server", "client"])
def test_revoked_under_load(both, bed, side):
    """`shunpike revoke` again and again: each time back to TCP at a byte boundary, and up again."""
    accel = both(eager=False)
    server, client = long_dialogue(accel, bed)
    accel.verify(lane_bytes=1000)
    revoked = 0
    while client.popen.poll() is None:
        try:
            accel.broker.tool("revoke", str((server if side == "server" else client).pid))
            revoked += 1
        except AssertionError:
            assert client.popen.wait(5) == 0  # it ended in between, so there was nothing to revoke
    finish_dialogue(server, client)
    assert revoked >= 2


@pytest.mark.crash
def test_broker_killed_under_load_and_restarted(world, both, bed):
    """Open lanes go on; new connections are TCP; a restarted broker serves again, the same server too."""
    accel = both()
    port = start_echo(accel, bed)
    server, client = long_dialogue(accel, bed)
    accel.verify(lanes=4, lane_bytes=1 << 20)
    accel.broker.kill()
    drive_bare(accel, world, bed, port)
    finish_dialogue(server, client)
    accel.broker.restart()
    until(lambda: drive_bare(accel, world, bed, port) or accel.broker.stats().smc, "lanes from the new broker", pause=0.2)


@pytest.mark.crash
def test_broker_killed_at_any_step_of_a_handshake(world, both, bed):
    accel, source = both(), random.Random(1)
    port = start_echo(accel, bed)
    for _ in range(25):
        env = {"LD_PRELOAD": str(LIBRARY), "SHUNPIKE_SOCKET": str(accel.broker.socket), "SHUNPIKE_EAGER": "1"}
        client = world.start("drive", [bed / "echo", "client", port, 8, 40], env=env)
        time.sleep(source.uniform(0, 0.015))  # the fault's moment
        accel.broker.kill()
        assert len(client.finish().splitlines()) == 8
        accel.broker.restart()
    until(lambda: drive_bare(accel, world, bed, port) or accel.broker.stats().smc, "lanes after all of that", pause=0.2)


@pytest.mark.crash
@pytest.mark.parametrize("victim", ["client", "server"])
def test_peer_killed_at_any_step_of_a_handshake(both, bed, victim):
    """The survivor goes on: an echo server with its next clients, a client with a next server."""
    accel, source = both(), random.Random(2)
    moments = [source.uniform(0, 0.03) for _ in range(20)]
    for moment in [*moments, None]:
        port = free_port()
        server = accel.server("server", [bed / "echo", "server", "lt", port, 1_000_000]).wait_listening(port)
        client = accel.client("client", [bed / "echo", "client", port, 8, 20_000])
        if moment is None:  # once the handshake is over
            accel.verify()
        else:
            time.sleep(moment)  # the fault's moment
        if victim == "client":
            client.kill()
            drive(accel, bed, port, conns=2)
            server.stop()
        else:
            server.kill()
            client.popen.wait(10)
            assert client.popen.returncode in (70, 71), client.describe()  # the test-bed's own complaint, no crash


@pytest.mark.parametrize("how", ["passes", "executes"])
def test_handed_on_at_any_step_of_a_handshake(both, how):
    """To another process, by SCM_RIGHTS, or to what a child executes; the client has perhaps begun to send on the lane."""
    accel, program = both(), [sys.executable, programs() / "passes.py"]
    # Of a listener that hands all on, no more lanes are asked for after some: others from the start.
    for _ in range(25):
        port = free_port()
        server = accel.server("server", [*program, how, port]).wait_listening(port)
        assert accel.client("client", [*program, "ask", port, 6, 10]).finish() == "all 6\n"
        server.stop()
    assert accel.broker.stats().smc > 200, "some had a lane when they were handed on"


@pytest.mark.parametrize("adds", ["never", "before", "after", "small", "ends"])
@pytest.mark.parametrize("how", ["executes", "passes", "executes by-number", "passes by-number"])
@pytest.mark.parametrize("why", ["stays", "option", "server", "client"])
def test_given_away_with_bytes_unread(both, why, how, adds):
    """On its lane, or revoked before by its server's option, or by an operator, for the one end or the other. The client adds to it `before` the
    server gives it away, or `after`; or has a small send buffer, and ends its stream."""
    accel, program, port = both(), [sys.executable, programs() / "unread.py"], free_port()
    reason = why if why in ("stays", "option") else "revoked"
    server = accel.server("server", [*program, "server", port, reason, *how.split()], stdin=subprocess.PIPE).wait_listening(port)
    client = accel.client("client", [*program, "client", port, adds], stdin=subprocess.PIPE)
    until(lambda: "waits" in server.out and "sent" in client.out, lambda: server.describe() + client.describe())
    accel.verify(lane_bytes=20)
    if reason == "revoked":
        accel.broker.tool("revoke", str((server if why == "server" else client).pid))
    lines = {"never": [server], "small": [server], "ends": [server], "before": [client, server], "after": [server, client]}[adds]
    for process in lines:
        os.write(process.popen.stdin.fileno(), b"\n")
        if process is client:
            until(lambda: "added" in client.out, client.describe)
    assert client.finish().endswith("all\n")
    server.finish()


@pytest.mark.parametrize("mode", ["tcp", "both"])
@pytest.mark.parametrize("how", ["fionread", "peek", "corked", "shut"])
def test_what_was_shown_stays_while_a_lane_ends(world, mode, how):
    accel, program, port = Accel.eager(world, mode), [sys.executable, programs() / "shown.py"], free_port()
    server = accel.server("server", [*program, "server", port, how]).wait_listening(port)
    assert accel.client("client", [*program, "client", port, how]).finish() == "all\n"
    assert server.finish() == "all\n"
    accel.verify(lanes=20)


def test_broker_stopped(both, bed):
    """A broker that does not answer holds nobody up for longer than a moment."""
    accel = both()
    port = start_echo(accel, bed)
    accel.broker.proc.signal(signal.SIGSTOP)
    try:
        began = time.monotonic()
        drive(accel, bed, port, conns=8)
        assert time.monotonic() - began < 5
    finally:
        accel.broker.proc.signal(signal.SIGCONT)


@pytest.mark.parametrize("mode", ["tcp", "both"])
@pytest.mark.parametrize("how,seen", [
    ("close", "b'' b''"), ("option", "b'' b''"), ("exit", "b'' b''"), ("given", "b'z' b'z'"),
    ("unread", "ConnectionResetError b''"), ("linger", "ConnectionResetError b''"),
])
def test_an_end_is_seen_at_once(world, mode, how, seen):
    """Also where the broker has a copy of the descriptor, and has not looked at it yet."""
    accel, port, program = Accel(world, mode), free_port(), programs() / "ending.py"
    server = accel.server("server", [sys.executable, program, "server", port]).wait_listening(port)
    client = accel.client("client", [sys.executable, program, "client", port, how], stdin=subprocess.PIPE)
    until(lambda: "asks" in client.out, client.describe)
    accel.verify()
    if mode == "both":
        accel.broker.proc.signal(signal.SIGSTOP)
    try:
        os.write(client.popen.stdin.fileno(), b"!")
        until(lambda: server.out == seen + "\n", server.describe, seconds=5)
    finally:
        if mode == "both":
            accel.broker.proc.signal(signal.SIGCONT)
    client.popen.stdin.close()
    client.finish()
    server.finish()


LEAVER = """
import os, socket, sys, time
port, count, signs = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]

def exchange(connection):
    connection.sendall(b"x" * 500)
    left = 500
    while left:
        left -= len(connection.recv(left))

def until(name):
    while not os.path.exists(os.path.join(signs, name)):
        exchange(connections[0])
        time.sleep(0.002)

connections = [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]
for connection in connections:
    for _ in range(5):
        exchange(connection)
print("open", flush=True)
until("leave")
for connection in connections[1:]:
    connection.close()
print("left", flush=True)
until("end")
"""


def test_endings_reach_a_broker_that_was_stopped(both, bed, world):
    """More connections end than a session's socket holds messages for. The broker hears of each once it goes on: nothing
    of theirs stays in its tables while the programs live."""
    accel, signs = both(), world.directory
    port = start_echo(accel, bed)
    client = accel.client("client", [sys.executable, "-c", LEAVER, port, 200, signs])
    until(lambda: client.out == "open\n", "all connections are made", seconds=60)
    until(lambda: accel.broker.stats().lanes >= 200, lambda: f"all on lanes: {accel.broker.stats()}", seconds=20)
    accel.broker.proc.signal(signal.SIGSTOP)
    try:
        (signs / "leave").touch()
        until(lambda: client.out == "open\nleft\n", "they are left, without waiting for the broker", seconds=20)
    finally:
        accel.broker.proc.signal(signal.SIGCONT)

    def holds():
        groups = json.loads(accel.broker.tool("linkgroup", "--json"))["link_groups"]
        return sum(group["conns"] for group in groups), json.loads(accel.broker.tool("info", "--json"))["device"]["dmbs_cnt"]

    until(lambda: holds() == (1, 2), lambda: f"the broker holds one connection and its two DMBs; it holds {holds()}", seconds=20)
    (signs / "end").touch()
    client.finish()


@pytest.mark.parametrize("answer", ["nothing", "noise", "end"])
def test_broker_that_is_none(world, bed, answer):
    """Whatever answers at the socket: the programs go on."""
    path, noise = world.directory / "fake.sock", random.Random(3)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(path))
    listener.listen(64)
    kept = []

    def serve():
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            kept.append(connection)
            try:
                if answer == "noise":
                    for _ in range(20):
                        connection.send(noise.randbytes(noise.randrange(1, 1024)))
                elif answer == "end":
                    connection.close()
            except OSError:
                pass

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        accel, port = Accel(world, "tcp", ["--eager"]), free_port()
        env = {"SHUNPIKE_SOCKET": str(path)}
        server = accel.start("server", [bed / "pingpong", "server", port, 2, 300], True, env=env).wait_listening(port)
        client = accel.start("client", [bed / "pingpong", "client", port, 2, 300], True, env=env)
        finish_dialogue(server, client)
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()
        for connection in kept:
            connection.close()


@needs_root
@pytest.mark.namespaces
def test_two_hosts_with_one_gid(world, bed):
    """Two brokers that claim the same GID: neither knows the other's connections or tokens."""
    left, right = namespace(world, "a"), namespace(world, "b")
    address, _ = join(left, right, "10.207.4")
    gid = "0x00112233445566778899aabbccddeeff"
    brokers = [world.broker("--gid", gid, name=name, netns=netns) for name, netns in (("one", left), ("two", right))]
    accel, port = Accel(world, "tcp", ["--eager"]), free_port()
    env = {"BED_HOST": address}
    server = accel.start("server", [bed / "pingpong", "server", port, 2, 300], True, env=env, broker=brokers[0], netns=left)
    server.wait_listening(port)
    client = accel.start("client", [bed / "pingpong", "client", port, 2, 300], True, env=env, broker=brokers[1], netns=right)
    finish_dialogue(server, client)
    for broker in brokers:
        stats = until(lambda: (now := broker.stats()).fallback >= 2 and now, lambda: f"fallbacks; have {broker.stats()}")
        assert stats.smc == 0, stats


@pytest.mark.parametrize("when", ["first", "later"])
@pytest.mark.parametrize("eager", [True, False], ids=["eager", "earned"])
def test_bytes_round_the_hooks(both, bed, eager, when):
    """A raw system call writes what no hook sees. Before a nomination the counts then differ for good."""
    accel = both(eager=eager)
    port = start_echo(accel, bed)
    assert accel.client("bypass", [bed / "bypass", port, when]).finish().startswith("echoed ")
    if when == "first" and not eager:
        assert_fell_back(accel, "bypassed_hooks")


def test_explained(world, both, bed):
    """While a connection to a stranger is open, ss shows its reason and explain says it in words."""
    accel = both()
    port = free_port()
    world.start("stranger", [bed / "echo", "server", "lt", port, 1_000_000]).wait_listening(port)
    client = accel.client("client", [sys.executable, "-c", HOLDER, port])
    until(lambda: client.out == "open\n", "the client talks")
    row = until(lambda: next(iter(accel.broker.connections()), None), "a row of ss")
    assert row["mode"].startswith("TCP 0x") and row["reason"]["key"] in ("awaiting_peer", "not_nominated"), row
    assert re.search(r"peer|other end|nominated", accel.broker.tool("explain", str(client.pid)))


HOLDER = """
import socket, sys, time
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
for _ in range(300):
    connection.sendall(b"x" * 500)
    left = 500
    while left:
        left -= len(connection.recv(left))
print("open", flush=True)
time.sleep(60)
"""


def test_few_descriptors_left(both, bed):
    """A limit on descriptors that the program itself can live with: whatever the library lacks then, it does without."""
    accel = both()
    port = start_echo(accel, bed)
    argv = ["prlimit", "--nofile=40:40", bed / "echo", "client", port, 16, 60]
    assert len(accel.client("drive", argv).finish().splitlines()) == 16


VISITORS = """
import ctypes, os, signal, socket, sys

def visit():
    connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
    for _ in range(100):
        connection.sendall(b"x" * 1000)
        left = 1000
        while left:
            left -= len(connection.recv(left))
    return connection

for number in range(int(sys.argv[2])):
    told, tells = os.pipe()
    if os.fork() == 0:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        visit().close()
        os.write(tells, b"done")
        signal.pause()
    os.read(told, 4)
last = visit()
print("open", flush=True)
signal.pause()
"""


def test_who_was_a_peer_once_takes_no_descriptor_of_the_next(both, bed):
    """A link group stays for the next connection of its two processes, and has descriptors: an eighth of a server's limit would be 128."""
    accel = both(eager=True)
    port = free_port()
    argv = ["prlimit", "--nofile=1024:1024", bed / "echo", "server", "lt", port, 1_000_000]
    accel.server("echo", argv).wait_listening(port)
    visitors = accel.client("visitors", [sys.executable, "-c", VISITORS, port, 160])
    until(lambda: visitors.out == "open\n", "all visitors have been there", 60)
    rows = until(lambda: (now := accel.broker.connections()) and len(now) == 2 and now, "both ends of the last one's")
    assert [row["mode"] for row in rows] == ["SMCD", "SMCD"], rows
