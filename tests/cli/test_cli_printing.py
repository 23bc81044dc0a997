"""How numbers are printed."""

import pytest

from coset.cli.printing import decimals


@pytest.mark.parametrize(
    ("value", "told"), [(-2.7756e-15, "0.000"), (-0.0, "0.000"), (-0.0004, "0.000"), (-0.0006, "-0.001"), (1, "1.000")]
)
def test_what_rounds_to_0_is_not_negative(value, told):
    assert decimals(value, 3) == told
