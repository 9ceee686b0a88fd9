"""Programs that no preload reaches, as children: a hooked parent of any kind executes them, under `shunpike run --entry=syscall`. They are
on lanes, and all else is as without."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest

from harness import ROOT, Accel, compile_program
from packages import entry_library
from procs import PATIENCE
from test_entry_lanes import Dialogue, line, made  # noqa: F401 - a fixture

pytestmark = pytest.mark.programs
SOURCES = ROOT / "tests" / "entry"
# How tests/entry/starts.c makes a child and executes: fork or vfork, by each of libc's names and by the number.
HOWS = ["execve", "execv-only", "execl", "execlp", "execle", "execvp", "execvpe", "fexecve", "execveat", "execveat-empty", "execveat-empty-cloexec",
        "number", "vfork-execve", "vfork-execvp", "itself-execve", "posix_spawn", "posix_spawnp", "system"]  # fmt: skip
PYTHON = {
    "subprocess": "import subprocess, sys; sys.exit(subprocess.call(sys.argv[1:]))",
    "subprocess-forks": "import subprocess, sys; sys.exit(subprocess.call(sys.argv[1:], preexec_fn=int))",
    "os.posix_spawn": "import os, sys; p = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ); sys.exit(os.waitstatus_to_exitcode(os.waitpid(p, 0)[1]))",
    "os.fork": "import os, sys\nif (p := os.fork()) == 0: os.execv(sys.argv[1], sys.argv[1:])\nsys.exit(os.waitstatus_to_exitcode(os.waitpid(p, 0)[1]))",
    "thread": "import subprocess, sys, threading; t = threading.Thread(target=lambda: subprocess.call(sys.argv[1:])); t.start(); t.join()",
}
SHELLS = {
    "sh": ["sh", "-c", '"$@"; exit $?', "sh"],
    "sh-background": ["sh", "-c", '"$@" & wait $!; echo $? >&2', "sh"],
    "sh-exec": ["sh", "-c", 'exec "$@"', "sh"],
    # With `wait` alone bash tells of a child that was killed or does not, as it happens.
    "bash-background": ["bash", "-c", '"$@" & wait $!; echo $? >&2', "bash"],
    "bash-pipe": ["bash", "-c", '"$@" | cat; echo ${PIPESTATUS[@]} >&2', "bash"],
    "of-a-child": ["sh", "-c", "sh -c '\"$@\" & wait $!' sh \"$@\"; exit $?", "sh"],
    "env": ["env", "A=b"],
    "nohup": ["nohup"],
    "timeout": ["timeout", "60"],
}
PARENTS = [*SHELLS, *PYTHON, *HOWS]


def parent(made, name, argv):
    """The command that has `argv` as its child, or becomes it."""
    if name in HOWS:
        return [made / "starts", name, *argv]
    return [*(SHELLS.get(name) or [sys.executable, "-c", PYTHON[name]]), *argv]


@pytest.fixture(scope="session")
def children(made):  # noqa: F811
    for name, options in {"starts": [], "shown": ["-static"]}.items():
        compile_program(SOURCES / f"{name}.c", made / name, *options)
    compile_program(SOURCES / "starts.c", made / "starts-glibc", "-static")
    compile_program(SOURCES / "starts.c", made / "starts-musl", "-static", compiler="musl-gcc")
    env = os.environ | {"CGO_ENABLED": "0", "GO111MODULE": "off", "GOFLAGS": ""}
    subprocess.run(["go", "build", "-o", made / "go-starts", SOURCES / "starts.go"], check=True, env=env)
    return made


@pytest.fixture(autouse=True)
def by_number(world):
    world.env |= {"SHUNPIKE_ENTRY": str(entry_library())}
    world.run_options = ["--entry=syscall"]


class Family(Dialogue):
    """A dialogue whose programs may have children."""

    def start(self, is_under, argv):
        popen, subprocess.Popen = subprocess.Popen, lambda *more, **options: popen(*more, start_new_session=True, **options)
        try:
            return super().start(is_under, argv)
        finally:
            subprocess.Popen = popen

    def __exit__(self, *_):
        for proc in self.procs:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(proc.pid, signal.SIGKILL)
            proc.communicate()


def ran(world, argv, socket=None, env=None, **options):
    """What a command does, which is under Shunpike if there is a broker's socket."""
    under = [world.binary, "run", *world.run_options, "--"] if socket else []
    env = world.env | ({"SHUNPIKE_SOCKET": str(socket)} if socket else {}) | (env or {})
    argv = [str(one) for one in [*under, *argv]]
    options |= {"capture_output": True, "text": True, "errors": "replace", "stdin": subprocess.DEVNULL, "cwd": world.directory}
    done = subprocess.run(argv, env=env, timeout=60 * PATIENCE, **options)
    # Shells tell which process was killed.
    return done.returncode, done.stdout, re.sub(r"line (\d+): +\d+ ", r"line \1: PID ", done.stderr)


@pytest.mark.parametrize("name", PARENTS)
def test_lanes(world, children, name):
    """Of a server that each kind of parent executes."""
    serve = [children / "glibc", "serve", "edges"]
    if name == "system":
        serve = [f"{children}/glibc serve edges"]
    with Family(Accel(world, "both"), parent(children, name, serve), [children / "dynamic", "read", 2000]) as dialogue:
        dialogue.gets_lanes()
        dialogue.end()


@pytest.mark.parametrize("name", ["sh-background", "subprocess", "posix_spawn", "vfork-execve"])
@pytest.mark.parametrize("kind", ["musl", "go", "go-pie"])
def test_lanes_of_each_kind(world, children, name, kind):
    """Of server and client."""
    rest = [5, 200] if kind.startswith("go") else ["read", 2000]

    class Both(Family):
        def start(self, is_under, argv):
            return super().start(is_under, parent(children, name, argv))

        def end(self):
            # Its status is the parent's business.
            self.over.touch()
            assert line(self.client) == "done"

    with Both(Accel(world, "both"), [children / kind, "serve", "read"], [children / kind, *rest]) as dialogue:
        dialogue.gets_lanes(2)
        dialogue.end()


STATIC = {"glibc": ["execve", "vfork-execve", "posix_spawn", "fexecve"], "musl": ["execve", "vfork-execve", "posix_spawnp"], "go": ["os/exec"]}


@pytest.mark.parametrize("kind,how", [(kind, how) for kind, hows in STATIC.items() for how in hows])
def test_a_static_parent(world, children, kind, how):
    """Patched itself, it executes another one; the same is seen as without."""
    through = [children / "go-starts"] if kind == "go" else [children / f"starts-{kind}", how]
    with Family(Accel(world, "both"), [*through, children / "glibc", "serve", "edges"], [children / "dynamic", "read", 2000]) as dialogue:
        dialogue.gets_lanes()
        dialogue.end()
        for program in ("shown", "nowhere"):
            argv = [*through, children / program]
            assert ran(world, argv, dialogue.accel.broker.socket) == ran(world, argv)


@pytest.mark.parametrize("parent", [[], ["sh", "-c", '"$1" & wait', "sh"]], ids=["run", "sh"])
def test_a_script_of_a_static_interpreter(world, children, parent):
    script = world.directory / "script"
    script.write_text(f"#!{children}/glibc serve\n")
    script.chmod(0o755)
    with Family(Accel(world, "both"), [*parent, script], [children / "dynamic", "read", 2000]) as dialogue:
        dialogue.gets_lanes()
        dialogue.end()


@pytest.mark.parametrize("name", PARENTS)
@pytest.mark.parametrize("ends", [0, signal.SIGTERM, signal.SIGKILL])
def test_all_else_is_as_without(world, children, name, ends):
    """What parent and child see, and how they end."""
    argv = parent(children, name, [children / "shown", int(ends)] if name != "system" else [f"{children}/shown {int(ends)}"])
    accel = Accel(world, "both")
    wanted = ran(world, argv)
    assert "file " in wanted[1]
    for _ in range(3):
        assert ran(world, argv, accel.broker.socket) == wanted


FAILURES = ["missing", "forbidden", "directory", "cut off", "empty", "text", "no interpreter", "its own interpreter", "a pipe", "too long"]


def refused(world, children, what):
    """A program that cannot be executed, and its arguments."""
    place = world.directory / "program"
    whole = children.joinpath("shown").read_bytes()
    if what == "directory":
        place.mkdir()
    elif what == "a pipe":
        os.mkfifo(place)
    elif what != "missing":
        content = {"cut off": whole[:16] + b"\nexit 3\n", "text": b"exit 3\n", "no interpreter": b"#!/nonexistent/interpreter\n", "empty": b"",
                   "its own interpreter": f"#!{place}\n".encode()}  # fmt: skip
        place.write_bytes(content.get(what, whole))
    if what not in ("missing", "directory"):
        place.chmod(0o644 if what == "forbidden" else 0o755)
    return [place, *(["x" * 131072] if what == "too long" else [])]


@pytest.mark.parametrize("what", FAILURES)
@pytest.mark.parametrize("name", ["sh", "bash-background", "subprocess", "execve", "execvp", "vfork-execve", "fexecve", "execveat", "itself-execve",
                                  "posix_spawn", "posix_spawnp"])  # fmt: skip
def test_failures(world, children, name, what):
    if (name, what) == ("bash-background", "a pipe"):
        pytest.skip("bash opens it then, and waits")
    argv = parent(children, name, refused(world, children, what))
    if what == "too long":
        # The command line of the test's own would be refused: it is made longer by the child's parent.
        source = f"import os, sys\ntry: os.execv({str(children / 'shown')!r}, ['x', 'x' * 131072])\nexcept OSError as error: print(error)"
        argv = [sys.executable, "-c", source]
    socket = Accel(world, "both").broker.socket
    assert ran(world, argv, socket) == ran(world, argv)


def test_a_search(world, children):
    """As libc's: not the first of that name, but the first that can be executed; none, if none can."""
    first, second = world.directory / "first", world.directory / "second"
    first.mkdir(), second.mkdir()
    shutil.copy(children / "shown", second / "searched")
    (first / "searched").mkdir()
    socket = Accel(world, "both").broker.socket
    for name in ("searched", "nowhere"):
        for how in ("execvp", "execlp", "execvpe", "posix_spawnp", "vfork-execvp"):
            env = {"PATH": f"{first}:{world.directory / 'none'}:{second}:{world.env['PATH']}"}
            argv = [children / "starts", how, name]
            wanted = ran(world, argv, env=env)
            assert (f"file {second}/searched" in wanted[1]) == (name == "searched")
            assert ran(world, argv, socket, env=env) == wanted


JOBS = """
set -m
"$1" pause > out & kill -STOP %1; wait %1; echo $?; jobs | tr -s ' '; kill -CONT %1; kill -TERM %1; wait %1; echo $?
"$1" pause > out & kill -TERM -- -$!; wait $!; echo $?
"$1" 0 > out & wait -n; echo $?; wait; echo $?
trap 'echo ended' CHLD; "$1" 2 > out; echo $?
"""


def test_job_control(world, children):
    """Stopped, continued and ended, also in the middle of a start."""
    socket = Accel(world, "both").broker.socket
    argv = ["bash", "-c", JOBS, "bash", children / "shown"]
    wanted = ran(world, argv)
    for _ in range(5):
        # What bash says on the way depends on when it looks.
        assert ran(world, argv, socket)[:2] == wanted[:2]


STOPPED = """
set -m
for time in {1..60}; do
    "$1" pause > out & for ((at = RANDOM % 40; at > 0; at--)); do :; done
    kill -STOP %1; wait %1; kill -CONT %1; kill -TERM %1; wait %1
done 2> /dev/null
echo done
"""


def test_who_is_stopped_in_the_middle_of_a_start_is_seen_to_stop(world, children):
    """Else the shell waits for ever for the job that it has stopped, and never sends SIGCONT."""
    socket = Accel(world, "both").broker.socket
    assert ran(world, ["bash", "-c", STOPPED, "bash", children / "shown"], socket)[:2] == (0, "done\n")



@pytest.mark.parametrize("before", ["strace", "deny"])
def test_where_nobody_may_trace(world, children, before):
    """There is a tracer, or a filter forbids it: the program runs."""
    socket = Accel(world, "both").broker.socket
    compile_program(SOURCES / "deny.c", world.directory / "deny")
    prefix = ["strace", "-f", "-qq", "-o", "/dev/null"] if before == "strace" else [world.directory / "deny", "ptrace"]
    for name in ("execve", "vfork-execve", "posix_spawn"):
        argv = parent(children, name, [children / "shown"])
        under = [*prefix, world.binary, "run", *world.run_options, *argv]
        code, out, err = ran(world, under, env={"SHUNPIKE_SOCKET": str(socket)})
        tracers = lambda text: [line for line in text.splitlines() if not line.startswith("TracerPid")]
        assert (code, tracers(out), err) == (0, tracers(ran(world, argv)[1]), "")


@pytest.mark.parametrize("how", ["execve", "posix_spawn", "vfork-execve"])
@pytest.mark.parametrize("as_first", [[], ["--fork"]])
def test_in_a_pid_namespace_of_its_own(world, children, how, as_first):
    """Children come into another one, or this is its first process: a helper would be the first there, and end it, or be its child."""
    argv = ["unshare", "--pid", *as_first, children / "starts-musl", how, children / "starts-musl", how, "/bin/echo", "there"]
    wanted = ran(world, argv)
    assert wanted[0] == 0 and wanted[1].startswith("there\n")
    assert ran(world, argv, Accel(world, "both").broker.socket) == wanted


@pytest.mark.parametrize("helper", ["missing", "false", "hangs", "writes"])
def test_without_a_helper(world, children, helper):
    """It is not there, fails, or never becomes ready: the program runs, and not much later."""
    socket = Accel(world, "both").broker.socket
    path = world.directory / helper
    body = {"false": "exit 1", "hangs": "exec sleep 7", "writes": "echo nothing >&4; sleep 0.3"}.get(helper)
    if body:
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
    env = {"SHUNPIKE_INJECT": f"{path}:/nonexistent:", "LD_PRELOAD": world.env["SHUNPIKE_LIB"], "SHUNPIKE_SOCKET": str(socket)}
    for name in ("execve", "posix_spawn", "vfork-execve"):
        argv = parent(children, name, [children / "shown"])
        wanted = ran(world, argv)
        began = time.monotonic()
        assert ran(world, argv, env=env) == wanted
        assert time.monotonic() - began < 2 * PATIENCE


def test_rights_are_kept(world, children):
    """A program with more rights than its caller is never traced."""
    if os.geteuid() != 0:
        pytest.skip("only root can make one")
    program = world.directory / "privileged"
    shutil.copy(children / "shown", program)
    program.chmod(0o4755)
    starts = shutil.copy(children / "starts", world.directory)
    world.become("nobody")
    env = {"SHUNPIKE_INJECT": f"{world.binary}:{shutil.copy(world.env['SHUNPIKE_ENTRY'], world.directory)}:", "LD_PRELOAD": world.env["SHUNPIKE_LIB"],
           "SHUNPIKE_SOCKET": "/nonexistent/socket"}  # fmt: skip
    out = ran(world, [starts, "execve", program], env=env, user="nobody", group="nogroup", extra_groups=[])[1]
    assert "effective user 0\n" in out and "the child" in out


def test_many_at_once(world, children):
    """By threads of one program, each with its own result."""
    source = """
import subprocess, sys
from concurrent.futures import ThreadPoolExecutor
def one(n): return subprocess.run([sys.argv[1], str(n % 2 * 15)], stdout=subprocess.DEVNULL).returncode
with ThreadPoolExecutor(8) as pool: print(list(pool.map(one, range(60))))
"""
    argv = [sys.executable, "-c", source, children / "shown"]
    assert ran(world, argv, Accel(world, "both").broker.socket) == ran(world, argv) == (0, f"{[7, -15] * 30}\n", "")


def test_what_a_start_takes(world, children):
    argv = ["sh", "-c", 'for n in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do "$1"; done', "sh", children / "shown"]
    socket = Accel(world, "both").broker.socket
    took = []
    for where in (None, socket):
        began = time.monotonic()
        ran(world, argv, where)
        took.append((time.monotonic() - began) / 20 * 1000)
    print(f"a start: {took[0]:.1f} ms, and {took[1] - took[0]:.1f} more")
    assert took[1] < 200 * PATIENCE


@pytest.mark.parametrize("entry", ["libc", "auto", "none"])
def test_only_if_asked_for(world, children, entry):
    """Another entry in the command line takes back what the environment says."""
    world.run_options = [f"--entry={entry}"]
    argv = ["sh", "-c", 'echo "${SHUNPIKE_INJECT-unset}"']
    assert ran(world, argv, Accel(world, "both").broker.socket, env={"SHUNPIKE_INJECT": "/x:/y:"}) == (0, "unset\n", "")
