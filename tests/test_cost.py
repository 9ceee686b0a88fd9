"""What lanes must not cost: system calls while both ends are busy, CPU while nothing happens, instructions in any call."""

import os
import re
import time
from pathlib import Path

import pytest

from harness import LIBRARY, Accel
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


def ping_pong(world, accel, bed):
    """System calls a message, of the end that makes more; each end on a core of its own."""
    port, cores, messages = free_port(), sorted(os.sched_getaffinity(0)), 400_000
    traces = [world.directory / f"{side}-{port}.trace" for side in ("server", "client")]
    server = accel.server("server", [bed / "rounds", "server", port]).wait_listening(port)
    os.sched_setaffinity(server.pid, {cores[0]})
    attached = world.start("strace", [*traced(cores[0], traces[0]), "-p", server.pid])
    until(lambda: "attached" in attached.err, "strace attaches")
    accel.client("client", [*traced(cores[1], traces[1]), bed / "rounds", "client", port, messages]).finish(60)
    attached.popen.wait(10)
    calls = [system_calls(trace) for trace in traces]
    assert min(calls) > 0, "strace counted"
    return max(calls) / messages


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="both ends can only be busy on two CPUs")
@pytest.mark.parametrize("pinned", [False, True], ids=["free-broker", "pinned-broker"])
def test_no_system_call_per_message(world, bed, pinned):
    """TCP makes two for each message. The few that are left are made when something else takes an end's core and the
    other one goes to sleep: of some tries, one must have been left alone. A private broker has the CPUs of whom `run` started first:
    that is no reason for others to sleep."""
    accel, tries = Accel(world, "both"), []
    if pinned:
        accel.broker = world.broker(name="pinned", prefix=["taskset", "-c", min(os.sched_getaffinity(0))])
    # A call that strace stops lasts longer than the other end spins: it would sleep, with more calls, and so on.
    accel.broker.tool("sysctl", "spin_us=1000")
    while not tries or (tries[-1] >= 0.1 and len(tries) < 12):
        tries.append(ping_pong(world, accel, bed))
    assert tries[-1] < 0.1, f"system calls a message: {tries}"
    accel.verify(lane_bytes=14 * 200_000)


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


# Instructions of a call with 14 bytes, as valgrind counts them: 8 to 16 % above what they were when last looked at
# (send 398, recv 416, epoll_wait 1217, read or write of a file 14 more than libc's, a short connection 2037 more at both ends
# together; on TCP epoll_wait 111 and poll 209 more than libc's). docs/profiles.md says where they go.
BOUNDS = {"send": 459, "recv": 477, "epoll_wait": 1400, "file": 17, "connection": 2200, "waits": 130, "polls": 240}


def instructions(world, bed, start, what, rounds, port=0):
    """Instructions of a round of tests/programs/instructions.c."""
    output = world.directory / f"callgrind-{what}.out"
    argv = ["valgrind", "--tool=callgrind", "--toggle-collect=measured", f"--callgrind-out-file={output}",
            bed / "instructions", port, what, rounds]  # fmt: skip
    proc = start(f"callgrind-{what}", argv)

    def result():
        proc.finish(120)
        return int(re.search(r"Collected : (\d+)", proc.err).group(1)) / rounds

    return result


def test_instructions_of_a_call_on_a_lane(world, bed):
    """Both ends in one thread, so that nothing waits: the same figures on any machine of this kind, busy or not."""
    accel = Accel.eager(world, "earned", warms=True)
    counts = {}
    for lanes, what in enumerate(("exchange", "sends", "waits"), 1):
        result = instructions(world, bed, accel.client, what, 2000, free_port())
        accel.warmed(lanes)
        counts[what] = result()
        Path(world.env["BED_WARM_UNTIL"]).unlink()
    send = counts["sends"] - counts["exchange"]
    found = {"send": send, "recv": counts["exchange"] - send, "epoll_wait": counts["waits"] - counts["exchange"]}
    assert all(100 < found[name] <= BOUNDS[name] for name in found), f"{found}, bounds {BOUNDS}"
    accel.verify(lanes=3, lane_bytes=3 * 14 * 2000)


def test_instructions_of_a_call_that_is_not_ours(world, bed):
    """read and write of files: what the hook costs before libc's own."""
    accel = Accel(world, "both")
    plain = instructions(world, bed, world.start, "file", 2000)()
    hooked = instructions(world, bed, accel.client, "file", 2000)()
    more = (hooked - plain) / 2
    assert 2 < more <= BOUNDS["file"], f"{more} instructions more, of {plain / 2}"


def test_instructions_of_a_short_connection(world, bed):
    """Made, accepted, used for a byte there and back, and closed: what both ends pay that never come on a lane."""
    accel = Accel(world, "both")
    plain = instructions(world, bed, world.start, "connection", 200, free_port())()
    hooked = instructions(world, bed, accel.client, "connection", 200, free_port())()
    more = hooked - plain
    assert 500 < more <= BOUNDS["connection"], f"{more} instructions more, of {plain}"


def test_instructions_of_a_wait_on_tcp(world, bed):
    """epoll_wait and poll for a connection that gets no lane, as there is no broker, however eagerly it is asked for."""
    env = {"BED_WARM_UNTIL": "/dev/null"}
    under = env | {"LD_PRELOAD": str(LIBRARY), "SHUNPIKE_SOCKET": str(world.directory / "none.sock"), "SHUNPIKE_EAGER": "1"}

    def counts(env):
        start = lambda name, argv: world.start(name, argv, env=env)
        exchange, *calls = (instructions(world, bed, start, what, 2000, free_port())() for what in ("exchange", "waits", "polls"))
        return [count - exchange for count in calls]

    more = dict(zip(("waits", "polls"), (on - off for on, off in zip(counts(under), counts(env), strict=True)), strict=True))
    assert all(20 < more[name] <= BOUNDS[name] for name in more), f"{more} instructions more, bounds {BOUNDS}"


# Microseconds of CPU that a fork may cost more, child included, in a process with a hundred lanes.
FORK_US = 700


def test_a_fork_costs_little_more(world, bed):
    """Beside the same with connections on TCP: the child has to be a holder of each."""
    accel, costs = Accel(world, "both", ["--eager"]), {}
    for name, server, client in (("tcp", world.start, world.start), ("lanes", accel.server, accel.client)):
        port = free_port()
        server(f"server, {name}", [bed / "echo", "server", "lt", port, 100]).wait_listening(port)
        costs[name] = int(client(f"client, {name}", [bed / "forked", port, 100, 30]).finish(60))
    assert costs["lanes"] <= costs["tcp"] + FORK_US, costs
    accel.verify(lanes=75)
