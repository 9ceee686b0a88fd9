"""Other projects' own test suites, under Shunpike: exactly the tests that pass without it pass with it.

Each suite runs three times on the same machine: plain, in the default setting, and with --eager, so that even short
connections are on lanes (the broker's statistics say how many were). A test whose outcome differs is run again, by itself,
plain and under Shunpike: what differs then too is a failure, what does not depended on time.

`make suites` runs all of it (SHUNPIKE_SUITES=all); otherwise the modules that take seconds.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness import Accel, programs
from procs import until

pytestmark = pytest.mark.suites
ALL = os.environ.get("SHUNPIKE_SUITES") == "all"
LONGEST = 3600  # a run of one suite, seconds

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


class Suite:
    """Runs a module's tests, or some of them, and reads what came out."""

    def __init__(self, python, world, module):
        self.python, self.world, self.module = python, world, module

    def outcomes(self, how, tests=()):
        """{test: outcome}, and the broker's statistics; `how` is "plain", "default" or "eager"."""
        accel = Accel(self.world, "tcp") if how == "plain" else Accel(self.world, "both", ["--eager"] if how == "eager" else [])
        number = len(self.world.procs)
        out = self.world.directory / f"{how}-{number}.lines"
        resources = ["network"] if self.module == "test_socketserver" else []
        argv = [self.python, programs() / "unittest_lines.py", *(f"--exclude={name}" for name in EXCLUDED),
                *(f"--resource={name}" for name in resources), *(f"--only={name}" for name in tests), out, self.module]  # fmt: skip
        scratch = self.world.directory / f"scratch-{number}"
        scratch.mkdir()
        accel.client(how, argv, env={"TMPDIR": str(scratch)}).finish(LONGEST)
        lines = [line.split(" ", 1) for line in out.read_text().splitlines()]
        found = {name: outcome for outcome, name in lines if outcome != "began"}
        assert found or tests, f"{self.module} ran no tests: {lines}"
        if not accel.broker:
            return found, None
        stats = accel.broker.stats()
        until(accel.broker.holds_nothing, accel.broker.what_it_holds)
        accel.broker.proc.stop()  # the next run's has the same socket
        return found, stats


def differing(one, other):
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


@pytest.mark.parametrize("module", [module for module, (_, is_quick) in MODULES.items() if is_quick or ALL])
def test_cpython(world, python, module):
    suite = Suite(python, world, module)
    plain, _ = suite.outcomes("plain")
    assert "ok" in plain.values(), plain
    for how in ("default", "eager"):
        under, stats = suite.outcomes(how)
        doubtful = differing(plain, under)
        if doubtful:
            again, _ = suite.outcomes("plain", doubtful)
            under, _ = suite.outcomes(how, doubtful)
            left = {name: (again.get(name), under.get(name)) for name in differing(again, under)}
            assert not left, f"{module}, {how}: (plain, under Shunpike): {left}"
        if how == "eager":
            wanted = MODULES[module][0]
            assert stats.smc >= wanted, f"{module}: {wanted} ends on lanes wanted, have {stats}"
        print(f"{module}, {how}: {len(plain)} tests, {stats.smc} of {stats.handled} ends on lanes")
