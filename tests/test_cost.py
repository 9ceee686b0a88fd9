"""What lanes must not cost: system calls while both ends are busy, CPU while nothing happens."""

import os
import re
import time
from pathlib import Path

import pytest

from harness import Accel
from procs import free_port, until

pytestmark = pytest.mark.cost


def cpu_seconds(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def traced(core, trace):
    """strace stops a program at system calls only: one that makes none is not slowed down."""
    return ["taskset", "-c", core, "strace", "-f", "-c", "-U", "name,calls", "-o", trace]


def system_calls(trace):
    counts = (re.fullmatch(r"(\w+) +(\d+) *", line) for line in trace.read_text().splitlines())
    return sum(int(count.group(2)) for count in counts if count and count.group(1) != "total")


def ping_pong(world, accel):
    """A second of 14-byte messages, each end on a core of its own: (messages, system calls of the busier end)."""
    port, cores = free_port(), sorted(os.sched_getaffinity(0))
    traces = [world.directory / f"{side}-{port}.trace" for side in ("server", "client")]
    server = accel.server("server", ["sockperf", "server", "--tcp", "-i", "127.0.0.1", "-p", port]).wait_listening(port)
    os.sched_setaffinity(server.pid, {cores[0]})
    attached = world.start("strace", [*traced(cores[0], traces[0]), "-p", server.pid])
    until(lambda: "attached" in attached.err, "strace attaches")
    load = ["sockperf", "ping-pong", "--tcp", "-i", "127.0.0.1", "-p", port, "-m", "14", "-t", "1", "--mps=400000"]
    out = accel.client("client", [*traced(cores[1], traces[1]), *load]).finish(40)
    server.stop()
    attached.popen.wait(10)
    return int(re.search(r"ReceivedMessages=(\d+)", out).group(1)), max(map(system_calls, traces))


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="both ends can only be busy on two CPUs")
def test_no_system_call_per_message(world):
    """TCP makes two for each message. The few that are left are made when something else takes an end's core and the
    other one goes to sleep: of three tries, one must have been left alone."""
    accel, tries = Accel(world, "both"), []
    while len(tries) < 3:
        tries.append(ping_pong(world, accel))
        messages, calls = tries[-1]
        assert messages > 1000 and calls > 0, tries
        if calls < messages / 10:
            break
    assert any(calls < messages / 10 for messages, calls in tries), f"(messages, system calls): {tries}"
    accel.verify(lane_bytes=14_000)


def test_idle_lanes_cost_no_cpu(world, bed):
    """Fifty open lanes, a server asleep in epoll_wait, a client asleep in poll."""
    accel, port = Accel(world, "both", ["--eager"]), free_port()
    server = accel.server("server", ["redis-server", "--port", port, "--bind", "127.0.0.1", "--save", "", "--hz", "1"])
    server.wait_listening(port)
    client = accel.client("client", ["redis-benchmark", "-I", "-c", "50", "-p", port])
    until(lambda: len(accel.broker.connections()) >= 100, lambda: f"both ends of 50 connections; have {accel.broker.connections()}")
    time.sleep(0.5)  # lets what starting costs pass
    before = [cpu_seconds(proc.pid) for proc in (server, client, accel.broker.proc)]
    time.sleep(3)
    after = [cpu_seconds(proc.pid) for proc in (server, client, accel.broker.proc)]
    spent = [round(now - then, 3) for then, now in zip(before, after, strict=True)]
    # redis itself wakes once a second: two ticks of the clock in three seconds are its own.
    assert max(spent) <= 0.02, f"seconds of CPU in 3 s (server, client, broker): {spent}"
