"""Confinement: filters of system calls, limits, nothing in /proc. A program that may not do what a lane needs stays on TCP,
works, and is not slower for it."""

import os
import shutil
import signal

import pytest

from harness import LIBRARY, MODES, Accel
from procs import finish_together, free_port
from toll import MORE, Dialogue, bound, compare

CALLS = ["memfd_create", "eventfd2", "membarrier", "sendmsg", "recvmsg", "getsockopt", "epoll_create1", "epoll_ctl", "ioctl",
         "sched_getaffinity", "preadv2", "gettid", "rt_tgsigqueueinfo", "sched_yield", "uname"]  # fmt: skip
HOW = ["plain", "system-service", "unix", "nofile", "memory", "proc", *(f"no-{call}" for call in CALLS)]
# What takes nothing away that a lane needs.
FREE = ["plain", "system-service", "no-membarrier", "no-sched_getaffinity", "no-sched_yield", "no-preadv2", "no-rt_tgsigqueueinfo"]


def dialogue(world, bed, mode, how, when, confined):
    """Both ends talk to the end; `confined` of them are under `how` before they begin."""
    accel, port = Accel(world, mode, ["--eager"] if mode != "tcp" else []), free_port()

    def start(side):
        under = mode in (side, "both")
        argv = [bed / "confined", side, when, port]
        argv = [world.binary, "run", "--eager", "--", *argv] if under else argv
        argv = [bed / "confined", "wrap", how if side in confined else "plain", *argv]
        return world.start(side, argv, env={"SHUNPIKE_SOCKET": str(accel.broker.socket)} if under else None)

    server = start("server").wait_listening(port)
    assert finish_together(start("client"), server) == ["done\n", "done\n"]
    return accel


@pytest.mark.parametrize("mode", ["tcp", "both"])
@pytest.mark.parametrize("confined", [("client",), ("server",), ("client", "server")], ids="+".join)
@pytest.mark.parametrize("how", HOW)
def test_from_the_beginning(world, bed, mode, how, confined):
    if how == "proc" and os.getuid() != 0:
        pytest.skip("needs root to take /proc away")
    accel = dialogue(world, bed, mode, how, "plain", confined)
    if how in FREE and mode == "both":
        accel.verify(lane_bytes=10_000)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("when", ["filter", "strict"])
def test_by_the_program_itself(world, bed, mode, when):
    """The filter comes when lanes are open, and ends the program at any call but read, write, poll, close and exit."""
    dialogue(world, bed, mode, "plain", when, ())


def nobody(*argv):
    return ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--", *argv]


BOTH = ("client", "server")
# Why a connection is on TCP -> how its ends wait, and which of them have a library. The rest of the reason is in `kept_on_tcp`.
REASONS = {
    "stranger": (("read", "poll", "epoll"), ("client",)), "stranger-asks": (("read",), ("server",)),
    "no-broker": (("read", "poll", "epoll"), BOTH), "stopped": (("read", "poll"), BOTH), "off": (("read", "poll", "epoll"), BOTH),
    "unix": (("read",), BOTH), "nofile": (("read", "poll"), BOTH), "memory": (("read",), BOTH), "proc": (("read",), ("client",)),
    **{f"no-{call}": (("read",), BOTH) for call in ("memfd_create", "eventfd2", "sendmsg", "recvmsg", "getsockopt", "ioctl")},
    "chroot": (("chroot",), BOTH), "filter": (("filter",), BOTH), "user": (("read",), BOTH), "setuid": (("read",), BOTH),
}  # fmt: skip
TOLLS = [(reason, way, "eager") for reason, (ways, _) in REASONS.items() for way in ways]
TOLLS += [(reason, "read", "earned") for reason in ("stranger", "no-broker", "stopped", "no-getsockopt", "no-ioctl")]


def kept_on_tcp(world, bed, reason, way, setting):
    """Two dialogues, the second under Shunpike, in the same confinement; and the broker."""
    (world.directory / "broker.toml").write_text('[peers]\nallow = "same-user"\n')
    broker = world.broker("--config", world.directory / "broker.toml")
    if reason == "off":
        broker.tool("device", "set", "active", "off")
    if reason == "stopped":
        broker.proc.signal(signal.SIGSTOP)
    program, path = shutil.copy(bed / "turns", world.directory), broker.socket
    if reason == "setuid":
        os.chmod(program, 0o4755)
    if reason == "no-broker":
        path = world.directory / "none.sock"
    env = ["env", f"LD_PRELOAD={shutil.copy(LIBRARY, world.directory)}", f"SHUNPIKE_SOCKET={path}", f"SHUNPIKE_EAGER={int(setting == 'eager')}"]

    def confined(side):
        how = [bed / "confined", "wrap", reason if reason in HOW else "plain"]
        return nobody(*how) if reason == "setuid" or (reason, side) == ("user", "client") else how

    under = REASONS[reason][1]
    plain = Dialogue(world, "plain", program, way, confined)
    return plain, Dialogue(world, "under", program, way, lambda side: [*confined(side), *(env if side in under else [])]), broker


@pytest.mark.cost
@pytest.mark.parametrize("reason,way,setting", TOLLS, ids=map("-".join, TOLLS))
def test_costs_little_more_than_tcp(world, bed, reason, way, setting):
    """CPU time of both ends and the broker, beside the same dialogue without Shunpike; and system calls."""
    if os.getuid() != 0:
        pytest.skip("confines programs in ways that need root, and looks at other users'")
    plain, under, broker = kept_on_tcp(world, bed, reason, way, setting)
    try:
        for dialogue in 3 * (plain, under):
            dialogue.turn()
        # A set-user-ID program is started without it.
        assert under.has_library() == [reason != "setuid" and side in REASONS[reason][1] for side in BOTH]
        # Beside others a middle of many ratios is off by a few hundredths at times: what is too much is so three times.
        limit = bound(plain)
        for _ in range(3):
            ratio, low, high = compare(plain, under, [broker.proc], limit)
            if ratio <= limit:
                break
        # What is asked with growing pauses is asked often at first.
        for _ in range(4):
            more, calls = under.system_calls()
            if more <= MORE:
                break
    finally:
        broker.proc.signal(signal.SIGCONT)
    print(f"{ratio:.3f} ({low:.3f} to {high:.3f}; at most {limit:.3f}), {more:.4f} calls more a message, beside looks")
    assert ratio <= limit, f"times TCP's CPU: {ratio:.3f}, 95 % between {low:.3f} and {high:.3f}; at most {limit:.3f} here"
    assert more <= MORE, f"{more:.3f} system calls more for a message: {calls}"
    assert broker.stats().smc == 0, "stayed on TCP"
    under.end()
    plain.end()


@pytest.mark.parametrize("mode", ["tcp", "both"])
@pytest.mark.parametrize("how", ["filter", "probe", "unshare"])
def test_beside_threads_that_talk(world, bed, mode, how):
    """Connections of other threads are let go in the midst of their calls, which go on; a call that the kernel refuses lets go of none."""
    accel = Accel(world, mode, ["--eager"] if mode != "tcp" else [])
    for _ in range(5):
        port = free_port()
        server = accel.server("server", [bed / "filtered", "server", port]).wait_listening(port)
        client = accel.client("client", [bed / "filtered", "client", how, port])
        assert finish_together(client, server)[0] == "done\n"
    # Of 16 MB that both ends have sent.
    accel.verify(lanes=4, lane_bytes=15_000_000 if how == "probe" else 1)
