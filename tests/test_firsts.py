"""What the first connections of a process cost, and later ones when the broker has come back: nothing of ours waits."""

import contextlib
import csv
import io
import os
import re
import shutil
import socket
import statistics
import subprocess

import pytest

from harness import Accel
from procs import free_port, until

pytestmark = pytest.mark.cost

PROCESSES = 5
# Of the calls of the program, those that other threads' locks cannot make sleep.
ALONE = ("connect", "accept")


class Firsts:
    """Processes that connect to themselves with threads about, one after the other; how often their calls have slept."""

    def __init__(self, accel, bed, who, limit):
        self.accel, self.slept = accel, []
        for _ in range(PROCESSES):
            argv = ["prlimit", f"--nofile={limit}:4096", bed / "firsts", who, free_port(), 4, 40]
            proc = accel.client("firsts", argv, stdin=subprocess.PIPE)
            self.note(proc, 1)
            self.again(proc)
            proc.popen.stdin.close()
            proc.finish()

    def again(self, proc):
        os.write(proc.popen.stdin.fileno(), b"\n")
        self.note(proc, 2)

    def note(self, proc, lines):
        until(lambda: proc.out.count("\n") == lines, proc.describe, seconds=60)
        found = re.findall(r"(\w+) (\d+)", proc.out.splitlines()[-1])
        self.slept.append({kind: int(count) for kind, count in found})

    def middle(self, kind):
        """Another process's page fault may hold one up; what waits always is in the middle, too."""
        return statistics.median(counts[kind] for counts in self.slept[::2]), statistics.median(counts[kind] for counts in self.slept[1::2])


@pytest.mark.parametrize("limit", [4096, 1024, 300])
@pytest.mark.parametrize("who", ["itself", "child", "raised"])
@pytest.mark.parametrize("mode", ["tcp", "both"])
def test_no_call_waits(world, bed, mode, who, limit):
    """A number of a descriptor that makes the kernel enlarge the table which threads share costs 8 to 20 ms."""
    accel = Accel(world, mode)
    firsts = Firsts(accel, bed, who, limit)
    assert [firsts.middle(kind) for kind in ALONE] == [(0, 0)] * len(ALONE), firsts.slept
    accel.verify(lanes=PROCESSES)


def test_no_call_waits_for_a_broker_that_comes_back(world, bed):
    """Sessions are opened anew, with threads about."""
    accel = Accel(world, "both")
    slept = []
    for _ in range(3):
        argv = [bed / "firsts", "itself", free_port(), 4, 40]
        proc = accel.client("firsts", argv, stdin=subprocess.PIPE)
        until(lambda: proc.out.count("\n") == 1, proc.describe, seconds=60)
        accel.broker.restart()
        for turn in range(2, 4):
            os.write(proc.popen.stdin.fileno(), b"\n")
            until(lambda: proc.out.count("\n") == turn, proc.describe, seconds=60)
            slept.append([int(count) for count in re.findall(r"(?:connect|accept) (\d+)", proc.out.splitlines()[-1])])
        proc.popen.stdin.close()
        proc.finish()
    assert [statistics.median(column) for column in zip(*slept)] == [0, 0], slept


# What a connect or an accept may cost beyond the same on TCP, in microseconds.
OURS_US = 100


def slowest(accel, bed, processes=5, later=200):
    """In microseconds: the middle of the slowest of each process, by (call, whether it is one of the first)."""
    times = {(kind, turn): [] for kind in ALONE for turn in range(2)}
    for _ in range(processes):
        proc = accel.client("firsts", [bed / "firsts", "itself", free_port(), 4, 40, later], stdin=subprocess.PIPE)
        until(lambda proc=proc: proc.out.count("\n") == 1, proc.describe, seconds=60)
        os.write(proc.popen.stdin.fileno(), b"\n")
        until(lambda proc=proc: proc.out.count("\n") == 2, proc.describe, seconds=60)
        proc.popen.stdin.close()
        proc.finish()
        for kind in ALONE:
            for turn, time in enumerate(re.findall(rf"{kind} (\d+) us", proc.err)):
                times[kind, turn].append(int(time))
    return {which: statistics.median(those) for which, those in times.items()}


def test_what_a_connect_and_an_accept_cost(world, bed):
    """The slowest of a process's first four, and of 200 later ones, beside the same on TCP; in one of three tries, as others run, too."""
    on_tcp, on_lanes, tries = Accel(world, "tcp"), Accel(world, "both"), []
    while len(tries) < 3:
        tcp, lanes = slowest(on_tcp, bed), slowest(on_lanes, bed)
        tries.append({which: (lanes[which], tcp[which]) for which in tcp})
        if all(ours <= plain + OURS_US for ours, plain in tries[-1].values()):
            return on_lanes.verify(lanes=5)
    raise AssertionError(f"microseconds on lanes and on TCP, by call and turn: {tries}")


CHECKS = """
global
    nbthread 2
    stats socket {stats} mode 600
defaults
    mode tcp
    timeout connect 10s
    timeout client 10s
    timeout server 10s
    timeout check 1ms
frontend front
    bind 127.0.0.1:{front}
    default_backend back
backend back
    server one 127.0.0.1:{back} check inter 60s fall 1
"""


def is_checked(start, world, back, number):
    """Whether the first check of HAProxy's, the first connection that it makes, is in time."""
    front, stats, conf = free_port(), world.directory / f"stats-{number}", world.directory / f"haproxy-{number}.conf"
    conf.write_text(CHECKS.format(stats=stats, front=front, back=back))
    proxy = start(f"haproxy-{number}", ["haproxy", "-db", "-f", conf])

    def status():
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as asking:
            asking.connect(str(stats))
            asking.sendall(b"show stat\n")
            rows = list(csv.DictReader(io.StringIO(b"".join(iter(lambda: asking.recv(1 << 16), b"")).decode().removeprefix("# "))))
            return next((row["check_status"] for row in rows if row["svname"] == "one" and row["check_status"] not in ("", "INI")), None)

    said = until(status, proxy.describe, seconds=20)
    proxy.kill()
    return said == "L4OK"


@pytest.mark.skipif(not shutil.which("haproxy"), reason="there is no HAProxy")
def test_a_check_of_a_millisecond_is_in_time(world, bed):
    """It has threads, and its check is its first connection: that took 8 to 20 ms. Beside TCP, as it may be late there, too."""
    accel, port = Accel(world, "both"), free_port()
    accel.server("server", [bed / "echo", "server", "lt", port, 1_000_000]).wait_listening(port)
    late = {"tcp": 0, "lanes": 0}
    for number in range(5):
        late["tcp"] += not is_checked(world.start, world, port, 2 * number)
        late["lanes"] += not is_checked(accel.client, world, port, 2 * number + 1)
    # With one more the machine's, of five.
    assert late["lanes"] <= late["tcp"] + 1, late
