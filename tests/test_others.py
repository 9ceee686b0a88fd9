"""Descriptors taken away from under a waiting thread, and thousands of descriptors."""

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
