"""Programs of another libc: musl's, by musl-gcc, print the same on lanes as on TCP, and so do those that have a peer with glibc."""

import hashlib

import pytest

from harness import Accel, compile_for_musl
from procs import finish_together, free_port
from test_parity import ECHO_HASHES, on_tcp, run_case

pytestmark = pytest.mark.parity

# Where libc has a part in it: messages, signals, cancellation, fork, exec, streams of stdio, waits.
CASES = {
    "flags": ["vectors", "dups"],
    "readiness": ["mixed", "room"],
    "processes": ["turns", "exec", "spawn", "system", "passed", "stdio", "raw"],
    "hazards": ["cancel", "jump", "handler", "closeall"],
}


@pytest.fixture(scope="session")
def musl_bed(tmp_path_factory):
    target = tmp_path_factory.mktemp("musl")
    compile_for_musl(target, [*CASES, "echo", "forks", "musl"])
    return target


@pytest.mark.parametrize("program,case", [(program, case) for program, cases in CASES.items() for case in cases])
def test_case(world, musl_bed, program, case):
    wanted = on_tcp(musl_bed, program, case)
    for end, got, should in zip(("client", "server"), run_case(world, "both", musl_bed, program, case), wanted, strict=True):
        assert got.splitlines() == should.splitlines(), f"the {end} sees something else than on TCP"


@pytest.mark.parametrize("mode", ["tcp", "both"])
def test_what_musl_has_otherwise(world, musl_bed, mode):
    """Lengths of 32 bits with anything behind them, in messages and control messages; select keeps the program's time."""
    accel = Accel(world, mode)

    def dialogue():
        port = free_port()
        server = accel.server("server", [musl_bed / "musl", "server", port]).wait_listening(port)
        client = accel.client("client", [musl_bed / "musl", "client", port])
        out = finish_together(client, server)
        assert out == ["done\n", "select: 0, 0 s 20000 us\n" * 2 + "unread: 77\ndone\n"]

    dialogue()
    accel.verify(lane_bytes=10_000, more=dialogue)


@pytest.mark.parametrize("served,asking", [("musl", "musl"), ("musl", "glibc"), ("glibc", "musl")])
def test_one_libc_at_each_end(world, bed, musl_bed, served, asking):
    accel, port, beds = Accel(world, "both", ["--eager"]), free_port(), {"musl": musl_bed, "glibc": bed}
    server = accel.server("server", [beds[served] / "echo", "server", "et", port, 100]).wait_listening(port)
    hashes, echoed = finish_together(accel.client("client", [beds[asking] / "echo", "client", port, 100, 80]), server)
    assert hashlib.sha256(hashes.encode()).hexdigest() == ECHO_HASHES
    assert echoed == "echoed 30781507 on 100\n"
    accel.verify(lanes=60, lane_bytes=1 << 20)


def test_forks_in_the_middle_of_handshakes(world, musl_bed):
    accel = Accel(world, "both")

    def dialogue():
        port = free_port()
        server = accel.server("server", [musl_bed / "forks", "server", port, 100, 7]).wait_listening(port)
        client = accel.client("client", [musl_bed / "forks", "client", port, 100, 7])
        assert finish_together(client, server) == ["asked 100\n", "served 100\n"]

    dialogue()
    accel.verify(more=dialogue)
