"""What Go programs may do with connections, under `shunpike run --entry=syscall`: by each release of Go, and built in each way. They print the
same as on TCP."""

import functools

import pytest

from harness import ROOT, Accel, World
from packages import debian, entry_library, go_program, modules_by_go
from procs import PATIENCE, until
from test_programs_hard import HARD_MODES, start
from test_suites import ALL

pytestmark = pytest.mark.programs
SOURCES = ROOT / "tests" / "entry"
STATIC = ["-ldflags=-linkmode=external -extldflags=-static", "-tags=netgo,osusergo"]
# How it is built; whether it has no libc that is loaded, and so is patched.
KINDS = {
    "static": ({}, [], True),
    "stripped": ({}, ["-ldflags=-s -w"], True),
    "pie": ({}, ["-buildmode=pie"], True),
    "cgo": ({"cgo": True}, ["-tags=netcgo"], False),
    "cgo-static": ({"cgo": True}, STATIC, True),
    "race": ({"cgo": True}, ["-race"], False),
    "race-static": ({"cgo": True}, ["-race", *STATIC], True),
}
BUILT_IN_SECONDS = ["static"]
# Debian 12's own, and what Go's client fetches.
RELEASES = ["1.19", "1.21.13", "1.22.12", "1.23.12", "1.24.13", "1.25.7"]


@functools.cache
def program_of(directory, name, kind="static", release=""):
    """The path of a program, built once."""
    how, options, _ = KINDS[kind]
    more = {}
    if release == "1.19":
        go = debian("usr/lib/go-1.19/bin/go", "golang-1.19-go", "golang-1.19-src")
        more = {"go": go, "goroot": go.parent.parent}
    elif release:
        more = {"toolchain": release}
    source = SOURCES / name if (SOURCES / name).is_dir() else SOURCES / f"{name}.go"
    return go_program(directory / f"{name}-{kind}-{release}", source, *options, **how, **more)


@pytest.fixture(scope="session")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("golang")


@pytest.fixture(autouse=True)
def by_number(world):
    under(world)


def under(world):
    world.env |= {"SHUNPIKE_ENTRY": str(entry_library())}
    world.run_options = ["--entry=syscall"]


def line(proc):
    """The first line that a program writes, which is its port."""
    until(lambda: "\n" in proc.out or proc.popen.poll() is not None, proc.describe)
    return proc.out.split("\n")[0]


def dialogue(accel, server, client, *parts):
    """What a client prints of all that it does with connections."""
    env = {"WARM": "100"} if accel.mode == "both" and not accel.options else {}
    port = line(accel.server("server", [server, "serve"]))
    return accel.client("client", [client, "dial", port, *parts], env=env).finish(60)


@functools.cache
def on_tcp(server, client):
    world = World()
    try:
        return dialogue(Accel(world, "tcp"), server, client)
    finally:
        world.close()


def compare(world, mode, server, client, lanes):
    wanted = on_tcp(server, client)
    assert len(wanted.splitlines()) > 20, wanted
    accel = start(world, mode)
    assert dialogue(accel, server, client) == wanted
    if mode in ("both", "eager"):
        assert accel.broker.stats().lanes >= lanes, accel.broker.stats()


@pytest.mark.parametrize("mode", HARD_MODES)
@pytest.mark.parametrize("kind", [pytest.param(kind, marks=[] if kind in BUILT_IN_SECONDS else pytest.mark.suites) for kind in KINDS])
def test_connections(world, directory, mode, kind):
    """Deadlines, files of connections, sendfile, splice, raw calls, exec, SCM_RIGHTS, MPTCP, HTTP, TLS, RPC; and how each connection ends."""
    needs_time(kind not in BUILT_IN_SECONDS)
    program = program_of(directory, "conns", kind)
    compare(world, mode, program, program, 20 if KINDS[kind][2] else 0)


@pytest.mark.suites
@pytest.mark.parametrize("mode", HARD_MODES)
@pytest.mark.parametrize("release", RELEASES)
def test_releases(world, directory, mode, release):
    """Of Go, with one another: the server is the older one's, then the client."""
    needs_time(True)
    old, new = program_of(directory, "conns", release=release), program_of(directory, "conns")
    compare(world, mode, old, new, 20)


def needs_time(is_needed):
    if is_needed and not ALL:
        pytest.skip("builds Go's own packages anew: make suites")


@pytest.mark.suites
@pytest.mark.parametrize("mode", HARD_MODES)
def test_plugins(world, directory, mode):
    """A program that loads one has a libc: it is on TCP, and its peer knows no better."""
    needs_time(True)
    host, loaded = directory / "plugged", directory / "plug.so"
    go_program(host, SOURCES / "plugged", cgo=True)
    go_program(loaded, SOURCES / "plug", "-buildmode=plugin", cgo=True)
    accel = start(world, mode)
    port = line(accel.server("server", [program_of(directory, "echo"), "serve", "read"]))
    assert accel.client("client", [host, loaded, port]).finish() == "1000\n"


@pytest.mark.suites
@pytest.mark.parametrize("kind", ["static", "pie"])
def test_delve(world, directory, kind):
    """Attached to a server that is on a lane, which it stops in its own code: it knows the program's lines. Then the dialogue goes on."""
    needs_time(True)
    dlv = modules_by_go("delve", ["github.com/go-delve/delve@v1.27.2"], "github.com/go-delve/delve/cmd/dlv") / "dlv"
    program, accel = program_of(directory, "rate", kind), Accel(world, "both")
    server = accel.server("server", [program, "serve", "echo"])
    client = accel.client("client", [program, "ask", "echo", line(server), 2, 12])
    until(lambda: accel.broker.stats().lanes >= 2, lambda: f"lanes; have {accel.broker.stats()}")
    script = world.directory / "script"
    script.write_text("break rate.go:53\ncontinue\nstack\nclear 1\ngoroutines\nexit\n")
    argv = [dlv, "attach", server.pid, "--allow-non-terminal-interactive=true", "--init", script]
    told = world.start("dlv", argv, env={"HOME": str(world.directory)})
    told.popen.wait(60 * PATIENCE)
    assert "main.serve.func" in told.out and "rate.go:" in told.out, told.describe()
    assert float(client.finish(60)) > 0
