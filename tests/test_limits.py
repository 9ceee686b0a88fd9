"""Limits: a program lives on lanes under each limit under which it lives on TCP, and does the same under it."""

import os
import re
import signal
import subprocess
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


def start(accel, bed, load, flag="none", prefix=()):
    """The two ends of a dialogue."""
    port = free_port()
    server = accel.server(f"server, {load}", [*prefix, bed / "limits", "server", load, flag, port]).wait_listening(port)
    return [server, accel.client(f"client, {load}", [*prefix, bed / "limits", "client", load, flag, port])]


def outcomes(world, bed, mode, loads, prefix=(), flag="none", lanes=True):
    """What both ends say of each load, side by side. `lanes`: whether there must be some (None: there may be)."""
    accel = Accel(world, mode, ["--eager"])
    said = finish_together(*[end for load in loads for end in start(accel, bed, load, flag, prefix)])
    if lanes:
        accel.verify(lanes=3 * len(loads))
    return said


def lives(said):
    assert said and set(said) == {"threads, memory, little locked, little resident\n"}


@pytest.mark.parametrize("mode", ["tcp", "both"])
@pytest.mark.parametrize("limit", RESOURCES)
def test_resource(world, bed, mode, limit):
    lives(outcomes(world, bed, mode, LOADS, ["prlimit", limit], lanes=RESOURCES[limit]))


@pytest.mark.parametrize("mode", ["tcp", "both"])
@pytest.mark.parametrize("personality", PERSONALITIES)
def test_personality(world, bed, mode, personality):
    lives(outcomes(world, bed, mode, LOADS, ["setarch", "x86_64", personality]))


@pytest.mark.parametrize("mode", ["tcp", "both"])
@pytest.mark.parametrize("flag", FLAGS)
def test_flag(world, bed, mode, flag):
    lives(outcomes(world, bed, mode, LOADS, flag=flag))


@contextmanager
def setting(name, value):
    """It has this value meanwhile, where it can be changed."""
    path = Path("/proc/sys") / name
    try:
        before = path.read_text()
        path.write_text(str(value))
    except OSError as error:
        pytest.skip(f"{name} cannot be set here: {error}")
    try:
        yield
    finally:
        path.write_text(before)


@pytest.mark.parametrize("mode", ["tcp", "both"])
@pytest.mark.parametrize("name,value", [("vm/overcommit_memory", 2), ("vm/max_map_count", 1000)])
def test_setting_of_the_machine(world, bed, mode, name, value):
    """Memory that is promised must be there; and mappings for an eighth of the lanes that these loads would have."""
    with setting(name, value):
        lives(outcomes(world, bed, mode, LOADS))


@pytest.mark.parametrize("mode", ["tcp", "both"])
@pytest.mark.parametrize("value", [1, 2])
def test_no_memory_that_can_be_executed(world, bed, mode, value):
    """... is made by memfd_create, or can be: in a namespace of processes for each end, as the setting is one's."""
    namespace = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    set_there = [*namespace, "sh", "-c", f'echo {value} >/proc/sys/vm/memfd_noexec && exec "$@"', "sh"]
    if subprocess.run([*set_there, "true"], capture_output=True).returncode != 0:
        pytest.skip("needs root, and a Linux that has the setting (6.3)")
    lives(outcomes(world, bed, mode, LOADS, set_there))


@pytest.mark.parametrize("limited", ["server", "client"])
@pytest.mark.parametrize("mode", ["tcp", "both"])
@pytest.mark.parametrize("hard", [4096, None])
def test_all_descriptors_are_the_program_s(world, bed, mode, hard, limited):
    """A program gets as many as on TCP, and keeps its lanes where the hard limit leaves room for ours beyond its own numbers."""
    accel, limits, ends = Accel(world, mode, ["--eager"]), (256, 128, 64, 32), []
    for limit in limits:
        port = free_port()
        argv = lambda end: [*(["prlimit", f"--nofile={limit}:{hard or limit}"] if end == limited else []), bed / "descriptors", end, port]  # noqa: B023
        server = accel.server(f"server, {limit}", argv("server")).wait_listening(port)
        ends += [accel.client(f"client, {limit}", argv("client")), server]
    said = finish_together(*ends)
    # Three are open from the start, and a server has its listening socket.
    for limit, used, served in zip(limits, said[::2], said[1::2], strict=True):
        if limited == "server":
            assert served == f"accepted {limit - 4}, then EMFILE\nfiles: 1\n"
            assert used == f"connected {limit - 4}, then no more\n"
        else:
            assert used == f"connected {limit - 3}, then EMFILE\nfiles: 0\none for another: 1\nfiles: 0\n"
            assert served == f"accepted {limit - 2}, then no more\n"
    if hard:
        accel.verify(lanes=(sum(limits) - 4 * len(limits)) * 3 // 4)


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
            lives(outcomes(world, bed, mode, [load], joined, lanes=None))
        finally:
            for proc in world.procs:
                if proc.popen.poll() is None and proc not in [broker.proc for broker in world.brokers]:
                    proc.kill()


def stopped(accel, bed, load):
    """Both ends, when all is there; they go on when they are told to."""
    programs = start(accel, bed, load, "stop")
    for program in programs:
        until(lambda program=program: "stopped" in program.out, program.describe)
    return programs


def go_on(programs):
    for program in programs:
        program.signal(signal.SIGCONT)
    lives([text.removeprefix("stopped\n") for text in finish_together(*programs)])


def test_core_dump_has_no_rings(world, bed):
    """What a dump would have of ours, by what the kernel says of each mapping: the blocks of connections, no rings."""
    accel = Accel(world, "both", ["--eager"])
    programs = [program for load in LOADS for program in stopped(accel, bed, load)]
    said = {program.name: dumped(program.pid) for program in programs}
    go_on(programs)
    assert all(size <= MIB for size in said.values()), f"bytes in a dump: {said}"


@pytest.mark.parametrize("load,connections", [("small", 100), ("idle", 300)])
def test_address_space_of_connections(world, bed, load, connections):
    """A connection that moves no bulk has a MiB of address space at most, and few pages of tables."""
    accel = Accel(world, "both", ["--eager"])
    programs = stopped(accel, bed, load)
    rings = [sum(size for size, _ in mappings(program.pid, "/memfd:shunpike-dmb")) for program in programs]
    tables = [int(re.search(r"VmPTE:\s+(\d+) kB", Path(f"/proc/{program.pid}/status").read_text())[1]) << 10 for program in programs]
    assert accel.broker.stats().lanes >= connections * 3 // 4
    go_on(programs)
    assert all(0 < size <= connections * MIB for size in rings), f"bytes of address space: {rings}"
    # Of 10,000 connections 40 MB.
    assert all(size <= connections * 4_000 for size in tables), f"bytes of page tables: {tables}"


def mappings(pid, name):
    """Size and flags of a process's mappings of memory with this name."""
    parts = re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", Path(f"/proc/{pid}/smaps").read_text(), flags=re.MULTILINE)
    size = lambda part: int(re.search(r"^Size: +(\d+) kB", part, re.MULTILINE)[1]) << 10
    flags = lambda part: re.search(r"^VmFlags: (.*)$", part, re.MULTILINE)[1].split()
    return [(size(part), flags(part)) for part in parts if name in part]


def dumped(pid):
    """Bytes of Shunpike's mappings that the kernel would write into a core dump."""
    return sum(size for size, flags in mappings(pid, "/memfd:shunpike-") if "dd" not in flags)
