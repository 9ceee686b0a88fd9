"""Two systems with one GID, and tokens that exist on the other side as well: each coincidence alone and all together.

The seeds' reviewers asked for it: it hardly ever happens by itself, so that nothing else would test the way back to TCP then.
Two programs talk over TCP, each with its own broker; a bridge carries a handshake between the two brokers, tokens as they coincide.
Whatever happens, both stay on TCP, or go back to it, and no byte is lost, repeated or changed."""

import random
import sys

import pytest

from bridge import ACCEPT, CONFIRM, DECLINE, PROPOSAL, Bridge, Proxy, with_token
from harness import Accel
from procs import finish_together, free_port, until

pytestmark = pytest.mark.fallback

# A dialogue that pauses once, quiet, when its ends have asked for a lane; then goes on until it is told to end. Every
# answer is checked. argv: role, port, directory of the signs
TALKER = """
import os, random, socket, sys, time
role, port, signs = sys.argv[1], int(sys.argv[2]), sys.argv[3]

def sign(name):
    open(os.path.join(signs, role + "-" + name), "w").close()

def is_set(name):
    return os.path.exists(os.path.join(signs, name))

def exactly(connection, n):
    parts = []
    while n:
        part = connection.recv(n)
        if not part:
            raise SystemExit("the stream ended early")
        parts.append(part)
        n -= len(part)
    return b"".join(parts)

def receive(connection):
    return exactly(connection, int.from_bytes(exactly(connection, 4), "big"))

def send(connection, data):
    connection.sendall(len(data).to_bytes(4, "big") + data)

def pause():
    sign("quiet")
    while not is_set("go"):
        time.sleep(0.005)

if role == "server":
    listener = socket.create_server(("127.0.0.1", port))
    connection, _ = listener.accept()
    for _ in range(40):
        send(connection, receive(connection)[::-1])
    pause()
    while data := receive(connection):
        send(connection, data[::-1])
else:
    connection = socket.create_connection(("127.0.0.1", port))
    random, count = random.Random(7), 0
    def exchange():
        data = random.randbytes(random.choice([1, 100, 3000, 70000]))
        send(connection, data)
        if receive(connection) != data[::-1]:
            raise SystemExit("other bytes came back")
    for _ in range(40):
        exchange()
    pause()
    while not is_set("end"):
        exchange()
        count += 1
    for _ in range(200):
        exchange()
    send(connection, b"")
print("done")
"""

GID = "0x5149d358ed6703cdb092ba55199c31ad"


def talk(world, brokers):
    """A server at the first broker and a client at the second, in their pause, and the directory of their signs."""
    signs, port, accel = world.directory / "signs", free_port(), Accel(world, "tcp")
    signs.mkdir()
    argv = lambda role: [sys.executable, "-c", TALKER, role, port, signs]
    server = accel.start("server", argv("server"), True, broker=brokers[0]).wait_listening(port)
    client = accel.start("client", argv("client"), True, broker=brokers[1])
    for role in ("server", "client"):
        until((signs / f"{role}-quiet").exists, f"the {role} pauses", seconds=20)
    return server, client, signs


def others_tokens(world, bed, broker):
    """Tokens of DMBs that exist at a broker and belong to others: to a dialogue on lanes, which goes on; and its processes."""
    accel, port = Accel(world, "tcp", ["--eager"]), free_port()
    argv = lambda role: [bed / "pingpong", role, port, 1, 10_000_000]
    server = accel.start("other", argv("server"), True, broker=broker).wait_listening(port)
    client = accel.start("other", argv("client"), True, broker=broker)
    rows = until(lambda: [row for row in broker.connections() if row["mode"] == "SMCD" and row["pid"] == client.pid], "others' lanes")
    return int(rows[0]["rx"]["token"], 16), (client, server)


def assert_undisturbed(procs):
    for proc in procs:
        assert proc.popen.poll() is None, f"has nothing to do with it: {proc.describe()}"
    for proc in procs:
        proc.stop()


def is_on_tcp(broker, proc):
    return all(row["mode"] != "SMCD" for row in broker.connections() if row["pid"] == proc.pid)


def bridged(world, gids=(GID, GID), accept=None):
    """Two systems. A handshake between them while the dialogue goes on, until one side has declined: what was passed, from its
    Proposal on. On a busy machine an earlier one may be given up, as no match or no answer came in time."""
    brokers = [world.broker("--gid", gid, name=name) for name, gid in zip(("one", "two"), gids, strict=True)]
    token = accept(brokers[1]) if accept else None
    server, client, signs = talk(world, brokers)
    with Bridge(*brokers, server, client, accept=token) as bridge:
        (signs / "go").touch()
        proposals = lambda: [at for at, (_, what, _) in enumerate(bridge.passed) if what == PROPOSAL]
        declines = lambda at: [why for _, what, why in bridge.passed[at:] if what == DECLINE]
        declined = lambda: next((at for at in reversed(proposals()) if set(declines(at)) - {CONFIRM_TIMEOUT}), None)
        until(lambda: declined() is not None, lambda: f"a decline; passed: {bridge.passed}", seconds=60)
        begin = declined()
        for broker, proc in zip(brokers, (server, client), strict=True):
            until(lambda: is_on_tcp(broker, proc), f"{proc.name} is on TCP", seconds=20)
        (signs / "end").touch()
        assert finish_together(server, client, seconds=60) == ["done\n", "done\n"]
        return bridge.passed[begin:]


CONFIRM_TIMEOUT = 0x02010000
ATTACH_REFUSED = 0x0A040002


def test_the_gid_alone(world):
    """The server takes the client for a neighbour; its token means nothing at the client's system."""
    passed = bridged(world)
    assert passed[:3] == [("client", PROPOSAL, None), ("server", ACCEPT, None), ("client", DECLINE, ATTACH_REFUSED)], passed


def test_the_gid_and_the_servers_token(world, bed):
    """The client's system has a DMB of that name: another's."""
    others = []

    def of_another(broker):
        token, procs = others_tokens(world, bed, broker)
        others.extend(procs)
        return token

    passed = bridged(world, accept=of_another)
    assert passed[:3] == [("client", PROPOSAL, None), ("server", ACCEPT, None), ("client", DECLINE, ATTACH_REFUSED)], passed
    assert_undisturbed(others)


@pytest.mark.parametrize("token", ["unknown", "anothers"])
def test_the_gid_and_both_tokens(world, bed, token):
    """The client has attached, opened, and sends on its lane; the token in its Confirm names nothing at the server's system,
    or another's DMB. The server's attach fails after Confirm: it says so (the kernel's cannot), and what nobody has read
    goes by TCP."""
    broker, others = world.broker(), ()
    wrong = 0x5A5A
    if token == "anothers":
        wrong, others = others_tokens(world, bed, broker)
    change = lambda clc: with_token(clc, wrong) if clc[4] == CONFIRM else clc
    with Proxy(broker, world.directory / "proxy.sock", change) as proxy:
        server, client, signs = talk(world, [proxy, broker])
        (signs / "go").touch()
        until(lambda: proxy.sent.count((DECLINE, ATTACH_REFUSED)) >= 2, lambda: f"two declines; sent: {proxy.sent}", seconds=30)
        for proc in (server, client):
            until(lambda: is_on_tcp(broker, proc), f"{proc.name} is on TCP", seconds=20)
        (signs / "end").touch()
        assert finish_together(server, client, seconds=60) == ["done\n", "done\n"]
        assert proxy.sent[:2] == [(ACCEPT, None), (DECLINE, ATTACH_REFUSED)], proxy.sent
    assert_undisturbed(others)


def test_tokens_without_the_gid(world):
    """Other GIDs: refused at the proposal, before any token is named, whatever exists."""
    passed = bridged(world, gids=(GID, hex(random.Random(1).getrandbits(128))), accept=lambda broker: 1)
    assert [(who, what) for who, what, _ in passed[:2]] == [("client", PROPOSAL), ("server", DECLINE)], passed
