"""Programs that no preload reaches, on lanes by `shunpike run --entry=syscall`: static C, by glibc and by musl, and Go."""

import json
import os
import select
import shutil
import subprocess

import pytest

import harness
from harness import ROOT, Accel, compile_program
from packages import entry_library
from procs import PATIENCE, finish_together, free_port, until
from test_parity import CASES, on_tcp, run_case

pytestmark = pytest.mark.programs
SOURCES = ROOT / "tests" / "entry"
MANNERS = ["read", "recv", "message", "vector", "poll", "select"]
KINDS = ["glibc", "musl", "dynamic"]
PAIRS = [(server, client) for server in KINDS for client in KINDS if (server, client) != ("dynamic", "dynamic")]


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """The echo programs, of each kind."""
    env = os.environ | {"CGO_ENABLED": "0", "GO111MODULE": "off", "GOFLAGS": ""}
    target = tmp_path_factory.mktemp("entry")
    compile_program(SOURCES / "echo.c", target / "glibc", "-static")
    compile_program(SOURCES / "echo.c", target / "musl", "-static", compiler="musl-gcc")
    compile_program(SOURCES / "echo.c", target / "dynamic")
    for name, options in {"go": [], "go-pie": ["-buildmode=pie"]}.items():
        subprocess.run(["go", "build", *options, "-o", target / name, SOURCES / "echo.go"], check=True, env=env)
    return target


@pytest.fixture(scope="session")
def static_bed(tmp_path_factory):
    """The C test-bed without a loader."""
    target = tmp_path_factory.mktemp("static")
    for name in CASES:
        compile_program(harness.programs() / f"{name}.c", target / name, "-static", "-Wno-error", "-w")
    return target


@pytest.fixture(autouse=True)
def by_number(world):
    world.env |= {"SHUNPIKE_ENTRY": str(entry_library())}
    world.run_options = ["--entry=syscall"]


def line(proc):
    """The next line of what it writes."""
    assert select.select([proc.stdout], [], [], 20 * PATIENCE)[0], "nothing is written"
    return proc.stdout.readline().strip()


class Dialogue:
    """A server and a client, which goes on until it is told to end."""

    def __init__(self, accel, server, client):
        self.accel, self.procs, self.over = accel, [], accel.world.directory / "over"
        self.server = self.start(accel.mode in ("server", "both"), server)
        self.port = line(self.server)
        kind, *rest = client
        self.client = self.start(accel.mode in ("client", "both"), [kind, "dial", self.port, *rest])

    def start(self, is_under, argv):
        world = self.accel.world
        env = world.env | {"HOLD": str(self.over)}
        if is_under:
            argv = [world.binary, "run", *world.run_options, "--", *argv]
            env["SHUNPIKE_SOCKET"] = str(self.accel.broker.socket)
        argv = [str(one) for one in argv]
        proc = subprocess.Popen(argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.procs.append(proc)
        return proc

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for proc in self.procs:
            proc.kill()
            proc.communicate()

    def on_lanes(self):
        """How many ends of its connections are."""
        ends = [end for end in self.accel.broker.connections() if self.port in f"{end}"]
        return sum("SMCD" in f"{end}" for end in ends)

    def gets_lanes(self, ends=2):
        until(lambda: self.on_lanes() >= ends, lambda: f"{ends} ends on lanes; have {self.accel.broker.connections()}")

    def end(self):
        self.over.touch()
        assert line(self.client) == "done"
        assert self.client.wait(10 * PATIENCE) == 0


@pytest.mark.parametrize("server,client", PAIRS)
@pytest.mark.parametrize("how,manner", [*((manner, manner) for manner in MANNERS), ("edges", "ticks"), ("threads", "ticks"), ("forks", "ticks")])
def test_c(world, made, server, client, how, manner):
    """The bytes are right, and both ends say that they are on a lane. `ticks`: a handler runs all the while."""
    accel = Accel(world, "both")
    with Dialogue(accel, [made / server, "serve", how], [made / client, manner, 2000]) as dialogue:
        dialogue.gets_lanes()
        dialogue.end()


@pytest.mark.parametrize("server,how,client", [("go", "read", "go"), ("go", "busy", "go-pie"), ("go-pie", "read", "go"), ("glibc", "edges", "go"),
                                               ("dynamic", "edges", "go"), ("dynamic", "threads", "go-pie")])  # fmt: skip
def test_go(world, made, server, how, client):
    """20 connections at once, deadlines, a goroutine that must be preempted, stacks that grow."""
    accel = Accel(world, "both")
    with Dialogue(accel, [made / server, "serve", how], [made / client, 20, 200]) as dialogue:
        dialogue.gets_lanes(30)
        dialogue.end()


@pytest.mark.parametrize("server", ["go", "go-pie"])
@pytest.mark.parametrize("client", KINDS)
def test_c_asks_go(world, made, server, client):
    accel = Accel(world, "both")
    with Dialogue(accel, [made / server, "serve", "busy"], [made / client, "poll", 2000]) as dialogue:
        dialogue.gets_lanes()
        dialogue.end()


def test_a_go_pie_under_the_preloaded_library(world, made):
    """A loader loads it, and no libc is there: it stays on TCP."""
    world.run_options = ["--entry=libc"]
    accel = Accel(world, "both")
    with Dialogue(accel, [made / "go-pie", "serve", "read"], [made / "go-pie", 5, 20]) as dialogue:
        dialogue.end()


def test_go_copies(world, made):
    """io.Copy between connections is splice(2), for which they go back to TCP: the bytes are right."""
    accel = Accel(world, "both")
    with Dialogue(accel, [made / "go", "serve", "copy"], [made / "go", 20, 200]) as dialogue:
        dialogue.end()


@pytest.mark.parametrize("mode", ["client", "server"])
@pytest.mark.parametrize("kind,how,client", [("glibc", "edges", ["ticks", 500]), ("musl", "threads", ["poll", 500]), ("go", "read", [10, 100])])
def test_one_end_alone(world, made, mode, kind, how, client):
    accel = Accel(world, mode)
    with Dialogue(accel, [made / kind, "serve", how], [made / kind, *client]) as dialogue:
        dialogue.end()
    accel.verify()


@pytest.mark.parametrize("mode", ["both", "earned"])
# What goes past a libc's hooks is a second libc's, which no static program has. A signal that came within our code ends the wait there, whatever
# the call's mask keeps back (COMPLIANCE.md).
@pytest.mark.parametrize("program,case", [(program, case) for program, cases in CASES.items() for case in cases
                                          if case not in ("unknown", "masked")])  # fmt: skip
def test_case(world, static_bed, mode, program, case):
    """The C test-bed prints the same on lanes as on TCP."""
    wanted = on_tcp(static_bed, program, case)
    for end, got, should in zip(("client", "server"), run_case(world, mode, static_bed, program, case), wanted, strict=True):
        assert got.splitlines() == should.splitlines(), f"the {end} sees something else than on TCP"


def test_what_cannot_be_patched_is_told(world, made):
    """And runs: nobody may trace it."""
    program = world.directory / "deny"
    compile_program(SOURCES / "deny.c", program)
    argv = [program, "ptrace", world.binary, "--socket", "/nonexistent/socket", "run", "--entry=syscall", made / "go"]
    told = subprocess.run(argv, env=world.env, capture_output=True, text=True, timeout=20 * PATIENCE)
    assert told.returncode == 2
    assert "stays on TCP: injector's reason 41" in told.stderr


@pytest.mark.parametrize("entry", ["libc", "syscall"])
def test_one_warning(world, made, entry):
    """Of a program that is static and cannot be patched: one line, and why. Of one that can, none."""
    made_of = lambda name: [world.binary, "--socket", "/nonexistent/socket", "run", f"--entry={entry}", made / name]
    told = subprocess.run(made_of("go"), env=world.env, capture_output=True, text=True, timeout=20 * PATIENCE).stderr.splitlines()
    warnings = [line for line in told if "stays on TCP" in line]
    assert len(warnings) == (entry == "libc") and all("is statically linked: " in line for line in warnings), told


def test_where_the_entry_library_is_looked_for(world, made):
    """Beside the command, and where `make install` puts it; else that is said, with where it was looked for."""
    binary, installed = world.directory / "bin" / "shunpike", world.directory / "lib" / "shunpike" / "libshunpike-entry.so"
    binary.parent.mkdir(), installed.parent.mkdir(parents=True)
    shutil.copy(world.binary, binary)
    env = {name: value for name, value in world.env.items() if name != "SHUNPIKE_ENTRY"}
    argv = [binary, "--socket", "/nonexistent/socket", "run", "--entry=syscall", made / "go"]
    run = lambda: subprocess.run(argv, env=env, capture_output=True, text=True, timeout=20 * PATIENCE)
    told = run()
    assert told.returncode == 125 and f"libshunpike-entry.so is not at {binary.parent}/" in told.stderr and str(installed) in told.stderr, told
    shutil.copy(world.env["SHUNPIKE_ENTRY"], installed)
    told = run()
    assert told.returncode == 2 and "injector" not in told.stderr and "static" not in told.stderr, "the program's own status, without arguments"


def test_none_is_nothing(world):
    """Also where neither library nor broker is, and against the list of `enable --all`."""
    env = world.env | {"SHUNPIKE_LIB": "/nonexistent/library", "XDG_RUNTIME_DIR": str(world.runtime)}
    argv = [world.binary, "run", "--entry=none", "sh", "-c", 'echo "${SHUNPIKE_SOCKET-unset}"']
    told = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=20 * PATIENCE)
    assert (told.returncode, told.stdout, told.stderr) == (0, "\n", "")
    assert not list(world.runtime.iterdir()), "no broker"


@pytest.mark.parametrize("entry,is_preloaded", [("auto", True), ("libc", True), ("syscall", True), ("none", False)])
def test_what_is_preloaded(world, entry, is_preloaded):
    argv = [world.binary, "--socket", "/nonexistent/socket", "run", f"--entry={entry}", "sh", "-c", "echo $LD_PRELOAD"]
    out = subprocess.run(argv, env=world.env, capture_output=True, text=True, timeout=20 * PATIENCE).stdout.strip()
    assert out == (world.env["SHUNPIKE_LIB"] if is_preloaded else "")


@pytest.mark.parametrize("mode", ["client", "both"])
def test_what_chk_says(world, made, mode):
    """Of a Go server without the entry, and of one with it: on a lane, and before that, when it is not to be seen."""
    accel = Accel(world, mode)

    def library(port):
        argv = [world.binary, "--socket", accel.broker.socket, "chk", "--json", f"127.0.0.1:{port}"]
        told = subprocess.run(argv, env=world.env, capture_output=True, text=True, timeout=20 * PATIENCE).stdout
        return next(finding for finding in json.loads(told)["findings"] if finding["name"] == "library")

    with Dialogue(accel, [made / "go", "serve", "read"], [made / "go", 2, 2000]) as dialogue:
        if mode == "both":
            dialogue.gets_lanes()
            found = library(dialogue.port)
            assert found["is_so"] and "patched" in found["text"], found
            found = library(line(dialogue.start(True, [made / "go", "serve", "read"])))
            assert found["is_so"] is None and "first busy connection" in found["text"], found
        else:
            found = library(dialogue.port)
            assert found["is_so"] is False and "--entry=syscall" in found["advice"], found
        dialogue.end()


def test_what_ss_and_explain_say(world, made):
    """Of a Go server that is patched, and of a client that has the library."""
    accel = Accel(world, "both")
    with Dialogue(accel, [made / "go", "serve", "busy"], [made / "dynamic", "poll", 2000]) as dialogue:
        dialogue.gets_lanes()
        assert {end["role"]: end["entry"] for end in accel.broker.connections()} == {"server": "syscall", "client": "libc"}
        heading, *rows = [row.split() for row in accel.broker.tool("ss", "-d").splitlines()]
        assert {row[heading.index("Entry")] for row in rows} == {"syscall", "libc"}
        assert "entry syscall" in accel.broker.tool("explain", str(dialogue.server.pid))
        assert "entry libc" in accel.broker.tool("explain", str(dialogue.client.pid))
        dialogue.end()


@pytest.mark.parametrize("how", ["sets", "files", "lane", "indexed"])
def test_io_uring(world, bed, how):
    """A ring of a static program: a lane stays where it names no connection."""
    compile_program(harness.programs() / "ringed.c", world.directory / "ringed", "-static")
    accel, port = Accel.eager(world, "earned", warms=True), free_port()
    server = accel.server("server", [world.directory / "ringed", "server", port, how]).wait_listening(port)
    client = accel.client("client", [bed / "rings", "client", port])
    accel.warmed()
    assert finish_together(client, server) == ["all came back\n", "read 657163 bytes, hash 102dbc2e3797af1d\n"]
    accel.verify(lane_bytes=657163 if how in ("sets", "files") else 1)


SMALL = {"ends": "all handled\n", "selects": "read only: 1\nbad: -1, Bad address\n", "surplus": "none, then one: 1\n"}


@pytest.mark.parametrize("under", [False, True], ids=["tcp", "syscall"])
@pytest.mark.parametrize("program,says", SMALL.items(), ids=SMALL)
def test_small_programs(world, tmp_path, program, says, under):
    """Signals of the process that come as a thread ends by exit(2) are another thread's; select by its number minds no address; threads that
    could not be made leave room for others."""
    if program == "surplus" and os.getuid() != 0:
        pytest.skip("root has to change its user")
    compile_program(SOURCES / f"{program}.c", tmp_path / program, "-static")
    accel = Accel(world, "both" if under else "tcp", ["--eager"] if under else [])
    for _ in range(4 if program == "ends" else 1):
        assert accel.client("client", [tmp_path / program]).finish(60) == says
