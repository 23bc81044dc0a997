"""Weights of any size: kernels between particles, distances of modes and pairs of units, against those of size 1."""

import math

import pytest
import torch

from coset.distribution import MeanField
from coset.models import MLP
from coset.posterior.inference.svgd import stein_direction
from coset.posterior.symmetrized import nearest_mode
from coset.posterior.symmetrized.units import compared
from declared import declared

SCALES = [
    *((torch.float32, c) for c in (1e-30, 1e-22, 1e22, 1e30)),
    *((torch.float64, c) for c in (1e-200, 1e-150, 1e150, 1e200)),
]


def draw(shape, seed, dtype, c=1.0):
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (noise.to(dtype).double() * c).to(dtype)


def tolerance(dtype):
    return 1e-5 if dtype == torch.float32 else 1e-11


@pytest.mark.parametrize(("dtype", "c"), SCALES)
def test_particles_repel_each_other_at_any_size(dtype, c):
    """Without scores φ is the repulsion, which is 1/c times that of particles of size 1."""
    found, expected = (
        stein_direction(draw((5, 3), 0, dtype, size), torch.zeros(5, 3, dtype=dtype))[0].double() for size in (c, 1.0)
    )
    assert float(expected.abs().min()) > 0
    torch.testing.assert_close(found * c, expected, rtol=tolerance(dtype), atol=tolerance(dtype))


@pytest.mark.parametrize(("dtype", "c"), SCALES)
def test_the_nearest_mode_is_as_far_as_the_weights_are_large(dtype, c):
    model = MLP(3, [5], 2)
    sym = declared(model)
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    far, plain = (
        {name: draw(shape, seed, dtype, size) for seed, (name, shape) in enumerate(shapes.items())} for size in (c, 1.0)
    )
    found, expected = (
        nearest_mode(sym, far),
        nearest_mode(sym, MeanField(plain, {n: p.abs() for n, p in plain.items()})),
    )
    assert found.units == expected.units
    assert found.distance / c == pytest.approx(expected.distance, rel=tolerance(dtype))
    assert found.norm / c == pytest.approx(expected.norm, rel=tolerance(dtype))


@pytest.mark.parametrize(("dtype", "c"), SCALES)
def test_densities_of_units_at_any_size(dtype, c):
    """log N(cx; cm, c²s²) = log N(x; m, s²) − k log c for units of k entries."""
    found, expected = (
        compared(draw((4, 3), 0, dtype, s), draw((4, 3), 1, dtype, s), draw((4, 3), 2, dtype, s).abs()).double()
        for s in (c, 1.0)
    )
    torch.testing.assert_close(
        found + 3 * math.log(c), expected, rtol=1e-4 if dtype == torch.float32 else 1e-10, atol=0
    )
