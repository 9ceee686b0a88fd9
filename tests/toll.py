"""What an end pays that stays on TCP: two dialogues, one of them under Shunpike, in turn on one CPU.

CPU time is the scheduler's, to the nanosecond. What else the machine does falls on turns of both dialogues, and the middle of
the ratios of neighbours does not see what falls on few."""

import os
import re
import select
import statistics
import time
from pathlib import Path

from harness import LIBRARY
from procs import PATIENCE, free_port, until

ROUNDS = 500  # of one turn: some milliseconds
BOUND = 1.05
# Where a kernel needs less CPU time for a round trip the hooks weigh more: this much is what they may take anywhere. Zen 5 needs 700, Sapphire
# Rapids up to 900; their instructions are counted in test_cost.
TOLL_NS = 1000
# System calls for a message; and looks at the session's socket (recvmsg) each second at each end, where the broker does not answer (LOOK_MOST_US
# in session.rs), however many messages a machine gets done meanwhile.
MORE, LOOKS = 0.05, 100


class Dialogue:
    """Both ends of tests/programs/turns.c on one CPU. `wrap(side)`: the command that each of them is run by."""

    def __init__(self, world, name, program, way, wrap):
        self.world, self.ways, port = world, 2 + (way in ("poll", "epoll")), free_port()
        directory = world.directory / f"{name}-{port}"
        directory.mkdir()
        fifos = [directory / fifo for fifo in ("to-server", "to-client")]
        for path in (directory, *fifos):
            if path != directory:
                os.mkfifo(path)
            path.chmod(0o777)  # also for another user
        # Both ways open before the program comes: nobody waits for the other to open.
        self.told, self.tells = (os.open(fifo, os.O_RDWR) for fifo in fifos)
        env, core = {"BED_SYNC": str(directory)}, max(os.sched_getaffinity(0))
        argv = lambda side, *more: ["taskset", "-c", core, *wrap(side), program, side, way, port, *more]
        server = world.start(f"{name}-server", argv("server"), env=env).wait_listening(port)
        self.ends = [world.start(f"{name}-client", argv("client", ROUNDS), env=env), server]

    def turn(self):
        os.write(self.tells, b"!")
        answered, _, _ = select.select([self.told], [], [], 20 * PATIENCE)
        assert answered, "\n".join(end.describe() for end in self.ends)
        os.read(self.told, 1)

    def end(self):
        os.write(self.tells, b".")
        assert [end.finish() for end in self.ends] == ["done\n", ""]
        for fifo in (self.told, self.tells):
            os.close(fifo)

    def has_library(self):
        return [LIBRARY.name in Path(f"/proc/{end.pid}/maps").read_text() for end in self.ends]

    def system_calls(self, turns=4):
        """More system calls than plain TCP makes, for a message, beside looks; and all, by their names, with the seconds that they took."""
        traces = [self.world.directory / f"{end.name}.trace" for end in self.ends]
        argv = ["strace", "-f", "-c", "-U", "name,calls", "-o"]
        tracers = [self.world.start("strace", [*argv, trace, "-p", end.pid]) for trace, end in zip(traces, self.ends, strict=True)]
        for tracer in tracers:
            until(lambda tracer=tracer: "attached" in tracer.err, "strace attaches")
        began = time.monotonic()
        for _ in range(turns):
            self.turn()
        seconds = time.monotonic() - began
        for tracer in tracers:
            tracer.signal(2)
            tracer.popen.wait(60)
        lines = (re.fullmatch(r"(\w+) +(\d+) *", line) for trace in traces for line in trace.read_text().splitlines())
        counts = {}
        for name, count in (line.groups() for line in lines if line):
            if name != "total":
                counts[name] = counts.get(name, 0) + int(count)
        messages = 2 * ROUNDS * turns
        assert sum(counts.values()) >= self.ways * messages, f"strace counted: {counts}"
        looks = min(LOOKS * seconds * len(self.ends), counts.get("recvmsg", 0))
        return (sum(counts.values()) - looks) / messages - self.ways, counts | {"seconds": seconds}


def cpu_ns(pid):
    """CPU time of a process so far: its clock of clock_getcpuclockid(3)."""
    return time.clock_gettime_ns(~pid << 3 | 2)


def spent(dialogue, *others):
    """CPU time of one turn: of its ends and of `others`."""
    pids = [proc.pid for proc in (*dialogue.ends, *others)]
    before = sum(map(cpu_ns, pids))
    dialogue.turn()
    return sum(map(cpu_ns, pids)) - before


def ratios(plain, under, brokers, pairs):
    """Of turns that are neighbours; each dialogue is first in every other pair."""
    for pair in range(pairs):
        if pair % 2:
            mine, theirs = spent(under, *brokers), spent(plain)
        else:
            theirs, mine = spent(plain), spent(under, *brokers)
        yield mine / theirs


def bound(plain):
    """What is too much on this machine."""
    round_ns = min(spent(plain) for _ in range(8)) / ROUNDS
    return max(BOUND, 1 + TOLL_NS / round_ns)


def compare(plain, under, brokers, limit, pairs=16, most=256):
    """The middle ratio, and between which two it is with 95 %. More pairs while the bound is between these; after `most` it is
    what it is, on whichever side."""
    found = []
    while True:
        found += ratios(plain, under, brokers, pairs)
        ordered, count = sorted(found), len(found)
        reach = int(count**0.5) + 1  # two standard deviations of the rank of the middle
        low, high = ordered[max(count // 2 - reach, 0)], ordered[min(count // 2 + reach, count - 1)]
        if high <= limit or low > limit or count >= most:
            return statistics.median(found), low, high
