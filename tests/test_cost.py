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


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="both ends can only be busy on two CPUs")
def test_no_system_call_per_message(world):
    accel, port = Accel(world, "both"), free_port()
    traces = [world.directory / f"{side}.trace" for side in ("server", "client")]
    # Each end on a core of its own, as the benchmarks do; strace stops a program at system calls only.
    def traced(core, trace):
        return ["taskset", "-c", core, "strace", "-f", "-c", "-U", "name,calls", "-o", trace]

    server = accel.server("server", ["sockperf", "server", "--tcp", "-i", "127.0.0.1", "-p", port])
    server.wait_listening(port)
    cores = sorted(os.sched_getaffinity(0))
    attached = world.start("strace", [*traced(cores[0], traces[0]), "-p", server.pid])
    os.sched_setaffinity(server.pid, {cores[0]})
    until(lambda: "attached" in attached.err, "strace attaches")
    load = ["sockperf", "ping-pong", "--tcp", "-i", "127.0.0.1", "-p", port, "-m", "14", "-t", "2"]
    out = accel.client("client", [*traced(cores[1], traces[1]), *load]).finish(40)
    messages = int(re.search(r"ReceivedMessages=(\d+)", out).group(1))
    server.stop()
    attached.popen.wait(10)
    for trace in traces:
        calls = sum(int(line.split()[1]) for line in trace.read_text().splitlines() if re.match(r"\w+ +\d+ *$", line)
                    and not line.startswith("total"))  # fmt: skip
        # TCP makes two for each message; what is left here is for the moments in which the other end has lost its core.
        assert calls > 0, trace.read_text()
        assert calls < messages / 4, f"{calls} system calls for {messages} messages:\n{trace.read_text()}"
    assert messages > 10_000
    accel.verify(lane_bytes=14 * messages // 2)


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
