"""Programs that no preload reaches, patched by the injector and otherwise unchanged: same output, same status, every call seen."""

import os
import re
import signal
import struct
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest

from harness import BINARY, ROOT, TARGET, compile_program
from packages import entry_library, fetch
from procs import until

pytestmark = pytest.mark.programs
INJECT = BINARY.with_name("shunpike-inject")
SOURCES = ROOT / "tests" / "entry"
CASES = ["registers", "stack", "restarts", "jumps", "handlers", "threads", "children", "cancellation", "failures", "confined",
         "segment", "storm", "rewrites", "executes"]  # fmt: skip
GO = {"go": [], "go-stripped": ["-ldflags=-s -w"], "go-pie": ["-buildmode=pie"]}
# What the blob asks of the kernel itself (memory for a thread, and that a pointer can be read), and what is not patched: the return from a
# signal handler, and calls that the kernel restarts by a number of its own.
OWN = {"mmap": 9, "mprotect": 10, "rt_sigprocmask": 14, "munmap": 11, "sched_yield": 24, "rt_sigreturn": 15, "restart_syscall": 219}
COUNTERS = 512


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """A directory with a program of each kind."""
    env = os.environ | {"CGO_ENABLED": "0", "GO111MODULE": "off", "GOFLAGS": ""}
    target = tmp_path_factory.mktemp("entry")
    loose = ["-Wno-unused-result"]
    compile_program(SOURCES / "calls.c", target / "glibc", "-static", *loose)
    compile_program(SOURCES / "calls.c", target / "glibc-pie", *loose, "-static-pie")
    compile_program(SOURCES / "calls.c", target / "musl", "-static", *loose, compiler="musl-gcc")
    for name, options in GO.items():
        subprocess.run(["go", "build", *options, "-o", target / name, SOURCES / "all.go"], check=True, env=env)
    fetch(["rustup", "target", "add", "x86_64-unknown-linux-musl"], "could not download", "musl's target")
    rustc = ["rustc", "--edition=2024", "-O", "--target", "x86_64-unknown-linux-musl"]
    subprocess.run([*rustc, "-o", target / "rust", SOURCES / "plain.rs"], check=True)
    return target


@pytest.fixture(scope="session")
def busybox():
    """Debian's, as it is."""
    directory = TARGET.parent / "busybox"
    if not (directory / "bin" / "busybox").exists():
        directory.mkdir(parents=True, exist_ok=True)
        fetch(["sh", "-c", f"cd {directory} && apt-get download busybox-static && dpkg -x busybox-static*.deb ."], "Failed to fetch", "busybox")
    return directory / "bin" / "busybox"


@pytest.fixture(params=["blob", "library", "watching"])
def handler(request):
    """What the calls enter: the blob's own handler; the library, which is asked to do nothing; the library, which watches connections."""
    if request.param == "blob":
        yield None
        return
    env = os.environ | ({"SHUNPIKE_SOCKET": "/nonexistent/broker.sock"} if request.param == "watching" else {})
    Run.more, Run.env = ["--library", entry_library()], env
    yield request.param
    Run.more, Run.env = [], None


class Run:
    """One execution, patched or `plain`."""

    more, env = [], None

    def __init__(self, directory, argv, plain=False, stop=False, **options):
        self.report, self.counts = directory / "report", directory / "counts"
        self.report.unlink(missing_ok=True)
        self.counts.write_bytes(bytes(8 * COUNTERS))
        how = ["--plain"] if plain else ["--report", self.report, "--counts", self.counts, "--cache", directory / "sites"]
        how += ["--stop"] if stop else []
        how += [] if plain else self.more
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.proc = subprocess.Popen([INJECT, *how, *argv], text=True, **(streams | {"env": self.env} | options))

    def end(self, seconds=60):
        out, err = self.proc.communicate(timeout=seconds)
        return self.proc.returncode, out, err

    @property
    def reason(self):
        return int(self.report.read_text().split(":")[0])

    @property
    def counted(self):
        words = struct.unpack(f"{COUNTERS}Q", self.counts.read_bytes())
        return Counter({number: count for number, count in enumerate(words) if count})


def same(directory, argv, plain=None):
    """Runs a program both ways; the patched run, which must have been patched and done the same."""
    wanted = plain or Run(directory, argv, plain=True).end()
    run = Run(directory, argv)
    assert run.end() == wanted
    assert run.reason == 0
    assert sum(run.counted.values()) > 0
    return run


@pytest.mark.parametrize("kind", ["glibc", "glibc-pie", "musl"])
@pytest.mark.parametrize("case", CASES)
def test_c(made, tmp_path, handler, kind, case):
    if (handler, kind, case) == (None, "musl", "cancellation"):
        pytest.skip("one that comes in the blob is lost, as no library shows the program's own address")
    same(tmp_path, [made / kind, case])


@pytest.mark.parametrize("compiler", ["cc", "musl-gcc"])
def test_signals_around_calls(tmp_path, handler, compiler):
    """At any instruction of ours: no cancellation is lost, and no handler is shown an address, a stack or registers that are not the
    program's."""
    if handler is None:
        pytest.skip("without a library nothing stands in front of the program's handlers")
    compile_program(SOURCES / "cancels.c", tmp_path / "cancels", "-static", compiler=compiler)
    same(tmp_path, [tmp_path / "cancels", "700", str(os.getpid())], plain=(0, "all shown\nall shown\nall cancelled\n", ""))


@pytest.mark.parametrize("kind", GO)
def test_go(made, tmp_path, handler, kind):
    """net, os/exec, signals, threads that end, preemption by SIGURG, faults, SIGPROF: the program looks for itself."""
    same(tmp_path, [made / kind], plain=(7, "done\n", ""))


def test_go_tells_where_it_panics(made, tmp_path, handler):
    run = Run(tmp_path, [made / "go", "panic"])
    code, _, err = run.end()
    assert code == 2 and "panic: as asked" in err and "main.main()" in err


@pytest.mark.parametrize("server,client", [(False, False), (True, False), (False, True), (True, True)])
def test_go_between_two_processes(made, tmp_path, server, client):
    (tmp_path / "server").mkdir()
    serving = Run(tmp_path / "server", [made / "go", "serve"], plain=not server)
    address = serving.proc.stdout.readline().strip()
    dialling = Run(tmp_path, [made / "go-stripped", "dial", address], plain=not client)
    assert dialling.end() == (7, "done\n", "")
    serving.proc.kill()
    serving.end()


def test_rust(made, tmp_path, handler):
    same(tmp_path, [made / "rust"])


SCRIPT = """
cd /; ls -d bin etc | sort | wc -l; (exit 3); echo $?; for i in 1 2 3 4 5; do echo $i; done | while read n; do echo "n $n"; done
x=$(echo a; echo b | cat); echo $x; sleep 0.01 & wait $!; echo $?; trap 'echo trapped' USR1; kill -USR1 $$; /bin/true && /bin/false || echo no
printf '%s\\n' one two | sed s/o/0/; nosuchprogram 2>/dev/null; echo $?; exit 5
"""


def test_a_shell_and_its_children(busybox, tmp_path, handler):
    same(tmp_path, [busybox, "sh", "-c", SCRIPT])


def traced(directory, argv):
    """Runs a patched program under strace from its first instruction on: the run, the calls that strace saw, by number, and how many threads
    made them. (A Go PIE's loader makes calls of its own, so there is none.)"""
    log = directory / "strace"
    run = Run(directory, argv, stop=True)
    state = lambda: re.search(r"\) (\w)", Path(f"/proc/{run.proc.pid}/stat").read_text())[1]
    until(lambda: state() in "T", "the program is stopped")
    strace = subprocess.Popen(["strace", "-f", "-n", "-qq", "-o", log, "-p", str(run.proc.pid)], stderr=subprocess.PIPE, text=True)
    tracer = lambda: re.search(r"TracerPid:\s+(\d+)", Path(f"/proc/{run.proc.pid}/status").read_text())[1] != "0"
    until(tracer, "strace is there")
    os.kill(run.proc.pid, signal.SIGCONT)
    run.end()
    strace.communicate(timeout=20)
    seen, gone, threads = Counter(), set(), set()
    for line in log.read_text().splitlines():
        pid, rest = line.split(maxsplit=1)
        threads.add(pid)
        number = re.match(r"\[\s*(-?\d+)\] (<\.\.\. )?\w", rest)
        if not number or pid in gone:
            continue
        number, resumed = min(int(number[1]) % (1 << 64), COUNTERS - 1), number[2]
        # Of -1 no tracer is told.
        seen[number] += not resumed and number < COUNTERS - 1
        # The kernel makes a restarted call once more by itself; who is not restarted gets EINTR.
        if re.search(r"= \? ERESTART(SYS|NOINTR)", rest):
            seen[number] -= 1
        if number == 59 and rest.endswith("= 0"):
            gone.add(pid)
    # Before the program begins, the blob looks whether the helper is its child.
    seen[61] -= 1
    return run, seen, len(threads)


@pytest.mark.parametrize("kind,arguments", [
    ("glibc", ["registers", "stack", "failures"]), ("glibc-pie", ["children"]), ("musl", ["registers", "threads", "children"]),
    ("go", ["echo"]), ("rust", []), ("busybox", ["sh", "-c", SCRIPT]),
])  # fmt: skip
def test_every_call_is_seen(made, busybox, tmp_path, kind, arguments):
    program = busybox if kind == "busybox" else made / kind
    run, seen, threads = traced(tmp_path, [program, *arguments])
    counted = run.counted
    del counted[COUNTERS - 1]
    assert sum(counted.values()) > 20
    missed = {number: (made, counted[number]) for number, made in seen.items() if made > counted[number] and number not in OWN.values()}
    assert not missed
    # Each thread but the one that ends all others may be caught between the counter and its call.
    assert sum((counted - seen).values()) < threads, counted - seen


def test_nothing_is_left(made, tmp_path, handler):
    """The program is the process that was started, nobody traces it, and it has no child."""
    run = Run(tmp_path, [made / "go", "serve"])
    run.proc.stdout.readline()
    proc = Path(f"/proc/{run.proc.pid}")
    status = proc.joinpath("status").read_text()
    assert re.search(r"^Name:\s+go$", status, re.MULTILINE) and re.search(r"^TracerPid:\s+0$", status, re.MULTILINE)
    assert os.readlink(proc / "exe") == str(made / "go")
    assert proc.joinpath(f"task/{run.proc.pid}/children").read_text() == ""
    open_files = sorted(int(fd.name) for fd in proc.joinpath("fd").iterdir())
    run.proc.kill()
    run.end()
    plain = Run(tmp_path, [made / "go", "serve"], plain=True)
    plain.proc.stdout.readline()
    assert open_files == sorted(int(fd.name) for fd in Path(f"/proc/{plain.proc.pid}/fd").iterdir())
    plain.proc.kill()
    plain.end()


@pytest.mark.namespaces
def test_the_first_process_of_a_container(made, tmp_path):
    """It is its own reaper, so that the helper falls to it: no zombie stays. Here every orphan's reaper is the test's own process."""
    argv = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", INJECT, "--report", tmp_path / "report", made / "go", "serve"]
    outer = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert outer.stdout.readline().startswith("127.0.0.1")
    inner = int(Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text())
    assert (tmp_path / "report").read_text() == "0"
    assert Path(f"/proc/{inner}/task/{inner}/children").read_text() == ""
    os.kill(inner, signal.SIGKILL)
    outer.communicate(timeout=10)


def test_a_thousand_starts(made, tmp_path):
    """Of a C program and of a Go program, each patched."""
    for kind, arguments, wanted in (("musl", ["stack"], (0, "no stack is used\n", "")), ("go", ["none"], (7, "done\n", ""))):
        for _ in range(500):
            run = Run(tmp_path, [made / kind, *arguments])
            assert run.end() == wanted
            assert run.reason == 0


def test_what_cannot_be_patched_runs(made, tmp_path):
    """And says why, by a number: a script, one that is loaded into, one with rights of its own, one whose text can be written."""
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\nexit 6\n")
    script.chmod(0o755)
    setuid = tmp_path / "setuid"
    setuid.write_bytes(made.joinpath("musl").read_bytes())
    setuid.chmod(0o4755)
    writable = tmp_path / "writable"
    elf = bytearray(made.joinpath("musl").read_bytes())
    for header in range(64, 64 + 56 * elf[56], 56):
        elf[header + 4] |= 2 * (elf[header] == 1)  # PF_W, PT_LOAD
    writable.write_bytes(elf)
    writable.chmod(0o755)
    for argv, code, reason in (([script], 6, 3), (["/bin/true"], 0, 9), ([setuid, "stack"], 0, 8), ([writable, "stack"], 0, 7)):
        run = Run(tmp_path, argv)
        assert run.end()[0] == code
        assert run.reason == reason


@pytest.mark.parametrize("denied,reason", [("ptrace", 41), ("mmap-exec", 44)])
def test_where_it_is_forbidden_the_program_runs(made, tmp_path, denied, reason):
    """A filter that the program inherits refuses the tracer, or code in new memory."""
    program = tmp_path / "deny"
    compile_program(SOURCES / "deny.c", program)
    report = tmp_path / "report"
    out = subprocess.run([program, denied, INJECT, "--report", report, made / "go", "none"], capture_output=True, text=True, timeout=20)
    assert (out.returncode, out.stdout) == (7, "done\n")
    assert int(report.read_text().split(":")[0]) == reason


def test_nothing_to_execute(tmp_path):
    run = Run(tmp_path, ["/nonexistent"])
    assert run.end()[0] == 127
    broken = tmp_path / "broken"
    broken.write_bytes(b"\x7fELF" + bytes(100))
    broken.chmod(0o755)
    run = Run(tmp_path, [broken])
    assert run.end()[0] == 127
    assert run.reason == 4


@pytest.mark.cost
def test_what_a_call_costs(made, tmp_path):
    """A call that nobody wants: 10 ns. The quickest of many rounds, both ways in turn."""
    program = tmp_path / "loop"
    compile_program(SOURCES / "loop.c", program, "-static")
    times = {True: [], False: []}
    for _ in range(7):
        for plain in times:
            times[plain].append(float(subprocess.run([INJECT, *(["--plain"] if plain else []), program], capture_output=True, text=True).stdout))
    more = min(times[False]) - min(times[True])
    print(f"{min(times[True]):.1f} ns, and {more:.1f} more")
    assert more < 10


@pytest.mark.cost
def test_what_a_start_costs(made, tmp_path):
    """A Go program of tens of megabytes, whose sites are known: 0.8 to 3 ms, by how quickly the machine wakes an idle CPU. The quickest of many."""
    large = tmp_path / "large"
    env = os.environ | {"CGO_ENABLED": "0", "GO111MODULE": "off", "GOFLAGS": ""}
    subprocess.run(["go", "build", "-o", large, "cmd/compile"], check=True, env=env)
    times = {True: [], False: []}
    for _ in range(100):
        for plain in times:
            how = ["--plain"] if plain else ["--cache", tmp_path / "sites"]
            began = time.perf_counter()
            subprocess.run([INJECT, *how, large, "-V"], stdout=subprocess.DEVNULL)
            times[plain].append(time.perf_counter() - began)
    quickest = {plain: min(runs) * 1000 for plain, runs in times.items()}
    more = quickest[False] - quickest[True]
    print(f"{large.stat().st_size >> 20} MiB: {quickest[True]:.2f} ms, and {more:.2f} more")
    # To find the sites takes some hundred.
    assert more < 6
