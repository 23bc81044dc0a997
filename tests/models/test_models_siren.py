"""Networks of sines: the formula, the bounds of their initial weights, and what is refused."""

import math

import pytest
import torch

from coset.errors import InputError
from coset.models import Siren, build


def test_output_is_the_formula() -> None:
    model = Siren(2, (5, 4), 3, omega=7.0).double()
    (a, b, c), x = model.layers, torch.rand(6, 2, dtype=torch.float64)
    first = torch.sin(7 * (x @ a.weight.T + a.bias))
    second = torch.sin(7 * (first @ b.weight.T + b.bias))
    torch.testing.assert_close(model(x), second @ c.weight.T + c.bias)


def test_a_half_turn_of_a_unit_leaves_the_function() -> None:
    model = Siren(2, (5, 4)).double()
    x = torch.rand(6, 2, dtype=torch.float64)
    before = model(x)
    with torch.no_grad():
        model.layers[0].bias[2] += math.pi / 30
        assert (model(x) - before).abs().max() > 1e-3
        model.layers[1].weight[:, 2] *= -1
        torch.testing.assert_close(model(x), before, rtol=0, atol=1e-12)


def test_initial_weights_fill_their_bounds() -> None:
    model = build("siren", seed=0, widths=(200, 200), omega=20.0)
    for layer, bound in zip(model.layers, (1 / 2, math.sqrt(6 / 200) / 20, math.sqrt(6 / 200) / 20), strict=True):
        assert 0.95 * bound < layer.weight.abs().max() <= bound


@pytest.mark.parametrize("options", [{"omega": 0}, {"omega": math.inf}, {"omega": "30"}, {"widths": (4, 0)}])
def test_bad_options_are_named(options: dict[str, object]) -> None:
    with pytest.raises(InputError, match=next(iter(options))):
        Siren(**options)  # type: ignore[arg-type]
