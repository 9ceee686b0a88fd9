"""Descriptors taken away from under a thread that waits or sends, and what else another thread does meanwhile; thousands of descriptors."""

import pytest

from harness import EAGER_MODES
from test_parity import on_tcp, run_case

pytestmark = pytest.mark.parity

# What the server says on a lane in place of what it says on TCP (COMPLIANCE.md).
ON_A_LANE = {"closed": "EBADF", "replaced": "EBADF", "signalled": "EBADF"}


@pytest.mark.parametrize("mode", EAGER_MODES)
@pytest.mark.parametrize("case", ["closed", "replaced", "signalled", "many"])
def test_case(world, bed, mode, case):
    client, server = on_tcp(bed, "others", case)
    if mode in ("both", "earned") and case in ON_A_LANE:
        was, *rest = server.splitlines()
        assert was.startswith("the waiting thread: ")
        server = "\n".join([f"the waiting thread: {ON_A_LANE[case]}", *rest])
    for end, got, should in zip(("client", "server"), run_case(world, mode, bed, "others", case), (client, server), strict=True):
        assert got.splitlines() == should.splitlines(), f"the {end} sees something else than it should"


# How many connections a case has.
LANES = {"resold": 16, "replaced": 16, "renumbered": 1, "retaken": 1, "unblocked": 2, "kin": 1, "unblocked-send": 1, "unshared": 2, "pool": 4}


@pytest.mark.parametrize("mode", EAGER_MODES)
@pytest.mark.parametrize("case", LANES)
def test_what_another_thread_does_meanwhile(world, bed, mode, case):
    """To the number of a send or of a set that is waited for, to O_NONBLOCK, with descriptors of its own, or as one of a pool."""
    client, server = on_tcp(bed, "numbers", case)
    if mode in ("both", "earned") and case in ("renumbered", "retaken"):
        server = server.replace("waiter: 1, word 7", "waiter: EBADF, word 0")
    said = run_case(world, mode, bed, "numbers", case, lanes=LANES[case])
    for end, got, should in zip(("client", "server"), said, (client, server), strict=True):
        assert got.splitlines() == should.splitlines(), f"the {end} sees something else than it should"
