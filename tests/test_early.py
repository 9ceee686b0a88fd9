"""Early and late life of a process, and the allocators that programs bring: the library leans on none of their state."""

import os
import subprocess

import pytest

import harness
from harness import EAGER_MODES, Accel
from procs import finish_together, free_port

# Archives, so that malloc is the program's own symbol; Debian has mimalloc as a shared library only.
ALLOCATORS = {"jemalloc": ["-l:libjemalloc.a", "-lm"], "tcmalloc": ["-l:libtcmalloc_minimal.a", "-lstdc++", "-lm"], "mimalloc": ["-lmimalloc"]}


@pytest.mark.parametrize("mode", EAGER_MODES)
def test_constructors_and_destructors_use_sockets(world, bed, mode):
    accel, port = Accel.eager(world, mode, warms=True), free_port()
    server = accel.server("server", [bed / "early", "server", port]).wait_listening(port)
    client = accel.client("client", [bed / "early", "client", port])
    accel.warmed()
    sent, echoed = finish_together(client, server)
    assert sent == echoed and [line.split(":")[0] for line in sent.splitlines()] == ["before", "main", "after"]
    accel.verify(lane_bytes=3 * 300 * 700)


@pytest.mark.parametrize("mode", ["tcp", "both"])
@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_program_with_a_static_allocator(world, bed, tmp_path, allocator, mode):
    program = tmp_path / "pingpong"
    libraries = ["-Wl,--no-as-needed", *ALLOCATORS[allocator]]
    source = harness.programs() / "pingpong.c"
    subprocess.run([os.environ.get("CC", "cc"), "-std=gnu11", "-O2", "-pthread", "-o", program, source, *libraries], check=True)
    dynamic = subprocess.run(["readelf", "-d", program], capture_output=True, text=True, check=True).stdout
    assert ("libmimalloc" in dynamic) == (allocator == "mimalloc") and "libjemalloc" not in dynamic and "libtcmalloc" not in dynamic
    accel, port = Accel.eager(world, mode), free_port()
    server = accel.server("server", [program, "server", port, 8, 400]).wait_listening(port)
    out, served = finish_together(accel.client("client", [program, "client", port, 8, 400]), server)
    assert len(set(out.splitlines())) == 9 and served == "done\n"
    accel.verify(lanes=8, lane_bytes=1 << 20)
