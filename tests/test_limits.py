"""Limits: a program lives on lanes under each limit under which it lives on TCP, and does the same under it."""

import os
import re
import shutil
import signal
import subprocess
import sys
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
FLAGS = ["lock-future", "lock-all", "lock-fault", "undumpable", "no-thp", "no-exec-gain", "no-new-privs", "slack"]


def start(accel, bed, load, flag="none", prefix=(), who=("server", "client")):
    """The two ends of a dialogue."""
    port = free_port()
    argv = lambda end: [*(prefix if end in who else ()), bed / "limits", end, load, flag, port]
    server = accel.server(f"server, {load}", argv("server")).wait_listening(port)
    return [server, accel.client(f"client, {load}", argv("client"))]


def outcomes(world, bed, mode, loads, prefix=(), flag="none", lanes=True, who=("server", "client")):
    """What both ends say of each load, side by side. `lanes`: whether there must be some (None: there may be). `who` begins with `prefix`."""
    accel = Accel(world, mode, ["--eager"])
    said = finish_together(*[end for load in loads for end in start(accel, bed, load, flag, prefix, who)])
    if lanes:
        accel.verify(lanes=3 * len(loads))
    return said


def lives(said):
    assert said and set(said) == {"threads, memory, little resident\n"}


@pytest.mark.parametrize("mode", ["tcp", "both"])
@pytest.mark.parametrize("limit", RESOURCES)
def test_resource(world, bed, mode, limit):
    lives(outcomes(world, bed, mode, LOADS, ["prlimit", limit], lanes=RESOURCES[limit]))


def test_every_limit_of_resources_has_a_row():
    """Those of descriptors are below."""
    header = Path("/usr/include/asm-generic/resource.h").read_text()
    limits = {name.lower() for name in re.findall(r"define RLIMIT_(\w+)", header)}
    rows = {limit.removeprefix("--").split("=")[0] for limit in RESOURCES} | {"nofile"}
    assert len(limits) >= 16 and limits <= rows, limits - rows


@pytest.mark.parametrize("mode", ["tcp", "both"])
@pytest.mark.parametrize("personality", PERSONALITIES)
def test_personality(world, bed, mode, personality):
    lives(outcomes(world, bed, mode, LOADS, ["setarch", "x86_64", personality]))


@pytest.mark.parametrize("mode", ["tcp", "both"])
@pytest.mark.parametrize("flag", FLAGS)
def test_flag(world, bed, mode, flag):
    lives(outcomes(world, bed, mode, LOADS, flag=flag))


# The library's code and data, and tables of a word for each descriptor and connection that there can be.
OURS_MIB = 24


def memory_of(accel, bed, flag):
    """MiB that each end of each load has locked, and has resident, as it is told of before its connections end."""
    found = []
    for load in LOADS:
        ends = start(accel, bed, load, flag)
        lives(finish_together(*ends, seconds=60))
        found += [tuple(int(size) >> 10 for size in re.findall(r"(\d+) KiB", end.err)) for end in ends]
    return found


@pytest.mark.parametrize("flag", [flag for flag in FLAGS if flag.startswith("lock")])
def test_locked_memory_is_as_on_tcp(world, bed, flag):
    """Beside the same on TCP: no ring is locked, only the library and its tables. What the flag makes resident beyond what is there without it
    is as much."""
    accels = [Accel(world, mode, ["--eager"]) for mode in ("tcp", "both")]
    (plain, on_tcp), (lanes, locked) = [[memory_of(accel, bed, which) for which in ("none", flag)] for accel in accels]
    for end, (without, there, before, here) in enumerate(zip(plain, on_tcp, lanes, locked, strict=True)):
        said = f"end {end}: {without}, {there} on TCP and {before}, {here} on lanes without and with {flag}: MiB locked, resident"
        assert there[0] > 0 and here[0] <= there[0] + OURS_MIB, said
        # Of lanes that are open MCL_CURRENT makes the pages: COMPLIANCE.md.
        assert flag == "lock-all" or here[1] - before[1] <= there[1] - without[1] + OURS_MIB, said


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


@pytest.mark.parametrize("mode", ["tcp", "both"])
def test_little_shared_memory(world, bed, mode):
    """/dev/shm is as small as containers have it, or smaller: in mount namespaces."""
    small = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=64k none /dev/shm && exec "$@"', "sh"]
    if subprocess.run([*small, "true"], capture_output=True).returncode != 0:
        pytest.skip("needs root")
    lives(outcomes(world, bed, mode, LOADS, small))


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


def joins(directory):
    """How to begin a program in a control group."""
    return ["sh", "-c", 'echo $$ >"$0/cgroup.procs" && exec "$@"', directory]


@contextmanager
def gone_afterwards(world):
    """Nobody of the programs is left in the group, as whoever is in it holds it."""
    try:
        yield
    finally:
        for proc in world.procs:
            if proc.popen.poll() is None and proc not in [broker.proc for broker in world.brokers]:
                proc.kill()


@pytest.mark.parametrize("load", [*LOADS, "full"])
@pytest.mark.parametrize("mode", ["tcp", "both"])
@pytest.mark.parametrize("kind", ["max", "high", "nested"])
def test_memory_of_a_group(world, bed, mode, kind, load):
    """Both ends, and what else they use: little is left for rings, and nobody is killed."""
    with group(64 * MIB, kind) as directory, gone_afterwards(world):
        lives(outcomes(world, bed, mode, [load], joins(directory), lanes=None))


@pytest.mark.parametrize("size, load, who", [(48, "half", ("server", "client")), (48, "half", ("server",)), (48, "half", ("client",)), (64, "full", ("server",)), (64, "full", ("client",))])
@pytest.mark.parametrize("mode", ["tcp", "both"])
def test_memory_of_a_smaller_group_and_of_one_end_s(world, bed, mode, size, load, who):
    """Whoever fills the pages of a ring is charged for them: it may be the other end that is in a group."""
    with group(size * MIB, "max") as directory, gone_afterwards(world):
        lives(outcomes(world, bed, mode, [load], joins(directory), lanes=None, who=who))


@pytest.mark.skipif(not shutil.which("redis-benchmark"), reason="there is no redis")
@pytest.mark.parametrize("mode", ["tcp", "both"])
def test_redis_and_its_benchmark_in_a_group(world, mode):
    """Fifty connections that carry half a megabyte at a time: both ends in 96 MiB."""
    accel, port = Accel(world, mode), free_port()
    with group(96 * MIB, "max") as directory, gone_afterwards(world):
        serving = ["redis-server", "--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        server = accel.server("redis", [*joins(directory), *serving]).wait_listening(port)
        asking = ["redis-benchmark", "-p", port, "-c", 50, "-d", 500_000, "-n", 1500, "-t", "set", "-q"]
        said = accel.client("benchmark", [*joins(directory), *asking]).finish(60)
        assert "requests per second" in said
        server.stop()


POURS = """
import socket, sys, time
if sys.argv[1] == "server":
    connection = socket.create_server(("127.0.0.1", int(sys.argv[2]))).accept()[0]
    while connection.recv(1 << 14):
        time.sleep(0.0005)  # so that the ring is full
else:
    connection = socket.create_connection(("127.0.0.1", int(sys.argv[2])))
    while True:
        connection.sendall(bytes(4 << 20))
"""


def test_a_lane_goes_back_where_the_group_gets_tight(world):
    """Somebody else in the group takes nearly all of it, while bulk goes by a lane, whose ring cannot shrink as it is full."""
    accel, port = Accel(world, "both"), free_port()
    with group(256 * MIB, "max") as directory, gone_afterwards(world):
        pours = lambda end: [*joins(directory), sys.executable, "-c", POURS, end, port]
        server = accel.server("server", pours("server")).wait_listening(port)
        client = accel.client("client", pours("client"))
        moved = lambda: accel.broker.stats().tx_bytes
        until(lambda: moved() > 20 * MIB, lambda: f"bulk by the lane: {accel.broker.stats()}", seconds=30)
        assert not accel.broker.stats().reasons.get("memory_refused")
        # A sixteenth of the limit would be 16 MiB.
        left = (directory / "memory.max").exists() and int((directory / "memory.current").read_text())
        used = left or int((directory / "memory.usage_in_bytes").read_text())
        hog = "import sys; held = b'x' * int(sys.argv[1]); print('held', flush=True); sys.stdin.read()"
        taking = world.start("hog", [*joins(directory), sys.executable, "-c", hog, 256 * MIB - used - 14 * MIB], stdin=subprocess.PIPE)
        until(lambda: accel.broker.stats().reasons.get("memory_refused"), lambda: f"back to TCP: {accel.broker.stats()}", seconds=20)
        assert "held" in taking.out and client.popen.poll() is None and server.popen.poll() is None, "all go on"


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
