"""What an end pays that stays on TCP: two dialogues, one of them under Shunpike, in turn on one CPU.

The dialogues' CPU time is the scheduler's, to the nanosecond, of both ends and the broker. What else the machine does falls on
turns of both, and the middle of the ratios of neighbours does not see what falls on few."""

import os
import re
import statistics
import time

from procs import PATIENCE, free_port, until

TURN = 500  # rounds of one turn, some milliseconds
BOUND = 1.05


class Dialogue:
    """Both ends of tests/programs/turns.c on the CPU `core`; `wrap(side)`: the command, if any, that each of them is run by."""

    def __init__(self, world, bed, name, how, core, wrap=lambda side: [], env=None, rounds=TURN):
        self.world, self.core, port = world, core, free_port()
        directory = world.directory / f"{name}-{port}"
        directory.mkdir()
        directory.chmod(0o755)
        for fifo in ("to-server", "to-client"):
            os.mkfifo(directory / fifo)
            (directory / fifo).chmod(0o666)
        # Both ways open before the program comes: nobody waits for a writer.
        self.told, self.tells = (os.open(directory / fifo, os.O_RDWR) for fifo in ("to-server", "to-client"))
        env = {"BED_SYNC": str(directory)} | (env or {})
        pinned = ["taskset", "-c", core]
        argv = lambda side, *more: [*pinned, *wrap(side), bed / "turns", side, how, port, *more]
        self.server = world.start(f"{name}-server", argv("server"), env=env).wait_listening(port)
        self.client = world.start(f"{name}-client", argv("client", rounds), env=env)
        self.ends = [self.server, self.client]

    def turn(self):
        """One turn of it."""
        os.write(self.tells, b"!")
        assert os.read(self.told, 1) == b"!"

    def end(self):
        os.write(self.tells, b".")
        assert self.client.finish() == "done\n"
        self.server.finish()
        os.close(self.told)
        os.close(self.tells)

    def system_calls(self):
        """Those of the two ends in one turn."""
        traces = [self.world.directory / f"{end.name}.trace" for end in self.ends]
        argv = ["strace", "-f", "-c", "-U", "name,calls", "-o"]
        tracers = [self.world.start("strace", [*argv, trace, "-p", end.pid]) for trace, end in zip(traces, self.ends, strict=True)]
        for tracer in tracers:
            until(lambda tracer=tracer: "attached" in tracer.err, "strace attaches")
        self.turn()
        for tracer in tracers:
            tracer.signal(2)
            tracer.popen.wait(10)
        counts = (re.fullmatch(r" *(?:(\d+) +(\w+)|(\w+) +(\d+)) *", line) for trace in traces for line in trace.read_text().splitlines())
        found = {}
        for count in filter(None, counts):
            name, calls = count[2] or count[3], int(count[1] or count[4])
            if name != "total":
                found[name] = found.get(name, 0) + calls
        return found


def cpu_ns(pid):
    """CPU time of a process so far: its clock of clock_getcpuclockid(3)."""
    return time.clock_gettime_ns(~pid << 3 | 2)


def spent(dialogue, *others):
    """CPU time of one turn: of its ends and of `others`."""
    pids = [end.pid for end in dialogue.ends] + [other.pid for other in others]
    before = sum(map(cpu_ns, pids))
    dialogue.turn()
    return sum(map(cpu_ns, pids)) - before


def ratios(plain, under, broker, pairs):
    """Of turns that are neighbours, each dialogue first in every other one."""
    found = []
    for pair in range(pairs):
        if pair % 2:
            mine, theirs = spent(under, *broker), spent(plain)
        else:
            theirs, mine = spent(plain), spent(under, *broker)
        found.append(mine / theirs)
    return found


def compare(plain, under, broker=(), pairs=15, most=240):
    """The middle ratio, looked at until it is clear on which side of the bound it is, or for `most` pairs: then it is what it
    is. Returns it with its bounds of 95 % confidence."""
    found = []
    while True:
        found += ratios(plain, under, broker, pairs)
        ordered, count = sorted(found), len(found)
        # Ranks between which the median lies with 95 % (the binomial's two standard deviations).
        reach = int(count**0.5) + 1
        low, high = ordered[max(count // 2 - reach, 0)], ordered[min(count // 2 + reach, count - 1)]
        if high <= BOUND or low > BOUND or count >= most:
            return statistics.median(found), low, high, count
