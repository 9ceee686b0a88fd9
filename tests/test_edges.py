"""Readiness at the borders between TCP and a lane: what a look alone shows, and that no edge is lost and none is one too many."""

import json
import os
import re
import subprocess
import sys

import pytest

from harness import Accel, programs
from procs import finish_together, free_port, until

pytestmark = [pytest.mark.parity, pytest.mark.timed]

STATES = ("watched", "nominated", "granted_tcp", "granted_ring", "granted_both", "granted_ended", "lane", "ended", "stopped", "taken",
          "revoked")  # fmt: skip


@pytest.mark.parametrize("mode", ["tcp", "earned"])
def test_a_short_read_is_followed_by_an_edge(world, bed, mode):
    """An edge-triggered server that takes a short read for the last byte that is there hears of those that come after, also where
    TCP's end and a lane's begin."""
    accel, port = Accel(world, "tcp" if mode == "tcp" else "both"), free_port()
    server = accel.server("server", [bed / "drained", "server", port, 500, 20]).wait_listening(port)
    assert accel.client("client", [bed / "drained", "client", port, 500, 20]).finish() == "done\n"
    assert server.finish() == "done\n"
    if mode == "earned":
        until(lambda: accel.broker.stats().lanes >= 50, lambda: f"lanes in the middle of dialogues; have {accel.broker.stats()}")


def looks(world, accel, state, reader):
    """What looks.py says, told meanwhile where its newest connection runs."""
    orders, writer = os.pipe()
    pid = accel.broker.proc.pid if accel.broker else 0
    program = accel.client("looks", [sys.executable, programs() / "looks.py", pid, state, reader], stdin=orders)
    os.close(orders)
    answered = 0
    has_more = lambda: len(questions()) > answered or program.popen.poll() is not None
    questions = lambda: re.findall(r"ask (\d+)\n", program.out)
    with os.fdopen(writer, "w", buffering=1) as answers:
        while until(has_more, program.describe, pause=0.002) and program.popen.poll() is None:
            port = questions()[answered]
            ends = [end for end in accel.broker.connections() if port in (end["local"].split(":")[-1], end["remote"].split(":")[-1])]
            modes = [f"{end['role']}.{way}={end[way]['mode']}" for end in ends for way in ("rx", "tx")]
            print(*modes, file=answers)
            answered += 1
    return re.sub(r"ask \d+\n", "", program.finish())


@pytest.mark.parametrize("reader", ["server", "client"])
@pytest.mark.parametrize("state", STATES)
def test_a_look_alone_sees_what_a_read_would_get(world, state, reader):
    expected = looks(world, Accel(world, "tcp"), state, reader)
    assert expected.endswith("done\n")
    accel, said = Accel(world, "both"), []
    # On a busy machine one may wait for longer than a look has; what is late itself is so each time.
    while expected not in said and len(said) < 3:
        said.append(looks(world, accel, state, reader))
    assert expected in said, said


def events(rounds):
    dialogue = "answer: IN OUT\nread 100\nread: nothing\n" * rounds
    return ("registered: OUT\nat first: nothing\nat first: nothing\n" + dialogue + "idle: nothing\nidle: nothing\n"
            "closed: IN OUT RDHUP\nread 0\nended: nothing\nended: nothing\n")  # fmt: skip


def told_once(said):
    """... and how many ends were told of twice. The kernel itself does that (tcp_fin, then tcp_data_ready) to who asks in between: one of 40
    here, on an idle machine."""
    return re.subn(r"(closed: (.+)\nread 0\n)ended: \2\n(?=ended: nothing\n)", r"\1ended: nothing\n", said)


@pytest.mark.parametrize("how", ["tcp", "earned", "eager", "revoked"])
def test_edges_are_those_of_tcp_one_for_one(world, bed, how):
    """Not one more for a lane that opens, of room for writing for one, nor for one that closes; nor one fewer."""
    accel = Accel(world, "tcp" if how == "tcp" else "both", ["--eager"] if how == "eager" else [])
    clients, rounds = 40, 400 if how == "revoked" else 20

    def dialogues():
        port = free_port()
        server = accel.server("server", [bed / "events", "server", port, clients, rounds]).wait_listening(port)
        client = accel.client("client", [bed / "events", "client", port, clients, rounds])
        while how == "revoked" and client.popen.poll() is None:
            for end in accel.broker.connections():
                subprocess.run([accel.world.binary, "revoke", str(end["pid"])], env=world.env | {"SHUNPIKE_SOCKET": str(accel.broker.socket)})
        said, times = told_once(client.finish())
        assert said == events(rounds) * clients + "done\n"
        assert times <= clients / 4, "ends that were told of twice"
        assert server.finish() == "done\n"

    dialogues()
    if how == "revoked":
        assert json.loads(accel.broker.tool("stats", "--json"))["connections"]["revoked"] > clients / 4
    if how != "tcp":
        # Of 20 rounds, some are over before they have earned one: nearly all, where others want the CPUs.
        have = lambda: f"lanes; have {accel.broker.stats()}"
        until(lambda: accel.within(1, clients / 5, 0) or dialogues(), have, seconds=60)


def tables(accel, bed, rounds, times):
    """[(way to register, what was told in each round)], of client and server by turns."""
    port = free_port()
    server = accel.server("server", [bed / "edges", "server", port, rounds, times]).wait_listening(port)
    client = accel.client("client", [bed / "edges", "client", port, rounds, times])
    outs = finish_together(client, server, seconds=60)
    parts = [part.split("\n", 1) for out in outs for part in out.split("# ")[1:]]
    return [(name, "".join(f"{ended_once(line)}\n" for line in told.splitlines())) for name, told in parts]


ENDED = re.compile(r" ended:((?: [A-Z]+)+)(?: ended:\1)?( read \w+)(?: read:\1)?")


def ended_once(line):
    """The kernel tells of a stream's end twice (tcp_fin, then tcp_data_ready): to who waits in between, now and then, as two events.
    So TCP itself says either."""
    ended = ENDED.fullmatch(line)
    return f" ended:{ended[1]}{ended[2]}" if ended else line


MORE = re.compile(r" (?:left|after|later): (?:IN )?OUT")


def differences(name, tcp, lane):
    """The rounds of a connection in which more was told, or less. A set that always has something else to tell may tell once more of bytes
    that stand unread when the lane opens: nobody knows whether it has (COMPLIANCE.md)."""
    differ = [(one, other) for one, other in zip(tcp.splitlines(), lane.splitlines(), strict=True) if one != other]
    if "others" in name and len(differ) == 1 and differ[0][0] == MORE.sub("", differ[0][1], count=1):
        return []
    return [f"{name}: tcp [{one}], lane [{other}]" for one, other in differ]


@pytest.mark.parametrize("how", ["earned", "eager"])
def test_each_registration_is_told_of_as_on_tcp(world, bed, how):
    """Edges that are asked for in each way, changed, armed again, told of or not when the lane opens: no event more than on TCP, none fewer."""
    rounds, times = 24, 2
    expected = dict(tables(Accel(world, "tcp"), bed, rounds, 2))
    accel = Accel(world, "both", ["--eager"] if how == "eager" else [])
    found = tables(accel, bed, rounds, times)
    assert len(found) == len(expected) * times
    differ = [line for name, told in found for line in differences(name, expected[name], told)]
    assert not differ, "\n".join(differ)
    until(lambda: accel.broker.stats().lanes >= len(found) / 5, lambda: f"lanes; have {accel.broker.stats()}")
