"""Limits: a program lives on lanes under each limit under which it lives on TCP, and does the same under it."""

import os
import re
import signal
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness import Accel, unique
from procs import finish_together, free_port, until

LOADS = ["bulk", "small", "idle"]  # and "full", where memory is what matters
MIB = 1 << 20
# A limit of resources -> whether lanes are to be had under it: else the program is on TCP.
RESOURCES = {
    f"--as={1 << 30}": True, f"--as={512 * MIB}": None, f"--as={96 * MIB}": None, f"--fsize={8 * MIB}": True, "--fsize=4096": False,
    f"--data={128 * MIB}": True, f"--stack={MIB}": True, "--memlock=0": True, "--core=0": True, "--cpu=600": True, f"--rss={MIB}": True,
    "--sigpending=0": True, "--msgqueue=0": True, "--locks=0": True, "--nice=0": True, "--rtprio=0": True, "--rttime=100000": True,
    "--nproc=4096": True,
}  # fmt: skip
PERSONALITIES = ["--addr-no-randomize", "--addr-compat-layout", "--read-implies-exec", "--3gb", "--whole-seconds"]
FLAGS = ["lock-future", "lock-all", "lock-fault", "undumpable", "no-thp"]


def outcome(world, bed, mode, load, prefix=(), flag="none", lanes=True):
    """What both ends say. `lanes`: whether there must be some (None: there may be)."""
    accel, port = Accel(world, mode, ["--eager"]), free_port()
    server = accel.server("server", [*prefix, bed / "limits", "server", load, flag, port]).wait_listening(port)
    client = accel.client("client", [*prefix, bed / "limits", "client", load, flag, port])
    said = finish_together(client, server)
    if lanes:
        accel.verify(lanes=3)
    return said


def lives(said):
    assert said == ["threads, memory, little locked, little resident\n"] * 2


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("mode", ["tcp", "both"])
@pytest.mark.parametrize("limit", RESOURCES)
def test_resource(world, bed, mode, limit, load):
    lives(outcome(world, bed, mode, load, ["prlimit", limit], lanes=RESOURCES[limit]))


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("mode", ["tcp", "both"])
@pytest.mark.parametrize("personality", PERSONALITIES)
def test_personality(world, bed, mode, personality, load):
    lives(outcome(world, bed, mode, load, ["setarch", "x86_64", personality]))


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("mode", ["tcp", "both"])
@pytest.mark.parametrize("flag", FLAGS)
def test_flag(world, bed, mode, flag, load):
    lives(outcome(world, bed, mode, load, flag=flag))


# What RLIMIT_NOFILE leaves to a program that has three descriptors open, and as a server a listening socket.
@pytest.mark.parametrize("limited", ["server", "client"])
@pytest.mark.parametrize("mode", ["tcp", "both"])
@pytest.mark.parametrize("limit", [256, 128, 64, 32])
@pytest.mark.parametrize("hard", [4096, None])
def test_all_descriptors_are_the_program_s(world, bed, mode, limit, hard, limited):
    """A program gets as many as on TCP, and keeps its lanes where the hard limit leaves room for ours beyond its own numbers."""
    accel, port = Accel(world, mode, ["--eager"]), free_port()
    argv = lambda end: [*(["prlimit", f"--nofile={limit}:{hard or limit}"] if end == limited else []), bed / "descriptors", end, port]
    server = accel.server("server", argv("server")).wait_listening(port)
    client = accel.client("client", argv("client"))
    served, used = (text.splitlines() for text in reversed(finish_together(client, server)))
    if limited == "server":
        assert served == [f"accepted {limit - 4}, then EMFILE", "files: 1"]
        assert used == [f"connected {limit - 4}, then no more"]
    else:
        assert used == [f"connected {limit - 3}, then EMFILE", "files: 0", "one for another: 1", "files: 0"]
        assert served == [f"accepted {limit - 2}, then no more"]
    if hard:
        accel.verify(lanes=(limit - 4) * 3 // 4)


def group_directory():
    """Where control groups of memory are made, and whether they are of version 2."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, (kind, _, options) = line.split(" - ")[0].split(), line.split(" - ")[1].split(maxsplit=2)
        at = Path(fields[4])
        if kind == "cgroup" and "memory" in options.split(","):
            return at, False
        if kind == "cgroup2" and "memory" in (at / "cgroup.subtree_control").read_text().split():
            return at, True
    return None, False


@contextmanager
def group(limit, kind):
    """A control group with a limit of memory: its own (max, high), or that of the one which it is in (nested)."""
    directory, unified = group_directory()
    if os.getuid() != 0 or not directory or not os.access(directory, os.W_OK):
        pytest.skip("needs root and control groups of memory")
    if kind == "high" and not unified:
        pytest.skip("there is no memory.high in control groups of version 1")
    limited = directory / unique("shunpike-test-")
    made = [limited, limited / "inner"] if kind == "nested" else [limited]
    for path in made:
        path.mkdir()
    if unified and kind == "nested":
        (limited / "cgroup.subtree_control").write_text("+memory")
    (limited / (f"memory.{'high' if kind == 'high' else 'max'}" if unified else "memory.limit_in_bytes")).write_text(str(limit))
    try:
        yield made[-1]
    finally:
        for path in reversed(made):
            until(lambda path=path: removed(path), f"{path} can be removed")


def removed(path):
    try:
        path.rmdir()
    except OSError:
        return False
    return True


@pytest.mark.parametrize("load", [*LOADS, "full"])
@pytest.mark.parametrize("mode", ["tcp", "both"])
@pytest.mark.parametrize("kind", ["max", "high", "nested"])
def test_memory_of_a_group(world, bed, mode, kind, load):
    """Both ends, and what else they use: little is left for rings, and nobody is killed."""
    with group(64 * MIB, kind) as directory:
        joined = ["sh", "-c", 'echo $$ >"$0/cgroup.procs" && exec "$@"', directory]
        try:
            lives(outcome(world, bed, mode, load, joined, lanes=None))
        finally:
            for proc in world.procs:
                if proc.popen.poll() is None and proc not in [broker.proc for broker in world.brokers]:
                    proc.kill()


@pytest.mark.parametrize("load", LOADS)
def test_core_dump_has_no_rings(world, bed, load):
    """What a dump would have of ours, by what the kernel says of each mapping: the blocks of connections, no rings."""
    accel, port, said = Accel(world, "both", ["--eager"]), free_port(), {}
    programs = [accel.server("server", [bed / "limits", "server", load, "stop", port]).wait_listening(port),
                accel.client("client", [bed / "limits", "client", load, "stop", port])]  # fmt: skip
    for program in programs:
        until(lambda: "stopped" in program.out, program.describe)
    for program in programs:
        said[program.name] = dumped(program.pid)
        program.signal(signal.SIGCONT)
    lives([text.removeprefix("stopped\n") for text in finish_together(*programs)])
    assert all(size <= MIB for size in said.values()), f"bytes in a dump: {said}"


@pytest.mark.parametrize("load,connections", [("small", 100), ("idle", 300)])
def test_address_space_of_connections(world, bed, load, connections):
    """A connection that moves no bulk has a MiB of address space at most, and few pages of tables."""
    accel, port = Accel(world, "both", ["--eager"]), free_port()
    programs = [accel.server("server", [bed / "limits", "server", load, "stop", port]).wait_listening(port),
                accel.client("client", [bed / "limits", "client", load, "stop", port])]  # fmt: skip
    for program in programs:
        until(lambda: "stopped" in program.out, program.describe)
    rings = [sum(size for size, _ in mappings(program.pid, "/memfd:shunpike-dmb")) for program in programs]
    assert accel.broker.stats().lanes >= connections * 3 // 4
    for program in programs:
        program.signal(signal.SIGCONT)
    lives([text.removeprefix("stopped\n") for text in finish_together(*programs)])
    assert all(0 < size <= connections * MIB for size in rings), f"bytes of address space: {rings}"


def mappings(pid, name):
    """Size and flags of a process's mappings of memory with this name."""
    parts = re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", Path(f"/proc/{pid}/smaps").read_text(), flags=re.MULTILINE)
    size = lambda part: int(re.search(r"^Size: +(\d+) kB", part, re.MULTILINE)[1]) << 10
    flags = lambda part: re.search(r"^VmFlags: (.*)$", part, re.MULTILINE)[1].split()
    return [(size(part), flags(part)) for part in parts if name in part]


def dumped(pid):
    """Bytes of Shunpike's mappings that the kernel would write into a core dump."""
    return sum(size for size, flags in mappings(pid, "/memfd:shunpike-") if "dd" not in flags)
