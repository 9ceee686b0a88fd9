"""USDT probes: what stands in the library, and that the example scripts see what happens."""

import os
import re
import shutil
import signal
import subprocess

import pytest

from harness import LIBRARY, ROOT
from operators import Pair
from procs import until

pytestmark = pytest.mark.operators


def documented():
    """{probe: number of arguments} of the table in docs/tracing.md."""
    rows = re.findall(r"^\| `(\w+)` \|(.*)\|$", (ROOT / "docs/tracing.md").read_text(), re.M)
    return {name: sum(bool(cell.strip()) for cell in cells.split("|")[1:]) for name, cells in rows}


def notes(library):
    text = subprocess.run(["readelf", "--wide", "-n", str(library)], capture_output=True, text=True, check=True).stdout
    found = re.findall(r"Provider: (\w+)\s+Name: (\w+)\s+Location: (0x\w+),.*?\s+Arguments: (.*)", text)
    return [(provider, name, int(location, 16), arguments.split()) for provider, name, location, arguments in found]


def test_the_library_has_the_documented_probes(tmp_path):
    probes = notes(LIBRARY)
    assert sorted((provider, name, len(arguments)) for provider, name, _, arguments in probes) == sorted(
        ("shunpike", name, count) for name, count in documented().items()), "each once"  # fmt: skip
    assert all(argument.startswith("-8@") for *_, arguments in probes for argument in arguments), "signed, 64 bits"
    stripped = shutil.copy(LIBRARY, tmp_path)
    subprocess.run(["strip", "--strip-unneeded", stripped], check=True)
    assert notes(stripped) == probes, "also as packages have it"
    segments = subprocess.run(["readelf", "--wide", "-l", str(LIBRARY)], capture_output=True, text=True, check=True).stdout
    code = [(int(at, 16), int(size, 16)) for at, size in re.findall(r"LOAD +\S+ (0x\w+) \S+ (0x\w+) \S+ R E", segments)]
    for _, name, location, _ in probes:
        assert any(at <= location < at + size for at, size in code), f"{name} is at an instruction"


def bpftrace_works():
    if os.getuid() or not shutil.which("bpftrace"):
        return False
    argv = ["bpftrace", "-e", 'BEGIN { printf("works\\n"); exit(); }']
    return "works" in subprocess.run(argv, capture_output=True, text=True, timeout=60).stdout


def trace(world, script):
    """An example script of ours on the library under test."""
    text = (ROOT / "dist/bpftrace" / script).read_text()
    assert text.count("/usr/local/lib/libshunpike.so") >= 2
    path = world.directory / script
    path.write_text(text.replace("/usr/local/lib/libshunpike.so", os.path.realpath(LIBRARY)))
    return world.start("bpftrace", ["bpftrace", path])


def in_initial_namespace():
    # PROC_PID_INIT_INO (include/linux/proc_ns.h).
    return os.readlink("/proc/self/ns/pid") == f"pid:[{0xEFFFFFFC}]"


@pytest.mark.skipif(not bpftrace_works(), reason="bpftrace does not run here (it is root's, and the kernel's to permit)")
def test_lanes_are_traced(world):
    tracer, pair = trace(world, "lanes.bt"), Pair(world)
    connections = 0

    def upgrades():
        nonlocal connections
        connections += 1
        pair.has("SMCD", connections)
        return "upgrade" in tracer.out

    until(upgrades, tracer.describe, seconds=30, pause=0.5)
    pair.broker.tool("device", "set", "active", "off")
    pair.has("TCP 0x0a010002", connections)
    # bpftrace names processes as the initial pid namespace does.
    client, server = (pair.client.pid, pair.server.pid) if in_initial_namespace() else (r"\d+", r"\d+")

    def all_is_there():
        pair.talk(connections)
        return all(re.search(pattern, tracer.out, re.M) for pattern in [
            rf"^{client} .* \d+ +upgrade +client port \d+ to {pair.port}, ring of \d+ bytes",
            rf"^{server} .* \d+ +upgrade +server port {pair.port} to \d+, ring of \d+ bytes",
            rf"^{client} .* revoke +client reason 0x0a010002, [1-9]\d* bytes sent, [1-9]\d* received",
            rf"^{client} .* fallback +client reason 0x0a010002, peer's 0x00000000, for now"])  # fmt: skip

    until(all_is_there, tracer.describe, seconds=30, pause=0.2)
    tracer.popen.send_signal(signal.SIGINT)
    tracer.popen.wait(20)
    pair.close()


@pytest.mark.skipif(not bpftrace_works(), reason="bpftrace does not run here (it is root's, and the kernel's to permit)")
def test_wake_ups_are_traced(world):
    pair = Pair(world)
    pair.has("SMCD")
    tracer = trace(world, "wakeups.bt")
    until(lambda: "Attaching" in tracer.out, tracer.describe, seconds=30)
    before = sum(pair.wakeups())

    def some_more():
        pair.talk()
        return sum(pair.wakeups()) > before + 50

    until(some_more, "wake-ups", seconds=30, pause=0.05)
    tracer.popen.send_signal(signal.SIGINT)
    tracer.popen.wait(20)
    until(lambda: "@late_us" in tracer.out, tracer.describe)
    counts = {name: int(count) for name, count in re.findall(r"^@sleeps\[\w+, (\w+)\]: (\d+)", tracer.out, re.M)}
    assert counts and set(counts) <= {"nap", "call", "epoll", "poll"}, tracer.out
    late = tracer.out[tracer.out.index("@late_us"):tracer.out.index("@sleeps")]
    assert sum(int(n) for n in re.findall(r"\) +(\d+) \|", late)) > 0
    pair.close()
