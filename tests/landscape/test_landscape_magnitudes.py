"""Ends of any size: paths and planes of weights that are multiplied by c, against the same as they are."""

import re

import pytest
import torch

from coset.distribution import Gaussian, MeanField, Samples, normalize_scales
from coset.errors import InputError
from coset.landscape import geodesic, great_circle
from coset.landscape._collapse import activation_variances
from coset.landscape._plane import _basis
from coset.models import MLP
from declared import declared


def draw(shape, seed, c=1.0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * c


def gaussian(seed, c):
    root = draw((4, 4), seed)
    return Gaussian({"a": draw(4, seed, c)}, root @ root.T * c * c, ("a",))


@pytest.mark.parametrize("c", [1e-140, 1e-100, 1e100, 1e140])
def test_geodesics_of_covariances_of_any_size(c):
    """Half way: means times c, covariances times c², whose products are no numbers."""
    found, expected = (geodesic(gaussian(0, size), gaussian(1, size))(0.5) for size in (c, 1.0))
    torch.testing.assert_close(found.covariance / c / c, expected.covariance, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found.mean["a"] / c, expected.mean["a"], rtol=1e-12, atol=0)


def test_deviations_whose_squares_are_no_covariance_are_refused():
    q = MeanField({"a": draw(4, 0)}, {"a": draw(4, 1).abs() * 1e-200})
    with pytest.raises(InputError, match=r"whose squares are no numbers in torch.float64; its covariance expects"):
        geodesic(q, gaussian(0, 1.0))


@pytest.mark.parametrize("c", [1e-200, 1e-150, 1e150, 1e200])
def test_partners_of_draws_of_any_size(c):
    start, end = (Samples({"a": draw((1, 6, 3), seed)}) for seed in (0, 1))
    far = [Samples({"a": samples.params["a"] * c}) for samples in (start, end)]
    expected = geodesic(start, end).partners
    assert expected.tolist() != list(range(6))
    assert geodesic(*far).partners.tolist() == expected.tolist()


@pytest.mark.parametrize("c", [1e-200, 1e-150, 1e150, 1e200])
def test_planes_through_networks_of_any_size(c):
    flats = draw((3, 7), 0)
    torch.testing.assert_close(_basis(flats * c, 1e-16), _basis(flats, 1e-16), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("c", [1e-200, 1e200])
def test_units_off_their_sphere_are_told_with_their_norm(c):
    """One as small as this does not count as one that vanishes."""
    model = MLP(3, [4], 2)
    sym = declared(model)
    ends = []
    for seed in (0, 1):
        shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
        params = {name: draw(shape, 10 * seed + n) for n, (name, shape) in enumerate(shapes.items())}
        ends.append(dict(normalize_scales(sym, params)[0]))
    for end in ends:
        end["layers.0.weight"] = end["layers.0.weight"].clone()
        end["layers.0.weight"][2] *= c
    with pytest.raises(InputError, match=re.escape(f"unit 2 of 'h1', in 'layers.0.weight', have norm {c:g} at the st")):
        great_circle(ends[0], ends[1], sym)


def test_activations_whose_variance_is_no_number_are_refused():
    model = MLP(3, [4], 2).double()
    params = [{name: draw(t.shape, s) for name, t in model.state_dict().items()} for s in (0, 1)]
    small = [{name: tensor * 1e-200 for name, tensor in part.items()} for part in params]
    with pytest.raises(InputError, match=r"layer 'layers.0' has activations that differ by .* whose squares"):
        activation_variances(model, small, draw((9, 3), 2))
