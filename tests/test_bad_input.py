"""Bad input: what the kernel answers with EFAULT, EINVAL or EBADF is answered so on a lane, too."""

import pytest

from harness import EAGER_MODES
from test_parity import on_tcp, run_case

pytestmark = pytest.mark.parity


@pytest.mark.parametrize("mode", EAGER_MODES)
@pytest.mark.parametrize("case", ["reads", "writes", "vectors", "others", "faults"])
def test_case(world, bed, mode, case):
    wanted = on_tcp(bed, "badinput", case)
    for end, got, should in zip(("client", "server"), run_case(world, mode, bed, "badinput", case), wanted, strict=True):
        assert got.splitlines() == should.splitlines(), f"the {end} sees something else than on TCP"
