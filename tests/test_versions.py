"""A library and a broker of two versions, as after an upgrade that restarts the broker: there are no lanes between them, but the broker lists
the program, and it obeys. Neither looks at what the other's version may have made different, and nobody asks again and again."""

import contextlib
import json
import mmap
import os
import select
import socket
import struct
import threading
import time

import pytest

import bridge
from bridge import CONTROL, PAGE, VERSION, Proxy, Session, hello, memory, receive, send, versions
from harness import LIBRARY, ROOT, Accel
from procs import free_port, until

pytestmark = pytest.mark.operators

BEFORE = ROOT / "tests" / "vectors" / "session9"  # what was said when there was no control protocol
NOMINATE, LANES, UNKNOWN = 2, 0x100, 0x7FFF
REFUSED, REVOKE = 4, 9
VERSION_DIFFERS = 0x0A010005
NO_CONTROL = 9


def others(broker):
    return json.loads(broker.tool("ss", "--json")).get("other_versions", [])


def welcome_of(session):
    """The versions of the Welcome, and the knob page that comes with it."""
    message, fds = receive(session.socket)
    kind, both = struct.unpack_from("<HI", message)
    assert kind == bridge.WELCOME and len(fds) == 2, message
    knobs = mmap.mmap(fds[1], PAGE, prot=mmap.PROT_READ)
    for fd in fds:
        os.close(fd)
    return (both >> 16, both & 0xFFFF), message, knobs


def is_active(knobs):
    return struct.unpack_from("<I", knobs, 0)[0] == 1


@pytest.mark.parametrize("control, lanes", [(1, VERSION - 1), (1, VERSION + 1), (2, VERSION + 1), (7, 60000)])
def test_a_program_of_another_version_is_listed_and_obeys(world, control, lanes):
    broker = world.broker()
    # Its arena is smaller than ours, and its Hello longer.
    session = Session(broker, hello(versions(control, lanes), b"stranger") + b"more", arena=PAGE)
    welcome, _, knobs = welcome_of(session)
    assert welcome == (min(control, CONTROL), VERSION) and is_active(knobs)
    # What may mean anything: its lanes' messages, and what nobody here knows.
    for message in (struct.pack("<HQ", UNKNOWN, 5), struct.pack("<H", NOMINATE) + b"\xff" * 5, struct.pack("<HQB", 5, 1, 200), b"\x07"):
        bell = os.eventfd(0)
        session.say(message, [bell])
        os.close(bell)
    session.say(struct.pack("<HII", LANES, 3, 4) + b"more")
    row = until(lambda: [row for row in others(broker) if row["lanes"] is not None], "it is listed with what it says")[0]
    assert (row["pid"], row["comm"], row["control"], row["version"], row["lanes"], row["plain"]) == (os.getpid(), "stranger", control, lanes, 3, 4)
    assert row["reason"]["code"] == VERSION_DIFFERS
    assert f"0x{VERSION_DIFFERS:08x}" in broker.tool("ss") and "stranger" in broker.tool("ss")
    assert "restart" in broker.tool("explain", str(os.getpid()))
    broker.tool("revoke", str(os.getpid()))
    assert session.hear() == (REVOKE, struct.pack("<Q", 0))
    broker.tool("device", "set", "active", "off")
    assert session.hear() == (REVOKE, struct.pack("<Q", 0)) and not is_active(knobs)
    assert json.loads(broker.tool("info", "--json"))["other_versions"] == 1
    assert broker.proc.err.count("another version") == 1, broker.proc.err
    session.socket.close()
    until(lambda: others(broker) == [], "it has gone")


def test_the_library_of_the_release_before_is_listed_and_obeys(world):
    """It speaks no control protocol. It hears its own version, so that it stays, and that there are no lanes, as often as it asks."""
    broker = world.broker()
    session = Session(broker, (BEFORE / "hello.bin").read_bytes())
    welcome, message, knobs = welcome_of(session)
    assert welcome == (0, NO_CONTROL) and len(message) == len((BEFORE / "welcome.bin").read_bytes())
    nominate = (BEFORE / "nominate.bin").read_bytes()
    with socket.create_server(("127.0.0.1", 0)) as tcp:
        session.say(nominate, [tcp.fileno()])
    assert session.hear() == (REFUSED, nominate[2:10] + struct.pack("<I", VERSION_DIFFERS))
    row = others(broker)[0]
    assert (row["pid"], row["comm"], row["control"], row["version"], row["lanes"]) == (os.getpid(), "pingpong", 0, NO_CONTROL, None)
    broker.tool("revoke", str(os.getpid()))
    assert session.hear() == (REVOKE, struct.pack("<Q", 0))
    broker.tool("device", "set", "active", "off")
    assert session.hear() == (REVOKE, struct.pack("<Q", 0)) and not is_active(knobs)
    session.socket.close()


class Stranger:
    """Looks like a broker of another version at `path`. `heard` are types of messages with the time; `stays`: it has a control protocol."""

    def __init__(self, path, both, stays):
        self.both, self.stays, self.heard, self.sessions = both, stays, [], {}
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(str(path))
        self.listener.listen(64)
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()

    def serve(self):
        while True:
            for end in select.select([self.listener, *self.sessions], [], [])[0]:
                try:
                    if end is self.listener:
                        self.sessions[end.accept()[0]] = None
                        continue
                    message, fds = receive(end)
                except OSError:
                    return
                for fd in fds:
                    os.close(fd)
                if message:
                    self.hear(end, message)
                else:
                    self.drop(end)

    def hear(self, end, message):
        kind = struct.unpack_from("<H", message)[0]
        self.heard.append((kind, time.monotonic(), message))
        if kind == bridge.HELLO:
            page, knobs = memory(PAGE), memory(PAGE)
            self.sessions[end] = [mmap.mmap(page, PAGE), 0]
            with mmap.mmap(knobs, PAGE) as map:
                struct.pack_into("<I", map, 0, 1)
            send(end, struct.pack("<HI", bridge.WELCOME, self.both) + (BEFORE / "welcome.bin").read_bytes()[6:] + b"more" * self.stays, [page, knobs])
            os.close(page), os.close(knobs)
            if not self.stays:
                self.drop(end)

    def drop(self, end):
        del self.sessions[end]
        end.close()

    def say(self, *messages):
        for end, (page, said) in list(self.sessions.items()):
            for message in messages:
                send(end, message)
            self.sessions[end][1] = said + len(messages)
            struct.pack_into("<I", page, 0, said + len(messages))

    def kinds(self):
        return [kind for kind, _, _ in self.heard]

    def close(self):
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.thread.join()
        for end in list(self.sessions):
            self.drop(end)
        self.listener.close()


@pytest.fixture
def stranger(world):
    def start(control, lanes, stays):
        stranger = Stranger(world.directory / "broker.sock", versions(control, lanes), stays)
        world.cleanups.append(stranger.close)
        return stranger

    return start


def dialogue(world, bed, rounds):
    """Both ends of a connection in one program."""
    env = {"LD_PRELOAD": str(LIBRARY), "SHUNPIKE_SOCKET": str(world.directory / "broker.sock")}
    return world.start("dialogue", [bed / "pingpong", "both", free_port(), 1, rounds], env=env)


@pytest.mark.parametrize("control, lanes", [(1, VERSION - 1), (2, VERSION + 1)])
def test_a_broker_of_another_version_hears_what_we_have_and_is_asked_nothing(world, bed, stranger, control, lanes):
    there = stranger(control, lanes, stays=True)
    proc = dialogue(world, bed, 10**7)
    until(lambda: LANES in there.kinds(), "it says what it has")
    # The same numbers mean other things there: a match, a tap, and what nobody here knows.
    there.say(*(struct.pack("<H", kind) + b"\x01" * 40 for kind in (2, 12, 15, UNKNOWN)), struct.pack("<HQ", REVOKE, 0))
    time.sleep(2.5)  # a library that asks each second has asked twice
    assert proc.popen.poll() is None, proc.describe()
    proc.stop()
    assert set(there.kinds()) == {bridge.HELLO, LANES} and there.kinds().count(bridge.HELLO) == 1, there.kinds()
    said = [struct.unpack_from("<II", message, 2) for kind, _, message in there.heard if kind == LANES]
    assert said[-1] == (0, 2) and all(lanes == 0 for lanes, _ in said), said
    assert struct.unpack_from("<I", there.heard[0][2], 2)[0] == versions(CONTROL, VERSION)


def test_a_broker_that_lets_no_session_come_about_is_asked_ever_more_seldom(world, bed, stranger):
    """One without a control protocol says its version, and goes."""
    there = stranger(0, NO_CONTROL, stays=False)
    proc = dialogue(world, bed, 10**7)
    until(lambda: len(there.heard) == 3, "it has asked three times")
    proc.stop()
    first, _, third = (at for _, at, _ in there.heard)
    assert third - first >= 2.5, "after one second, and after two more; each second it would be two"


def lanes_of(broker):
    """How many connection ends the broker shows on lanes."""
    return sum(row["mode"] == "SMCD" for row in broker.connections())


@pytest.fixture
def busy(world, bed):
    """A broker, and two programs with a lane between them, which stays busy."""
    accel, port = Accel(world, "both"), free_port()
    procs = [accel.server("server", [bed / "pingpong", "server", port, 1, 10**7]).wait_listening(port)]
    procs.append(accel.client("client", [bed / "pingpong", "client", port, 1, 10**7]))
    until(lambda: lanes_of(accel.broker) == 2, lambda: f"both ends on lanes: {accel.broker.connections()}")
    yield accel.broker, procs
    assert all(proc.popen.poll() is None for proc in procs), [proc.describe() for proc in procs]
    for proc in reversed(procs):
        proc.stop()


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_a_new_broker_hears_of_lanes_that_need_nothing(busy, how):
    """Their connections ask for nothing: a switch, a revocation and a list would not find them."""
    broker, procs = busy
    if how == "stopped":
        broker.proc.stop()
    broker.restart()
    until(lambda: lanes_of(broker) == 2, lambda: f"both come back with their lanes: {broker.connections()}")
    broker.tool("device", "set", "active", "off")
    until(lambda: lanes_of(broker) == 0, lambda: f"both are off their lanes: {broker.connections()}")


def test_an_upgrade_of_the_broker_under_open_lanes(world, busy):
    broker, procs = busy
    broker.kill()
    broker.socket.unlink()
    upgraded = world.broker(name="upgraded")
    with Proxy(upgraded, broker.socket, lambda clc: clc, version=VERSION + 1):
        pids = sorted(proc.pid for proc in procs)
        says = lambda: [(row["pid"], row["lanes"], row["plain"]) for row in others(upgraded)]
        # The proxy is who has these sessions.
        until(lambda: [row[1:] for row in says()] == [(1, 0)] * 2, lambda: f"{pids} say that they have lanes: {says()}")
        upgraded.tool("device", "set", "active", "off")
        until(lambda: [row[1:] for row in says()] == [(0, 1)] * 2, lambda: f"they have left their lanes: {says()}")


def test_tools_of_the_version_before_understand_the_answers(world):
    """Fields that they do not know are passed over, and none is missing that they need: `ss`, `explain`, `info` and `chk` as they were."""
    broker = world.broker()
    session = Session(broker, hello(versions(CONTROL + 1, VERSION + 1)))
    welcome_of(session)
    known = json.loads((BEFORE / "answers.json").read_text())
    for name, argv in {"ss": ["ss", "--json"], "info": ["info", "--json"], "device": ["device", "show", "--json"]}.items():
        answer = json.loads(broker.tool(*argv))
        assert set(known[name]) <= set(answer), (name, set(known[name]) - set(answer))
    session.socket.close()
