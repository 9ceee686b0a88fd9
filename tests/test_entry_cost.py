"""What the entry by system calls costs, and what Go programs gain by it: with and without, in turn."""

import os
import statistics
import subprocess
import sys
import time

import pytest

from harness import ROOT, Accel, compile_program
from packages import entry_library, go_program
from procs import PATIENCE
from test_go import line
from test_suites import ALL

pytestmark = [pytest.mark.programs, pytest.mark.cost]
SOURCES = ROOT / "tests" / "entry"
STARTS = 200 if ALL else 40


@pytest.fixture(autouse=True)
def by_number(world):
    world.env |= {"SHUNPIKE_ENTRY": str(entry_library())}


def under(accel, entry, argv):
    """The command that runs `argv` so; None: without Shunpike."""
    return [accel.world.binary, "run", f"--entry={entry}", "--", *argv] if entry else argv


def environment(accel):
    return accel.world.env | {"SHUNPIKE_SOCKET": str(accel.broker.socket)}


def ran(accel, argv):
    argv = [str(one) for one in argv]
    return subprocess.run(argv, env=environment(accel), capture_output=True, text=True, timeout=60 * PATIENCE, check=True).stdout


def test_an_entry_on_a_lane(world):
    """A look at a lane that finds nothing, in a static program and by libc's name in the same one: the quickest of some."""
    accel, programs = Accel(world, "both"), {"syscall": world.directory / "static", "libc": world.directory / "dynamic"}
    for entry, program in programs.items():
        compile_program(SOURCES / "asks.c", program, *(["-static"] if entry == "syscall" else []))
    took = {entry: [] for entry in programs}
    for _ in range(5):
        for entry, program in programs.items():
            before = accel.broker.stats().smc
            took[entry].append(float(ran(accel, under(accel, entry, [program, 20000]))))
            assert accel.broker.stats().smc == before + 2, "both ends were on a lane"
    best = {entry: min(figures) for entry, figures in took.items()}
    print(f"by libc's name {best['libc']:.1f} ns, by system call {best['syscall']:.1f} ns")
    # 15 ns is the aim.
    assert best["syscall"] - best["libc"] < 80


@pytest.fixture(scope="session")
def large(tmp_path_factory):
    """A Go program of tens of megabytes that ends at once."""
    env = os.environ | {"CGO_ENABLED": "0", "GO111MODULE": "off", "GOFLAGS": ""}
    program = tmp_path_factory.mktemp("large") / "compile"
    subprocess.run(["go", "build", "-o", program, "cmd/compile"], check=True, env=env)
    return program


CHILDREN = """
import subprocess, sys, time
took = []
for _ in range(int(sys.argv[1])):
    began = time.perf_counter()
    subprocess.run(sys.argv[2:], stdout=subprocess.DEVNULL, check=True)
    took.append(time.perf_counter() - began)
print(*took)
"""


def test_a_start(world, large):
    """Of `run`'s own command, and of a child of Python's: medians."""
    world.directory.joinpath(".cache").mkdir()
    accel, took = Accel(world, "both"), {}
    ways = {"without": None, "libc": "libc", "syscall": "syscall"}
    for _ in range(STARTS):
        for name, entry in ways.items():
            began = time.perf_counter()
            ran(accel, under(accel, entry, [large, "-V"]))
            took.setdefault(name, []).append(time.perf_counter() - began)
    for entry in ["libc", "syscall"] * 2:
        out = ran(accel, under(accel, entry, [sys.executable, "-c", CHILDREN, STARTS // 2, large, "-V"]))
        took.setdefault(f"child, {entry}", []).extend(map(float, out.split()))
    ms = {name: statistics.median(figures) * 1000 for name, figures in took.items()}
    print(f"{large.stat().st_size >> 20} MiB: " + ", ".join(f"{name} {median:.2f} ms" for name, median in ms.items()))
    # 1 ms is the aim.
    assert ms["syscall"] - ms["libc"] < 25 and ms["child, syscall"] - ms["child, libc"] < 25


class Rate:
    """Pairs of servers and clients in Go, and how many dialogues a second they have in all."""

    def __init__(self, accel, program, what, connections, pairs, seconds):
        self.accel, self.argv, self.pairs = accel, [program, what, connections, seconds], pairs

    def of(self, entry):
        program, what, connections, seconds = self.argv
        popen = lambda *argv: subprocess.Popen([str(one) for one in under(self.accel, entry, argv)], env=environment(self.accel),
                                               stdout=subprocess.PIPE, text=True)  # fmt: skip
        servers = [popen(program, "serve", what) for _ in range(self.pairs)]
        ports = [server.stdout.readline().strip() for server in servers]
        clients = [popen(program, "ask", what, port, connections, seconds) for port in ports]
        rates = [float(client.communicate(timeout=60 * PATIENCE)[0]) for client in clients]
        for server in servers:
            server.kill()
            server.communicate()
        return sum(rates)


# Connections of a pair, pairs, and what must be reached of TCP's rate on a busy machine. Where one end has to wake the other for each message, lanes win
# nothing yet (crates/entry/README.md).
RATES = {"echo, 1": ("echo", 1, 1, 0.3), "echo, 50": ("echo", 50, 1, 1), "http, 50": ("http", 50, 1, 1), "echo, 8 pairs": ("echo", 1, 8, 0.3)}


@pytest.mark.parametrize("name", RATES)
def test_go_rates(world, tmp_path_factory, name):
    """Beside TCP's, in turn: medians."""
    program = go_program(world.directory / "rate", SOURCES / "rate.go")
    accel, (what, connections, pairs, least) = Accel(world, "both"), RATES[name]
    rate, got = Rate(accel, program, what, connections, pairs, 2 if ALL else 1), {None: [], "syscall": []}
    for _ in range(5 if ALL else 1):
        for entry, rates in got.items():
            rates.append(rate.of(entry))
    assert accel.broker.stats().lanes >= pairs
    tcp, lanes = (statistics.median(rates) for rates in got.values())
    print(f"{name}: {tcp:.0f} a second on TCP, {lanes:.0f} on lanes: {lanes / tcp:.2f}")
    assert lanes / tcp > least
