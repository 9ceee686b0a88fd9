"""Where the tests meet Shunpike: its files, its command line, its figures. When these change, change this file only."""

import json
import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
import uuid
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from procs import PATIENCE, Proc, reap, survivors, until

ROOT = Path(__file__).resolve().parent.parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release"
BINARY = Path(os.environ.get("SHUNPIKE_BIN", TARGET / "shunpike"))
LIBRARY = Path(os.environ.get("SHUNPIKE_LIB", TARGET / "libshunpike.so"))
HOSTILE = BINARY.with_name("hostile-peer")
LOAD = BINARY.with_name("shunpike-load")

MODES = ("tcp", "client", "server", "both")
# With --eager, so that also short dialogues are on lanes; `earned` is both sides in the default setting.
EAGER_MODES = (*MODES, "earned")
SCRATCH = "shunpike-test-"


def missing_artefacts():
    return [str(path) for path in (BINARY, LIBRARY, HOSTILE, LOAD) if not path.exists()]


@dataclass(frozen=True)
class Stats:
    """`shunpike stats --json`, as far as the tests ask. It counts connection ends: two for a connection between two
    programs under Shunpike."""

    handled: int  # ends that the library watched
    smc: int  # ends that have been on a lane
    lanes: int  # connections of which both ends have been
    fallback: int  # ends that were on TCP for a reason
    reasons: dict  # reason key -> ends
    tx_bytes: int  # bytes over lanes
    rx_bytes: int

    @classmethod
    def parse(cls, text):
        raw = json.loads(text)
        ends = raw["connections"]
        reasons = {entry["key"]: entry["client"] + entry["server"] for entry in ends["reasons"]}
        return cls(ends["handled"], ends["smc"], min(ends["client"]["smc"], ends["server"]["smc"]), ends["fallback"],
                   reasons, raw["tx"]["bytes"], raw["rx"]["bytes"])  # fmt: skip


class Broker:
    """One `shunpike broker` with a socket of its own."""

    def __init__(self, world, name="broker", options=(), netns=None, prefix=()):
        self.world, self.name, self.options, self.netns, self.prefix = world, name, options, netns, prefix
        self.socket = world.directory / f"{name}.sock"
        self.start()

    def start(self):
        argv = [*self.prefix, self.world.binary, "broker", "--socket", self.socket, *self.options]
        self.proc = self.world.start(self.name, argv, netns=self.netns)
        until(self.answers, lambda: f"{self.name} answers on {self.socket}: {self.proc.describe()}", pause=0.005)
        # Alone with its listening socket: the probe above has gone from its books too.
        listening = 1 + Path(f"{self.socket}.operator").exists() + any(str(option).startswith("unix:") for option in self.options)
        until(lambda: self.unix_sockets() == listening, lambda: f"{self.name} closes the probe's socket: {self.holdings()}")
        self.at_first = self.holdings()

    def restart(self):
        """Another one at the same socket, while programs are there that come back to it."""
        self.kill()
        self.succeed()

    def succeed(self):
        """Another one at the socket of one that is killed, whether or not that has ended."""
        self.proc = self.world.start(self.name, self.proc.argv, netns=self.netns)
        until(self.answers, lambda: f"{self.name} answers on {self.socket}: {self.proc.describe()}", pause=0.005)

    def answers(self):
        assert self.proc.popen.poll() is None, f"the broker ended: {self.proc.describe()}"
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
            return probe.connect_ex(str(self.socket)) == 0

    def kill(self):
        """Takes the broker away as a crash does; its socket file stays behind, as after a crash."""
        self.proc.kill()

    def holdings(self):
        """What programs give to a broker: sockets, memory, doorbells; open, and mapped."""
        links = [self.link(path) for path in Path(f"/proc/{self.proc.pid}/fd").iterdir()]
        mapped = Path(f"/proc/{self.proc.pid}/maps").read_text().count("/memfd:")
        return [mapped, *sorted(link.split(":")[0] for link in links if re.match(r"/memfd:|socket:|anon_inode:\[eventfd", link))]

    def unix_sockets(self):
        """Its listening socket and its sessions; not what it asks the kernel by, or serves metrics at by TCP."""
        lines = Path(f"/proc/{self.proc.pid}/net/unix").read_text().splitlines()[1:]
        inodes = {f"socket:[{line.split()[6]}]" for line in lines}
        links = Path(f"/proc/{self.proc.pid}/fd").iterdir()
        return sum(self.link(link) in inodes for link in links)

    @staticmethod
    def link(path):
        try:
            return os.readlink(path)
        except FileNotFoundError:
            return ""  # closed meanwhile

    def what_it_holds(self):
        return f"{self.name} lets go of ended programs: {self.at_first} at first, now {self.holdings()}"

    def stats(self):
        return Stats.parse(self.tool("stats", "--json"))

    def connections(self, *options):
        """`shunpike ss --json`: one dictionary for each connection end that is open now."""
        return json.loads(self.tool("ss", "--json", *options))["connections"]

    def tool(self, *arguments):
        """Runs one of the tools against this broker; its standard output."""
        result = subprocess.run([str(BINARY), *arguments], env=self.world.env | {"SHUNPIKE_SOCKET": str(self.socket)},
                                capture_output=True, text=True, timeout=60 * PATIENCE)  # fmt: skip
        assert result.returncode == 0, f"shunpike {' '.join(arguments)}: {result.stdout}{result.stderr}"
        return result.stdout

    def holds_nothing(self):
        """Whether the broker has no more than before its first session: no socket, no memory of a program kept. It may have
        had our probe's still, which it had yet to accept."""
        (mapped, *now), (mapped_at_first, *at_first) = self.holdings(), self.at_first
        return mapped <= mapped_at_first and Counter(now) <= Counter(at_first)


class World:
    """What one test starts and makes. Closing it asserts that nothing of it is left anywhere."""

    def __init__(self):
        self.directory = Path(tempfile.mkdtemp(prefix=SCRATCH))
        self.tmp, self.runtime = self.directory / "tmp", self.directory / "run"
        self.directory.chmod(0o755)  # others may read, but a broker's socket needs a directory that is its owner's alone
        for path in (self.tmp, self.runtime):
            path.mkdir(mode=0o700)
        self.env = {
            "PATH": os.environ["PATH"] + ":/usr/sbin:/sbin", "HOME": str(self.directory), "LC_ALL": "C.UTF-8",
            "TMPDIR": str(self.tmp), "XDG_RUNTIME_DIR": str(self.runtime), "SHUNPIKE_LIB": str(LIBRARY),
            **{name: os.environ[name] for name in ("TSAN_OPTIONS", "ASAN_OPTIONS") if name in os.environ},
        }  # fmt: skip
        self.binary, self.user = BINARY, None
        self.run_options = []  # of each `shunpike run`
        self.procs, self.brokers, self.cleanups = [], [], []
        self.before = self.foreign_files()

    @staticmethod
    def foreign_files():
        """What Shunpike could leave outside of the test's own directory. Other tests and benchmarks may run meanwhile."""
        others = (SCRATCH, "shunpike-bench-", "shunpike-differential-", "PostgreSQL.", "psm_", "sem.")
        places = [("/dev/shm", "*"), ("/tmp", "*shunpike*"), ("/run", "*shunpike*"), (f"/run/user/{os.getuid()}", "*shunpike*")]
        found = (path for place, pattern in places for path in Path(place).glob(pattern))
        return {str(path) for path in found if not path.name.startswith(others)}

    def become(self, user):
        """Runs everything from now on as `user`, from copies of the artefacts that any user may read."""
        self.user = user
        for path in (self.directory, self.tmp, self.runtime):
            shutil.chown(path, user)
        if not missing_artefacts():
            self.binary = Path(shutil.copy(BINARY, self.directory))
            self.env["SHUNPIKE_LIB"] = shutil.copy(LIBRARY, self.directory)

    def broker(self, *options, name="broker", netns=None, prefix=()):
        """A broker with these options, in a network namespace, started by a command (as setpriv) that becomes it."""
        broker = Broker(self, name, options, netns, prefix)
        self.brokers.append(broker)
        return broker

    def start(self, name, argv, netns=None, env=None, **options):
        taken = sum(proc.name.split(".")[0] == name for proc in self.procs)
        if netns:
            argv = ["ip", "netns", "exec", netns, *argv]
        label = f"{name}.{taken}" if taken else name
        proc = Proc(label, argv, self.directory, self.env | (env or {}), user=self.user, **options)
        self.procs.append(proc)
        return proc

    def close(self):
        problems = []

        def attempt(action, *arguments):
            try:
                action(*arguments)
            except (AssertionError, OSError) as problem:
                problems.append(str(problem))

        brokers = [broker.proc for broker in self.brokers]
        for proc in reversed([proc for proc in self.procs if proc not in brokers]):
            attempt(proc.stop)
        for broker in self.brokers:
            if broker.proc.popen.poll() is None:
                attempt(until, broker.holds_nothing, broker.what_it_holds)
            attempt(broker.proc.stop)
            if not broker.proc.was_killed and broker.socket.exists():
                problems.append(f"{broker.name} left its socket file")
        for cleanup in reversed(self.cleanups):
            attempt(cleanup)
        try:
            until(lambda: not survivors(), "", seconds=3)
        except AssertionError:
            left = survivors()
            problems.append(f"processes left: {left}")
            reap(left)
        # Tests that run beside this one make some, too, and remove them.
        foreign = lambda: sorted(self.foreign_files() - self.before)
        attempt(until, lambda: not foreign(), lambda: f"files left: {foreign()}", 30)
        left = [str(path) for path in (*self.tmp.iterdir(), *self.runtime.iterdir())]
        if left:
            problems.append(f"files left: {left}")
        shutil.rmtree(self.directory, ignore_errors=True)
        assert not problems, "\n".join(problems)


class Accel:
    """Which sides of a test run under Shunpike: neither, the client, the server, or both, against one broker."""

    def __init__(self, world, mode, options=(), broker_options=()):
        assert mode in MODES
        self.world, self.mode, self.options = world, mode, list(options)
        self.broker = world.broker(*broker_options) if mode != "tcp" else None
        self.past = 0

    @classmethod
    def eager(cls, world, mode, warms=False, broker_options=()):
        """For one of EAGER_MODES. A program of the test-bed that has to earn its lane warms up for longer; `warms`: until
        the test calls `warmed`."""
        if mode == "earned":
            world.env |= {"BED_WARM_UNTIL": str(world.directory / "warm")} if warms else {"BED_WARM_MS": "300"}
        options = [] if mode in ("tcp", "earned") else ["--eager"]
        return cls(world, "both" if mode == "earned" else mode, options, broker_options)

    def server(self, name, argv, **options):
        return self.start(name, argv, self.mode in ("server", "both"), **options)

    def client(self, name, argv, **options):
        return self.start(name, argv, self.mode in ("client", "both"), **options)

    def start(self, name, argv, is_under, env=None, broker=None, **options):
        if is_under:
            argv = [self.world.binary, "run", *self.world.run_options, *self.options, "--", *argv]
            broker = broker or self.broker
            env = ({"SHUNPIKE_SOCKET": str(broker.socket)} if broker else {}) | (env or {})
        return self.world.start(name, argv, env=env, **options)

    def warmed(self, lanes=1, lane_bytes=0):
        """Ends a warm-up for lanes that are earned, once `lanes` connections have them and `lane_bytes` bytes went by them (or a
        program has ended)."""
        if not (file := self.world.env.get("BED_WARM_UNTIL")):
            return
        ended = lambda: any(proc.popen.poll() is not None for proc in self.world.procs[self.past :])
        have = lambda: f"{lanes} lanes and {lane_bytes} bytes on them; have {self.broker.stats()}"
        until(lambda: ended() or self.satisfied(lanes, lane_bytes), have, seconds=60)
        Path(file).touch()

    def begin_again(self):
        """Programs started from now on warm up as those before them did."""
        self.past = len(self.world.procs)
        if file := self.world.env.get("BED_WARM_UNTIL"):
            Path(file).unlink(missing_ok=True)

    def verify(self, lanes=1, lane_bytes=1, more=lambda: None):
        """Asserts that at least `lanes` connections and `lane_bytes` bytes went by lanes where both ends could, and
        none where only one could. `more`: has the dialogue once more. One that has to earn its lane may be over before, and the
        handshake of one under --eager can be declined: by a fork in its middle, or for want of CPU time."""
        if self.mode == "tcp":
            return None
        if self.mode == "both":
            have = lambda: f"{lanes} lanes and {lane_bytes} bytes on them; have {self.broker.stats()}"
            return until(lambda: self.within(1, lanes, lane_bytes) or more(), have, seconds=60)
        until(lambda: self.broker.stats().handled > 0, lambda: f"the library to watch; have {self.broker.stats()}")
        stats = self.broker.stats()
        assert stats.smc == 0 and stats.tx_bytes == 0, f"a lane to a peer that is not ours: {stats}"
        return stats

    def within(self, seconds, lanes, lane_bytes):
        """The same, false where that takes longer: programs that have ended are in the broker's sums a moment later."""
        end = time.monotonic() + seconds
        while not (stats := self.satisfied(lanes, lane_bytes)) and time.monotonic() < end:
            time.sleep(0.01)
        return stats

    def satisfied(self, lanes, lane_bytes):
        """The figures, if they are enough."""
        stats = self.broker.stats()
        enough = stats.lanes >= lanes and stats.tx_bytes >= lane_bytes and stats.rx_bytes >= lane_bytes
        return stats if enough else None


def programs():
    """The directory of the tests' own programs."""
    return ROOT / "tests" / "programs"


def compile_programs(target, pattern="*.c"):
    """Compiles the tests' own C programs into the directory `target`."""
    for source in programs().glob(pattern):
        compile_program(source, target / source.stem)


def compile_for_musl(target, names):
    """Some of them against musl: the kernel's headers are the machine's, behind musl's own."""
    headers = [f"-idirafter{path}" for path in ("/usr/include", "/usr/include/x86_64-linux-gnu")]
    for name in names:
        compile_program(programs() / f"{name}.c", target / name, *headers, "-include", str(programs() / "musl.h"), "-Wno-format", compiler="musl-gcc")


def compile_program(source, target, *flags, compiler=os.environ.get("CC", "cc")):
    """One of them; what it links with stands in its first comment."""
    command = [compiler, "-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", *flags]
    links = re.search(r"^ \* links: (.*) \*/$", source.read_text(), re.MULTILINE)
    subprocess.run([*command, "-o", str(target), str(source), *(links[1].split() if links else [])], check=True)


def fifos(world):
    """The environment for the out-of-band signals between two programs of the test-bed."""
    directory = world.directory / "sync"
    directory.mkdir()
    for name in ("to-server", "to-client"):
        os.mkfifo(directory / name)
    return {"BED_SYNC": str(directory)}


def unique(prefix):
    """A name for something of the whole machine (a network namespace, an interface: at most 15 bytes)."""
    return f"{prefix}{uuid.uuid4().hex[:8]}"

