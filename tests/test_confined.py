"""Confinement: filters of system calls, limits, nothing in /proc. A program that may not do what a lane needs stays on TCP, and works."""

import os

import pytest

from harness import MODES, Accel
from procs import finish_together, free_port

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
