"""DMBs are used again by the next connection of the same two processes; by nobody else, and not for ever."""

import json
import socket
import subprocess
import sys

import pytest

from harness import Accel, programs
from procs import free_port, until

ROUNDS = 60


def pair(world, rounds, *how):
    accel, port, program = Accel.eager(world, "both"), free_port(), programs() / "again.py"
    server = accel.server("server", [sys.executable, program, "server", port]).wait_listening(port)
    client = accel.client("client", [sys.executable, program, "client", port, rounds, *how], stdin=subprocess.PIPE)
    until(lambda: "waits" in client.out, client.describe, seconds=30)
    return accel, server, client


def go_on(client):
    client.popen.stdin.close()
    client.finish()


def used(proc, word="used"):
    """The DMBs of each connection."""
    return [set(line.split()[1:]) for line in proc.out.splitlines() if line.split()[0] == word]


def resident(proc):
    """Memory of DMBs that a process has mapped, KiB, and how many it has."""
    sizes, inside = [], False
    for line in open(f"/proc/{proc.pid}/smaps"):
        if "-" in line.split()[0]:
            inside = "shunpike-dmb" in line
        elif inside and line.startswith("Rss:"):
            sizes.append(int(line.split()[1]))
    return sum(sizes), len(sizes)


def dmbs(accel):
    return json.loads(accel.broker.tool("info", "--json"))["device"]["dmbs_cnt"]


def test_connections_in_turn_use_the_same_dmbs(world, bed):
    accel, server, client = pair(world, ROUNDS)
    kept = used(client)
    assert len(kept) == ROUNDS - 1 and all(len(each) >= 2 for each in kept[1:]), kept
    # Two would do. A thread that cannot be seen to have left costs one more, and the first connections may be on TCP for a while.
    assert len(set().union(*kept)) <= 8, kept
    assert 0 < dmbs(accel) <= 16
    # Nobody calls anything: what was kept goes, also from processes that sleep.
    until(lambda: dmbs(accel) == 0, lambda: f"{dmbs(accel)} DMBs are kept", seconds=30)
    assert [resident(proc)[0] for proc in (server, client)] == [0, 0]
    go_on(client)
    assert used(client)[-1].isdisjoint(set().union(*kept))
    until(lambda: len(used(server)) == ROUNDS, server.describe)
    # What the broker said meanwhile has been heard: unmapped.
    assert resident(server)[1] <= 2
    accel.verify(lanes=ROUNDS)


def test_what_a_forked_child_has_mapped_is_not_used_again(world, bed):
    accel, server, client = pair(world, 20, "fork")
    (of_child,), (first, *later) = used(client, "child"), used(client)
    assert len(of_child) >= 2 and of_child <= first
    assert of_child.isdisjoint(set().union(*later)), "the child has memory of later connections"
    assert len(set().union(*later)) <= 8, "it costs the first connection's only"
    go_on(client)
    until(lambda: len(used(server)) == 20, server.describe)
    assert of_child.isdisjoint(set().union(*used(server)[1:]))


def test_what_is_closed_while_its_lane_is_made_keeps_no_dmb(world, bed):
    """Whichever thread hears that there is a lane, while another closes the connection. What the broker tells a process that sleeps then,
    a next call hears: the client makes them, and the server is given some."""
    accel, port = Accel.eager(world, "both"), free_port()
    accel.server("server", [bed / "closing", "server", port]).wait_listening(port)
    client = accel.client("client", [bed / "closing", "client", port, 8, 1000], stdin=subprocess.PIPE)
    until(lambda: "waits" in client.out, client.describe, seconds=60)

    def none_is_kept():
        with socket.create_connection(("127.0.0.1", port)) as sock:
            sock.send(b"x")
        return dmbs(accel) == 0

    until(none_is_kept, lambda: f"{dmbs(accel)} DMBs are kept", seconds=30, pause=0.2)
    go_on(client)
    assert accel.broker.stats().lanes > 100


@pytest.mark.parity
@pytest.mark.parametrize("mode", ["tcp", "both", "earned"])
@pytest.mark.parametrize("how", ["close", "syscall", "stdio", "unseen"])
@pytest.mark.parametrize("what", ["listener", "set", "stream", "lane"])
def test_the_number_of_what_was_closed_is_free(world, bed, mode, what, how):
    """Also to the library, which may have taken no notice: libuv closes by syscall(2), fclose inside libc."""
    accel, port = Accel.eager(world, mode), free_port()
    accel.server("server", [bed / "stale", "server", port]).wait_listening(port)

    def dialogue():
        client = accel.client("client", [bed / "stale", "client", what, how, port])
        assert client.finish() == "the number is free: yes\n"

    dialogue()
    accel.verify(lane_bytes=100_000, more=dialogue)
