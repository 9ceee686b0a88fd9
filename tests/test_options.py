"""All that a program may ask of a socket: each row of docs/sockets.md that can be tried does on a lane what it does on TCP, set before the
lane, during it, on the listening socket or on a duplicate."""

import re
import socket
import subprocess
import sys

import pytest

from harness import ROOT, Accel, fifos
from procs import finish_together, free_port
from test_fallback import assert_fell_back
from test_parity import on_tcp, run_case

pytestmark = pytest.mark.parity

# What an option does to the stream. All but those that a lane does, too, keep the connection on TCP.
EFFECTS = ["peek_off", "inq", "stamps", "slow", "filter"]
SAME = ["inq"]


def assert_same(outputs, wanted):
    for end, got, should in zip(("client", "server"), outputs, wanted, strict=True):
        assert got.splitlines() == should.splitlines(), f"the {end} sees something else than on TCP"


@pytest.mark.parametrize("case", ["options-before", "options-during", "flags-during", "controls-during", "async-during", "zerocopy-during", "aio-during",
                                  "unshared-during", "sockmap-during",
                                  *(f"{case}-during" for case in EFFECTS),
                                  *(f"{case}-{when}" for case in SAME for when in ["before", "listener", "duplicate"])])  # fmt: skip
def test_on_a_lane(world, bed, case):
    """Where the lane ends for it, it has carried bytes before."""
    wanted = on_tcp(bed, "options", case)
    assert_same(run_case(world, "both", bed, "options", case, lane_bytes=100), wanted)


@pytest.mark.parametrize("case", ["async-before", *(f"{case}-{when}" for case in EFFECTS if case not in SAME
                                                    for when in ["before", "listener", "duplicate"])])  # fmt: skip
def test_before_a_lane(world, bed, case):
    wanted = on_tcp(bed, "options", case)
    accel, env = Accel(world, "both", ["--eager"]), fifos(world)

    def dialogue():
        port = free_port()
        server = accel.server("server", [bed / "options", "server", case, port], env=env).wait_listening(port)
        client = accel.client("client", [bed / "options", "client", case, port], env=env)
        return finish_together(client, server)

    assert_same(dialogue(), wanted)
    assert_fell_back(accel, "option_unsupported", more=dialogue)


def test_names_of_these_headers_have_a_row():
    """The table was made for newer headers than most machines have; should these here know more, it is found."""
    names = subprocess.run([sys.executable, ROOT / "ci" / "names", "/usr/include"], check=True, capture_output=True, text=True).stdout
    names = {line.split()[1] for line in names.splitlines() if not line.startswith("#")}
    rows = set(re.findall(r"\w+", (ROOT / "docs" / "sockets.md").read_text()))
    assert len(names) > 600 and names <= rows, names - rows


def has_mptcp():
    try:
        socket.socket(socket.AF_INET6, socket.SOCK_STREAM, socket.IPPROTO_MPTCP).close()
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_mptcp(), reason="this kernel has no MPTCP")
def test_mptcp_listener(world, bed):
    """Who comes by plain TCP has a plain TCP connection at both ends, and a lane. Who comes by MPTCP is not watched."""
    wanted = on_tcp(bed, "options", "mptcp-listener")
    outputs = run_case(world, "both", bed, "options", "mptcp-listener", lanes=1, lane_bytes=1000)
    assert_same(outputs, wanted)
    assert "protocol 6" in wanted[1] and "protocol 262" in wanted[1]
