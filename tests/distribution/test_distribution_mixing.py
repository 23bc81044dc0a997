"""Gaussians with a dense covariance under matrices that mix units."""

import pytest
import torch

from coset.distribution import Gaussian, LowRank, MeanField
from coset.errors import InputError
from mixing_networks import setting


def gaussian(params, names, seed=0):
    size = sum(params[name].numel() for name in names)
    factor = torch.randn(size, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return Gaussian(params, factor @ factor.T / size, names)


def linear_part(sym, g, params, names):
    """∂(g·θ)/∂θ of the named parameters, (D, D), by forward derivatives."""
    sizes = [params[name].numel() for name in names]

    def moved(vector):
        parts = zip(names, vector.split(sizes), strict=True)
        point = {**params, **{name: part.reshape(params[name].shape) for name, part in parts}}
        return torch.cat([sym.act(g, point)[name].flatten() for name in names])

    return torch.func.jacfwd(moved)(torch.cat([params[name].flatten() for name in names]))


@pytest.mark.parametrize("name", ["low-rank adapter", "bottleneck", "convolutions", "heads"])
def test_the_covariance_becomes_that_of_the_moved_weights(name):
    _, sym, params, _ = setting(name)
    names = tuple(key for key in params if params[key].numel() <= 60)
    g = sym.random(torch.Generator().manual_seed(2))
    q = gaussian(params, names)
    moved = sym.act(g, q)
    a = linear_part(sym, g, params, names)
    torch.testing.assert_close(moved.covariance, a @ q.covariance @ a.T)
    torch.testing.assert_close(dict(moved.mean), sym.act(g, params))
    back = sym.act(sym.inverse(g), moved)
    torch.testing.assert_close(back.covariance, q.covariance)


def test_behind_a_gain_that_is_a_point_it_is_linear_and_behind_one_that_varies_not():
    _, sym, params, _ = setting("rms norm")
    g = sym.random(torch.Generator().manual_seed(2))
    names = ("words.weight", "head.weight")
    q = gaussian(params, names)
    a = linear_part(sym, g, params, names)
    torch.testing.assert_close(sym.act(g, q).covariance, a @ q.covariance @ a.T)
    with pytest.raises(InputError, match=r"behind 'norm\.weight', which varies"):
        sym.act(g, gaussian(params, (*names, "norm.weight")))


def test_a_covariance_keeps_its_type():
    _, sym, params, _ = setting("low-rank adapter")
    single = {name: tensor.float() for name, tensor in params.items()}
    g = sym.random(torch.Generator().manual_seed(2))
    names = ("down.weight", "up.weight")
    wide, narrow = gaussian(params, names), gaussian(params, names)
    moved = sym.act(g, Gaussian(single, narrow.covariance, names))
    assert moved.covariance.dtype == torch.float64
    torch.testing.assert_close(moved.covariance, sym.act(g, wide).covariance)


def test_families_that_are_not_closed_refuse():
    _, sym, params, _ = setting("low-rank adapter")
    g = sym.random(torch.Generator().manual_seed(2))
    ones = {name: torch.ones_like(tensor) for name, tensor in params.items()}
    with pytest.raises(InputError, match=r"mixes the units of .*samples or a Gaussian"):
        sym.act(g, MeanField(params, ones))
    low = LowRank(params, ones, {name: torch.stack([tensor, tensor]) for name, tensor in ones.items()})
    with pytest.raises(InputError, match="mixes the units of"):
        sym.act(g, low)
