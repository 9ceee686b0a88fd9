"""All that a program may ask of a socket: each row of docs/sockets.md that can be tried does on a lane what it does on TCP, set before the
lane, during it, on the listening socket or on a duplicate, by another program, or before the socket is connected once more."""

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
# Those whose value is one, which another program can be told of.
NUMBERS = ["peek_off", "inq", "stamps", "slow"]


def assert_same(outputs, wanted):
    for end, got, should in zip(("client", "server"), outputs, wanted, strict=True):
        assert got.splitlines() == should.splitlines(), f"the {end} sees something else than on TCP"


@pytest.mark.parametrize("case", ["options-before", "options-during", "flags-before", "flags-during", "controls-before", "controls-during", "async-during", "zerocopy-during", "aio-during",
                                  "unshared-during", "sockmap-during", "rare-before", "rare-during",
                                  *(f"{case}-during" for case in EFFECTS),
                                  *(f"{case}-{when}" for case in SAME for when in ["before", "listener", "spawned", "duplicate", "given", "anew"])])  # fmt: skip
def test_on_a_lane(world, bed, case):
    """Where the lane ends for it, it has carried bytes before."""
    wanted = on_tcp(bed, "options", case)
    assert_same(run_case(world, "both", bed, "options", case, lane_bytes=100), wanted)


@pytest.mark.parametrize("case", ["async-before", *(f"{case}-{when}" for case in EFFECTS if case not in SAME
                                                    for when in ["before", "listener", "duplicate", "anew"]
                                    # The kernel forgets this one as it dissolves the connection.
                                    if (case, when) != ("peek_off", "anew")),
                                  *(f"{case}-{when}" for case in NUMBERS if case not in SAME for when in ["spawned", "given"])])  # fmt: skip
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


# System calls that programs make by libc's functions of other names, and those that a test makes in their place.
OTHERWISE = {
    "io_pgetevents": "io_getevents", "io_cancel": "io_submit", "tkill": "pthread_kill", "rt_sigqueueinfo": "kill", "pidfd_send_signal": "kill",
    "setregid": "setgid", "setfsuid": "setuid", "setfsgid": "setgid", 
    "futex_waitv": "pthread_mutex_lock", "futex_wake": "pthread_mutex_lock", "futex_wait": "pthread_mutex_lock", "futex_requeue": "pthread_cond_wait",
    "set_robust_list": "pthread_create", "get_robust_list": "pthread_create",
} | dict.fromkeys(["fsconfig", "fsopen", "fsmount", "fspick", "move_mount", "open_tree", "open_tree_attr", "mount_setattr", "umount2"], "mount")  # fmt: skip


def test_each_call_that_does_something_to_a_lane_is_tried():
    """... by some program of these tests, so that one that gets a row gets a test."""
    page = (ROOT / "docs" / "sockets.md").read_text()
    rows = [line.split("|")[1:3] for line in page[page.index("## System calls") :].splitlines() if line.startswith("| ")]
    calls = {name for names, does in rows if does.strip() not in ("nothing to do", "what becomes of a lane") for name in re.findall(r"\w+", names)}
    places = ("tests/programs/*.[ch]", "tests/programs/*.py", "tests/*.py", "tests/differential/src/**/*.rs")
    tried = set(re.findall(r"\w+", "\n".join(path.read_text() for place in places for path in ROOT.glob(place) if path.name not in ("test_options.py", "surface.rs"))))
    is_tried = lambda name: name in tried or f"SYS_{name}" in tried
    missing = {name for name in calls if not is_tried(OTHERWISE.get(name, name))}
    assert len(calls) > 60 and not missing, missing
    assert not {name for name in OTHERWISE if name not in calls or is_tried(name)}, "they need no other name"


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
