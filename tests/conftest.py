"""Fixtures: a world for each test, the modes, and the compiled test-bed."""

import os
import shutil
import signal
import tempfile
from pathlib import Path

import pytest

import harness
import procs

# Seconds for a test with what it sets up: five times what the longest takes.
LIMIT = 600


def pytest_addoption(parser):
    parser.addoption("--tcp-only", action="store_true", help="run only what needs no Shunpike: the baseline of each test")


def pytest_configure(config):
    procs.adopt_orphans()
    # Ended from outside (a time limit): still end what runs.
    signal.signal(signal.SIGTERM, lambda *_: pytest.exit("terminated", returncode=3))
    missing = harness.missing_artefacts()
    if missing and not config.getoption("--tcp-only") and not config.getoption("--collect-only"):
        raise pytest.UsageError(f"not built: {', '.join(missing)}. Run `make`, or pass --tcp-only.")


def pytest_collection_modifyitems(config, items):
    """--tcp-only keeps the tests that say that they run on TCP; the others are shown as deselected, not as passed."""
    if config.getoption("--tcp-only"):
        is_tcp = lambda item: "tcp" in getattr(getattr(item, "callspec", None), "params", {}).values()
        config.hook.pytest_deselected(items=[item for item in items if not is_tcp(item)])
        items[:] = [item for item in items if is_tcp(item)]


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item):
    """A failed test shows what each of its programs wrote."""
    report = (yield).get_result()
    world = item.funcargs.get("world") if hasattr(item, "funcargs") else None
    if report.when == "call" and report.failed and world:
        for proc in world.procs:
            report.sections.append((proc.name, proc.describe()))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item):
    """A test that hangs fails, with the line where it hangs, and the others go on: a run without an end says nothing at all."""

    def out_of_time(*_):
        pytest.fail(f"no end within {limit} s")

    limit = int(LIMIT * procs.PATIENCE) if item.get_closest_marker("suites") is None else 0
    signal.signal(signal.SIGALRM, out_of_time)
    signal.setitimer(signal.ITIMER_REAL, limit, limit)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)


@pytest.fixture
def world():
    world = harness.World()
    yield world
    world.close()


@pytest.fixture(params=harness.MODES)
def accel(request, world):
    """The four modes in the library's default setting: connections earn their lanes."""
    return harness.Accel(world, request.param)


@pytest.fixture(scope="session")
def bed():
    """The directory of the compiled C programs. SHUNPIKE_BEDS: compiled already, in some other way (ci/sanitize)."""
    if beds := os.environ.get("SHUNPIKE_BEDS"):
        yield Path(beds)
        return
    target = Path(tempfile.mkdtemp(prefix=harness.SCRATCH))
    target.chmod(0o755)
    harness.compile_programs(target)
    yield target
    shutil.rmtree(target)
