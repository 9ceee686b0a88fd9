"""Calls x flags x sizes round what is there, and what the socket says of itself."""

import pytest

from harness import EAGER_MODES
from test_parity import on_tcp, run_case

pytestmark = pytest.mark.parity


@pytest.mark.parametrize("mode", EAGER_MODES)
@pytest.mark.parametrize("case", ["reads", "says", "large"])
def test_case(world, bed, mode, case):
    wanted = on_tcp(bed, "matrix", case)
    for end, got, should in zip(("client", "server"), run_case(world, mode, bed, "matrix", case), wanted, strict=True):
        assert got.splitlines() == should.splitlines(), f"the {end} sees something else than on TCP"
