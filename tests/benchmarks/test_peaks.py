"""Peak memory of fits, each in a process of its own, against their plans."""

import sys

import pytest

from benchmarks import peaks


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize(
    "name",
    [
        "MRF, dense",
        "MRF, sparse, r=0.5",
        "MRF, sparse, large blocks",
        "MRF, 90 MB",
        "ItemKNN",
    ],
)
def test_a_fit_holds_what_its_plan_says(name: str) -> None:
    plan, peak = peaks.measure(name, scale=0.6 if name in ("MRF, dense", "MRF, sparse, r=0.5") else 1.0)
    assert peaks.fits(plan, peak), f"planned {plan / 1e6:.0f} MB, peak {peak / 1e6:.0f} MB"
