"""Other projects' own test suites, under Shunpike: exactly the tests that pass without it pass with it.

Go's are of programs without a libc, by `run --entry=syscall`.

Each suite runs three times on the same machine: plain, in the default setting, and with --eager, so that even short
connections are on lanes (the broker's statistics say how many were). A test whose outcome differs is run again, plain and
under Shunpike, up to three times: a test that never has the same outcome in both is a failure; one that has depends on time, and
is named.

`make suites` runs all of it (SHUNPIKE_SUITES=all); otherwise the modules that take seconds.
"""

import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

import pytest

from harness import ROOT, TARGET, Accel, programs
from packages import entry_library
from procs import until

pytestmark = pytest.mark.suites
ALL = os.environ.get("SHUNPIKE_SUITES") == "all"
LONGEST = 3600  # a run of one suite, seconds
AGAIN = 3  # times that a test is run again whose outcome differs
# Where COMPLIANCE.md says that we differ: an edge that was reported may be reported anew when the lane opens after it.
ON_PURPOSE = {"test.test_epoll.TestEPoll.test_control_and_wait"}

# CPython's modules: the connection ends on lanes that --eager must bring about (most have both ends in one process), and
# whether it is quick enough for each run of the tests.
MODULES = {
    "test_socket": (100, True),
    "test_selectors": (0, False),
    "test_select": (0, True),
    "test_poll": (0, False),
    "test_epoll": (0, True),
    "test_socketserver": (4, True),
    "test_asyncio.test_sendfile": (50, True),
    "test_asyncio.test_streams": (0, True),
    "test_asyncio": (200, False),
    "test_asyncore": (10, True),
    "test_ftplib": (50, False),
    "test_httplib": (4, True),
    "test_httpservers": (50, True),
    "test_imaplib": (50, False),
    "test_poplib": (50, False),
    "test_smtplib": (50, True),
    "test_ssl": (100, False),
    "test_urllib2_localnet": (20, True),
    "test_xmlrpc": (30, False),
    "test_logging": (4, False),
    "test_subprocess": (0, False),
    "test_multiprocessing_spawn": (50, False),
    "test_multiprocessing_fork": (50, False),
}
# Needs modules built beside the server; random dumps that are never the same twice.
REDIS_WITHOUT = ("unit/moduleapi", "integration/corrupt-dump-fuzzer", "unit/violations", "unit/tls")
# VSOCK between a machine and itself hangs where there is no device for it; the other uses no sockets and takes minutes.
EXCLUDED = ["ThreadedVSOCKSocketStreamTest", "test_task_del_collect"]


def has_tests(python):
    """Whether `python` brings the tests of all modules: Debian has them in a package of their own, others leave some out."""
    found = "import importlib.util as u, sys; sys.exit(not all(u.find_spec(f'test.{m}') for m in sys.argv[1:]))"
    return subprocess.run([python, "-c", found, *MODULES], capture_output=True).returncode == 0


@pytest.fixture(scope="session")
def python():
    for candidate in ("/usr/bin/python3", sys.executable):
        if Path(candidate).exists() and has_tests(candidate):
            return candidate
    raise AssertionError("no Python with its own test suite: run ci/deps")


def differing(one, other):
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


def compare(world, run, wanted=0):
    """Runs a suite plain, in the default setting and with --eager, where `wanted` connection ends must have been on lanes.

    `run(accel, label, tests)` runs these tests, or all, and gives {test: outcome}.
    """
    runs = 0

    def outcomes(how, tests=()):
        nonlocal runs
        runs += 1
        accel = Accel(world, "tcp") if how == "plain" else Accel(world, "both", ["--eager"] if how == "eager" else [])
        found = run(accel, f"{how}-{runs}", tests)
        if not accel.broker:
            return found, None
        stats = accel.broker.stats()
        until(accel.broker.holds_nothing, accel.broker.what_it_holds)
        accel.broker.proc.stop()  # the next run's has the same socket
        return found, stats

    plain, _ = outcomes("plain")
    assert "ok" in plain.values(), plain
    for how in ("default", "eager"):
        under, stats = outcomes(how)
        seen = {name: ({plain.get(name)}, {under.get(name)}) for name in differing(plain, under)}
        timed = list(seen)
        for _ in range(AGAIN):
            left = [name for name, (one, other) in seen.items() if not one & other]
            if not left:
                break
            for side, which in enumerate(("plain", how)):
                results, _ = outcomes(which, left)
                for name in left:
                    seen[name][side].add(results.get(name))
        left = {name: sides for name, sides in seen.items() if not sides[0] & sides[1] and name not in ON_PURPOSE}
        assert not left, f"{how}: (plain, under Shunpike): {left}"
        print(f"{how}: {len(plain)} tests, {stats.smc} of {stats.handled} ends on lanes; run again: {timed}")
        if how == "eager":
            assert stats.smc >= wanted, f"{wanted} ends on lanes wanted, have {stats}"


# CPython


@pytest.mark.parametrize("module", [module for module, (_, is_quick) in MODULES.items() if is_quick or ALL])
def test_cpython(world, python, module):
    def run(accel, label, tests):
        out, scratch = world.directory / f"{label}.lines", world.directory / label
        scratch.mkdir()
        resources = ["network"] if module == "test_socketserver" else []
        argv = [python, programs() / "unittest_lines.py", *(f"--exclude={name}" for name in EXCLUDED),
                *(f"--resource={name}" for name in resources), *(f"--only={name}" for name in tests), out, module]  # fmt: skip
        accel.client(label, argv, env={"TMPDIR": str(scratch)}).finish(LONGEST)
        lines = [line.split(" ", 1) for line in out.read_text().splitlines()]
        return {name: outcome for outcome, name in lines if outcome != "began"}

    compare(world, run, MODULES[module][0])


# libevent and redis, from their Debian source packages


@pytest.fixture(scope="session")
def sources():
    directory = TARGET.parent / "suites"
    subprocess.run([ROOT / "ci" / "sources", directory], check=True, stdout=subprocess.DEVNULL)
    return directory


BACK_ENDS = ("EPOLL", "POLL", "SELECT")


@pytest.mark.skipif(not ALL, reason="builds libevent: make suites")
@pytest.mark.parametrize("back_end", BACK_ENDS)
def test_libevent(world, sources, back_end):
    """regress, each test in a process of its own, as it forks for each by itself."""
    regress = sources / "libevent" / "build" / "bin" / "regress"
    listed = subprocess.run([regress, "--list-tests"], capture_output=True, text=True).stdout.splitlines()
    every = [line.strip() for line in listed if line.startswith("    ") and "/" in line]
    assert len(every) > 200, listed
    env = {f"EVENT_NO{other}": "1" for other in BACK_ENDS if other != back_end}

    def run(accel, label, tests):
        found = {}
        # Most of the time is waiting: some at a time.
        with ThreadPoolExecutor(4 if not tests else 1) as pool:
            jobs = {name: pool.submit(run_one, accel, label, name) for name in tests or every}
            found = {name: job.result() for name, job in jobs.items()}
        return found

    def run_one(accel, label, name):
        proc = accel.client(f"{label}-{name.replace('/', '.')}", [regress, name], env=env)
        try:
            status = proc.popen.wait(120)
        except subprocess.TimeoutExpired:
            proc.kill()
            return "still running"
        return "skipped" if "SKIPPED" in proc.out else "ok" if status == 0 else f"status {status}"

    compare(world, run, wanted=80)


REDIS_LINE = re.compile(r"\[(?:\x1b\[[0-9;]*m)*(ok|err|skip|ignore|exception)(?:\x1b\[[0-9;]*m)*\]: (.*?)(?: \(\d+ ms\)| in tests/\S+\.tcl)?$")


@pytest.mark.skipif(not ALL, reason="takes half an hour: make suites")
def test_redis(world, sources):
    """Test units, each by itself. Some have a test as often as there is time for: its outcome is all that it came to."""
    source = sources / "redis"
    helper = subprocess.run(["tclsh", "tests/test_helper.tcl", "--list-tests"], cwd=source, capture_output=True, text=True)
    every = [unit for unit in helper.stdout.split() if unit not in REDIS_WITHOUT]
    assert len(every) > 50, helper

    bases = SimpleQueue()  # where each of those that run side by side has its ports, and 10,000 above them
    for base in (11000, 13500, 16000):
        bases.put(base)

    def run(accel, label, tests):
        units = dict.fromkeys(name.split(": ")[0] for name in tests) or every
        found = {}
        with ThreadPoolExecutor(bases.qsize() if not tests else 1) as pool:
            for outcomes in pool.map(lambda unit: run_one(accel, label, unit), units):
                found |= outcomes
        return found

    def run_one(accel, label, unit):
        found, base = {}, bases.get()
        place = world.directory / f"{label}-{every.index(unit)}"  # short: servers have their UNIX sockets below it
        shutil.copytree(source / "tests", place / "tests")  # it writes there
        for part in ("src", "redis.conf", "sentinel.conf"):
            (place / part).symlink_to(source / part)
        argv = ["tclsh", "tests/test_helper.tcl", "--single", unit, "--clients", 1, "--baseport", base, "--portcount", 2000]
        proc = accel.client(place.name, argv, cwd=place)
        try:
            proc.popen.wait(LONGEST / 6)
        except subprocess.TimeoutExpired:
            proc.kill()
        for line in proc.out.splitlines():
            if match := REDIS_LINE.match(line):
                found.setdefault(f"{unit}: {match[2]}", set()).add(match[1])
        shutil.rmtree(place)
        bases.put(base)
        return {name: "+".join(sorted(outcomes)) for name, outcomes in found.items()}

    compare(world, run, wanted=500)


# Go: its own packages' tests, built without cgo, so that the entry by system calls is theirs

# The ends on lanes that --eager must bring about, and whether it is quick enough for each run of the tests.
GO_PACKAGES = {"net": (40, False), "net/http": (200, False), "net/rpc": (10, True), "net/smtp": (4, True), "net/http/httputil": (10, False),
               "crypto/tls": (50, False), "os": (0, False), "os/exec": (0, False), "os/signal": (0, False), "syscall": (0, False)}  # fmt: skip
GO_LINE = re.compile(r"^\s*--- (PASS|FAIL|SKIP): (\S+)", re.MULTILINE)


@pytest.mark.parametrize("package", [package for package, (_, is_quick) in GO_PACKAGES.items() if is_quick or ALL])
def test_go(world, package):
    program = world.directory / "tests"
    env = os.environ | {"CGO_ENABLED": "0", "GOFLAGS": ""}
    subprocess.run(["go", "test", "-c", "-o", program, package], check=True, env=env)
    root = subprocess.run(["go", "env", "GOROOT"], capture_output=True, text=True, check=True).stdout.strip()
    world.env |= {"SHUNPIKE_ENTRY": str(entry_library()), "GOROOT": root, "CGO_ENABLED": "0"}
    world.run_options = ["--entry=syscall"]

    def run(accel, label, tests):
        names = sorted({name.split("/")[0] for name in tests})
        argv = [program, "-test.v", "-test.short", "-test.timeout=900s", *([f"-test.run=^({'|'.join(names)})$"] if names else [])]
        proc = accel.client(label, argv, cwd=Path(root) / "src" / package)
        proc.popen.wait(LONGEST)
        outcomes = {"PASS": "ok", "FAIL": "failed", "SKIP": "skipped"}
        return {name: outcomes[outcome] for outcome, name in GO_LINE.findall(proc.out)} | {"its status": f"{proc.popen.returncode}"}

    compare(world, run, GO_PACKAGES[package][0])
