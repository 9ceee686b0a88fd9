"""What happens to two programs that stream to each other (programs/stress.c) while the harness does to them, to their
lanes and to their broker whatever may happen in the field. Everything is chosen by the seed; what the machine's
scheduler adds is not, so that a seed repeats the deeds, not each interleaving."""

import mmap
import random
import signal
import struct
import subprocess
import time

import harness
from procs import PATIENCE, free_port, stacks, until

WAY = struct.Struct("=4Q")
WORDS = 64  # of the tally's header, in bytes
MOST_CONNS = 64
QUIET = 30.0  # seconds without one byte more, with nobody stopped: that is a hang


class Tally:
    """The file in which both programs write how far they are."""

    def __init__(self, path):
        path.write_bytes(bytes(WORDS + MOST_CONNS * 2 * WAY.size))
        with open(path, "r+b") as file:
            self.map = mmap.mmap(file.fileno(), 0)

    def order(self, word):
        struct.pack_into("=Q", self.map, {"stop": 0, "killed": 8, "stopped": 24, "seen": 32}[word], 1)

    def ways(self, conns):
        """For each direction of each connection: asked, sent, received, how it ended."""
        return [WAY.unpack_from(self.map, WORDS + WAY.size * i) for i in range(2 * conns)]

    def failed(self):
        return struct.unpack_from("=Q", self.map, 16)[0]

    def received(self, conns):
        return sum(way[2] for way in self.ways(conns))


class Round:
    """One pair of programs and what is done to them."""

    # deed: how often, by weight
    DEEDS = {
        "revoke_process": 8, "revoke_connection": 30, "revoke_both": 4, "stop": 12, "stop_long": 2, "device_off": 1,
        "dmb_copy": 4, "rmem": 6, "grace": 2, "queues": 3, "broker_killed": 0.6, "nothing": 10,
    }  # fmt: skip

    def __init__(self, world, bed, seed, conns=12, oneway=False, deeds=None, pause=0.06, verbose=lambda text: None):
        self.world, self.seed, self.conns, self.oneway = world, seed, conns, oneway
        self.pause, self.verbose = pause, verbose
        self.deeds = deeds or self.DEEDS
        self.random = random.Random(seed)
        self.done = dict.fromkeys(self.DEEDS, 0) | {"killed": 0}
        self.log = []
        path = world.directory / f"tally.{seed}"
        self.tally = Tally(path)
        self.accel = harness.Accel(world, "both")
        port = free_port()
        way = "oneway" if oneway else "both"
        argv = lambda role: [bed / "stress", role, port, conns, seed, path, way]
        self.server = self.accel.server("server", argv("server")).wait_listening(port)
        self.client = self.accel.client("client", argv("client"))
        self.since = time.monotonic()
        self.opened = self.lane_bytes = 0  # ends that came on a lane, each time; bytes
        self.before = [(-1, self.since)] * (2 * conns)

    @property
    def broker(self):
        return self.accel.broker

    def run(self, seconds):
        """Goes on until `seconds` are over. Bytes received."""
        end = time.monotonic() + seconds
        names, weights = zip(*self.deeds.items())
        shown = 0.0
        while time.monotonic() < end:
            deed = self.random.choices(names, weights)[0]
            began = time.monotonic()
            getattr(self, deed)()
            self.log.append((deed, round(began - self.since, 3), round(time.monotonic() - began, 3)))
            self.done[deed] += 1
            self.look()
            if time.monotonic() - shown > 2:
                shown = time.monotonic()
                self.sample()
                self.verbose(self.describe())
            time.sleep(self.random.expovariate(1 / self.pause))
        return self.received()

    def received(self):
        return self.tally.received(self.conns)

    def look(self):
        """Both live, and bytes move on every connection."""
        self.check_failed()
        for proc in (self.client, self.server):
            assert proc.popen.poll() is None, self.explain(f"{proc.name} ended")
        now = [way[2] for way in self.tally.ways(self.conns)]
        self.before = [(n, time.monotonic()) if n != b[0] else b for n, b in zip(now, self.before)]
        expected = range(0, 2 * self.conns, 2 if self.oneway else 1)
        quiet = [i for i in expected if time.monotonic() - self.before[i][1] > QUIET * PATIENCE]
        assert not quiet, self.explain(f"no byte more for {QUIET * PATIENCE:.0f} s on directions {quiet}")

    def check_failed(self):
        assert not self.tally.failed(), self.explain("failed")

    def finish(self):
        """Asks for the end of all streams and waits for it; each program has checked each byte."""
        self.sample()
        self.tally.order("stop")
        self.wait(self.client, self.server)
        for index, (asked, sent, received, ended) in enumerate(self.tally.ways(self.conns)):
            assert sent == received and ended == 1, self.explain(f"direction {index}: {sent} sent, {received} received")
        return self.settle()

    def kill(self, name):
        """Kills the end `name` in full flow; the other must come to its end, with nothing wrong and nothing lost."""
        victim, survivor = (self.client, self.server) if name == "client" else (self.server, self.client)
        self.sample()
        self.tally.order("killed")
        victim.kill()
        self.done["killed"] += 1
        self.wait(survivor)
        return self.settle()

    def wait(self, *procs, seconds=60):
        def ended():
            self.check_failed()
            return all(proc.popen.poll() is not None for proc in procs)

        try:
            until(ended, "the streams end", seconds)
        except AssertionError as problem:
            if self.tally.failed():
                raise
            raise AssertionError(self.explain(f"the streams do not end: {problem}")) from None
        for proc in procs:
            assert proc.popen.returncode == 0, self.explain(f"{proc.name} failed")

    def settle(self):
        total = self.received()
        self.verbose(self.describe())
        return total

    def explain(self, what):
        ways = "\n".join(f"  direction {i}: asked {a}, sent {s}, received {r}, ended {e}"
                         for i, (a, s, r, e) in enumerate(self.tally.ways(self.conns)))  # fmt: skip
        try:
            connections = self.broker.tool("ss", "-d")
        except AssertionError as problem:
            connections = str(problem)
        where = "\n".join(f"{proc.name}:\n{stacks(proc.pid)}" for proc in (self.client, self.server))
        self.tally.order("seen")
        return (f"seed {self.seed}: {what}\n{ways}\n{connections}\n{where}\nlast deeds (when, for how long): {self.log[-12:]}\n"
                f"{self.client.describe()}\n{self.server.describe()}")  # fmt: skip

    def sample(self):
        """What the statistics say. A broker that has just been started does not know all programs yet: the most is kept."""
        try:
            stats = self.broker.stats()
        except AssertionError:
            return  # it is just being replaced
        self.opened, self.lane_bytes = max(self.opened, stats.smc), max(self.lane_bytes, stats.tx_bytes)

    def describe(self):
        lanes = f"{self.lane_bytes / 1e9:.2f} on lanes, opened {self.opened} times"
        return f"{self.received() / 1e9:7.2f} GB, {lanes}; " + ", ".join(f"{n} {name}" for name, n in self.done.items() if n)

    # -- deeds

    def tool(self, *arguments):
        """What a process or a connection that is just going refuses is no failure here."""
        env = self.world.env | {"SHUNPIKE_SOCKET": str(self.broker.socket)}
        return subprocess.run([str(harness.BINARY), *arguments], env=env, capture_output=True, text=True,
                              timeout=60 * PATIENCE).stdout  # fmt: skip

    def start_tool(self, *arguments):
        env = self.world.env | {"SHUNPIKE_SOCKET": str(self.broker.socket)}
        return subprocess.Popen([str(harness.BINARY), *arguments], env=env, stdout=subprocess.DEVNULL,
                                stderr=subprocess.DEVNULL)  # fmt: skip

    def either(self):
        return self.random.choice((self.client, self.server))

    def nothing(self):
        time.sleep(self.random.random() * 0.3)

    def revoke_process(self):
        self.tool("revoke", str(self.either().pid))

    def revoke_connection(self):
        try:
            ends = self.broker.connections()
        except AssertionError:
            return
        if ends:
            end = self.random.choice(ends)
            self.tool("revoke", f"{end['pid']}:{end['fd']}")

    def revoke_both(self):
        for tool in [self.start_tool("revoke", str(proc.pid)) for proc in (self.client, self.server)]:
            tool.wait(60 * PATIENCE)

    def stop(self, longest=0.06):
        proc, revoked, tool = self.either(), self.either(), None
        with_revoke, seconds = self.random.random() < 0.3, self.random.random() * longest
        self.tally.order("stopped")
        proc.signal(signal.SIGSTOP)
        try:
            if with_revoke:
                # Not waited for: a tool that is slow must not make a stop of milliseconds one of seconds.
                tool = self.start_tool("revoke", str(revoked.pid))
            time.sleep(seconds)
        finally:
            proc.signal(signal.SIGCONT)
        if tool:
            tool.wait(60 * PATIENCE)

    def stop_long(self):
        self.stop(longest=0.6)

    def device_off(self):
        self.tool("device", "set", "active", "off")
        time.sleep(self.random.random() * 0.05)
        self.tool("device", "set", "active", "on")

    def dmb_copy(self):
        self.tool("device", "set", "dmb_copy", self.random.choice(("on", "off")))

    def rmem(self):
        self.tool("device", "set", "rmem", str(16384 << self.random.randrange(8)))

    def grace(self):
        """For a while a full ring is borne for less time than a scheduler's slice."""
        self.tool("sysctl", f"grace_ms={self.random.choice((0, 1, 20))}")
        time.sleep(self.random.random() * 0.3)
        self.tool("sysctl", "grace_ms=100")

    def queues(self):
        self.tool("sysctl", f"max_cqs={self.random.choice((1, 2, 8))}")

    def broker_killed(self):
        self.broker.restart()
