"""Processes of a test: started, waited for without guessing, ended, and looked for afterwards."""

import contextlib
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
CRASHES = {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGSYS}

# A sanitised or heavily shared machine may need more; every wait below is scaled by it.
PATIENCE = float(os.environ.get("SHUNPIKE_TEST_PATIENCE", "1"))


def adopt_orphans():
    """Makes this process the parent of every orphan of its descendants, so that none can hide from `survivors`."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def until(condition, what, seconds=10.0, pause=0.01):
    """Polls `condition` and returns its first true value; fails, saying `what` (text, or a function that makes it then),
    at the deadline."""
    deadline = time.monotonic() + seconds * PATIENCE
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds * PATIENCE:.0f} s: {what() if callable(what) else what}")
        time.sleep(pause)


# Test runs that go on side by side (pytest-xdist) take ports of different remainders: a free one is not bound yet.
_RUNS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
_run = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_PORTS = range(20000 + _run, 32000, _RUNS)
_next_port = os.getpid() % 5000


def free_port():
    """A port below the ephemeral range (so that no outgoing connection takes it) which nobody uses now."""
    global _next_port
    while True:
        _next_port += 1
        with socket.socket() as probe:
            try:
                probe.bind(("0.0.0.0", _PORTS[_next_port % len(_PORTS)]))
            except OSError:
                continue
            return probe.getsockname()[1]


def listens(pid, port):
    """Whether any socket in the network namespace of `pid` listens on `port`. Opens no connection to find out."""
    for table in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]
        except OSError:
            return False
        for line in lines:
            fields = line.split()
            if fields[3] == "0A" and int(fields[1].rsplit(":", 1)[1], 16) == port:
                return True
    return False


def sockets(pid):
    """Inodes of the sockets that a process has open."""
    found = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            found.add(os.readlink(fd).removeprefix("socket:[").removesuffix("]"))
    return found


def still_open(pid, before):
    """Those of these sockets that are TCP's and open still."""
    table = Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]
    return before & sockets(pid) & {line.split()[9] for line in table}


class Proc:
    """A program in a process group of its own, its output in files."""

    def __init__(self, name, argv, directory, env, stop_signal=signal.SIGTERM, user=None, cwd=None, stdin=None):
        self.name, self.argv, self.stop_signal = name, [str(part) for part in argv], stop_signal
        self.out_path, self.err_path = directory / f"{name}.out", directory / f"{name}.err"
        self.was_killed = False
        identity = {} if user is None else {"user": user, "group": user, "extra_groups": []}
        with open(self.out_path, "wb") as out, open(self.err_path, "wb") as err:
            self.popen = subprocess.Popen(
                self.argv, stdin=stdin or subprocess.DEVNULL, stdout=out, stderr=err, env=env, cwd=cwd or directory,
                start_new_session=True, **identity)  # fmt: skip
        self.pid = self.popen.pid

    @property
    def out(self):
        return self.out_path.read_text(errors="replace")

    @property
    def err(self):
        return self.err_path.read_text(errors="replace")

    def describe(self):
        status = self.popen.poll()
        state = "running" if status is None else f"ended with {status}"
        return f"{self.name} [{state}]: {' '.join(self.argv)}\n{self.out[-3000:]}{self.err[-3000:]}"

    def wait_listening(self, port, seconds=20.0):
        def ready():
            assert self.popen.poll() is None, f"ended before it listened on {port}: {self.describe()}"
            return listens(self.pid, port)

        until(ready, f"{self.name} listens on {port}", seconds)
        return self

    def finish(self, seconds=30.0, status=0):
        """Waits for the program to end by itself with `status`; its standard output."""
        try:
            self.popen.wait(seconds * PATIENCE)
        except subprocess.TimeoutExpired:
            stuck = stacks(self.pid)
            self.kill()
            raise AssertionError(f"still running: {self.describe()}\n{stuck}") from None
        assert self.popen.returncode == status, f"status {status} expected: {self.describe()}"
        return self.out

    def signal(self, number):
        os.killpg(self.pid, number)

    def kill(self):
        """SIGKILL, to the whole group."""
        self.was_killed = True
        try:
            self.signal(signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.popen.wait()

    def stop(self, seconds=10.0):
        """Asks the program to end as its users would, and fails where it does not, or crashes."""
        if self.popen.poll() is None:
            os.kill(self.pid, self.stop_signal)
            try:
                self.popen.wait(seconds * PATIENCE)
            except subprocess.TimeoutExpired:
                stuck = stacks(self.pid)
                self.kill()
                raise AssertionError(f"did not end on {self.stop_signal!r}: {self.describe()}\n{stuck}") from None
        assert -self.popen.returncode not in CRASHES, f"crashed: {self.describe()}"


def finish_together(*procs, seconds=20.0):
    """Waits for programs that talk with one another; their outputs. When one fails, the others have two seconds more:
    they most likely wait for it in vain."""
    deadline = time.monotonic() + seconds * PATIENCE
    while any(proc.popen.poll() is None for proc in procs) and time.monotonic() < deadline:
        if any(proc.popen.poll() for proc in procs):
            deadline = min(deadline, time.monotonic() + 2)
        time.sleep(0.005)
    failures = []
    for proc in procs:
        try:
            proc.finish(0)
        except AssertionError as failure:
            failures.append(str(failure))
    assert not failures, "\n".join(failures)
    return [proc.out for proc in procs]


def stacks(pid):
    """Where each thread of `pid` waits in the kernel, and each of its children, with what it has done, if there is a debugger: the
    first thing to know of a program that hangs."""
    lines, children = [], []
    for task in Path(f"/proc/{pid}/task").glob("*"):
        try:
            fields = (task / "stat").read_text().rsplit(")", 1)[1].split()
            done = f"{fields[0]}, {fields[11]} and {fields[12]} ticks"
            lines.append(f"thread {task.name}: {done}, {(task / 'syscall').read_text().strip()} {(task / 'wchan').read_text()}")
            children += (task / "children").read_text().split()
        except OSError:
            pass
    for child in children:
        lines += [f"child {child} of {pid}:", stacks(child)]
        if shutil.which("gdb"):
            gdb = ["gdb", "-q", "-batch", "-p", child, "-ex", "thread apply all bt"]
            said = subprocess.run(gdb, capture_output=True, text=True, timeout=60 * PATIENCE).stdout
            lines += [line for line in said.splitlines() if line.startswith(("#", "Thread"))]
    return "\n".join(lines)


def descendants():
    """{pid: command line} of all living descendants of this process."""
    parents, names = {}, {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            stat = (entry / "stat").read_text()
            fields = stat[stat.rindex(")") + 2 :].split()
            if fields[0] == "Z":
                continue
            parents[int(entry.name)] = int(fields[1])
            names[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (OSError, ValueError):
            continue
    found, frontier = {}, {os.getpid()}
    while frontier:
        frontier = {pid for pid, parent in parents.items() if parent in frontier}
        found.update((pid, names[pid]) for pid in frontier)
    return found


def survivors():
    """Living descendants where every program of the test has been waited for. Whatever else has ended is reaped: the first process of
    a pid namespace does not end before the others there, which may be our children, are."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    return descendants()


def reap(pids):
    """Ends and reaps `pids`, which the test left behind, when its own programs have been waited for."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    until(lambda: not survivors().keys() & set(pids), lambda: f"does not end after SIGKILL: {descendants()}")
