"""All points of a path at once: the points one by one, for networks and for posteriors."""

import pytest
import torch
from torch import nn
from torch.func import functional_call, vmap

from coset.distribution import MeanField
from coset.errors import InputError
from coset.landscape import along, geodesic, linear, mixture
from coset.posterior.prediction.draws import draws_of

TAUS = (0.0, 0.3, 0.5, 1.0)


def _posterior(seed):
    generator = torch.Generator().manual_seed(seed)
    mean = {"weight": torch.randn(2, 3, generator=generator, dtype=torch.float64), "bias": torch.ones(2).double()}
    return MeanField(
        mean, {name: torch.rand(tensor.shape, generator=generator).double() for name, tensor in mean.items()}
    )


def test_points_are_those_of_the_path():
    path = linear(_posterior(0).mean, _posterior(1).mean)
    found = along(path, TAUS)
    assert (found.chains, found.draws) == (4, 1)
    for number, tau in enumerate(TAUS):
        for name, tensor in path(tau).items():
            assert torch.equal(found.params[name][number, 0], tensor)


@pytest.mark.parametrize("kind", [geodesic, mixture])
def test_draws_are_those_at_every_tau(kind):
    """Also where the path ends, and one network evaluates them all."""
    path = kind(_posterior(0), _posterior(1))
    found = along(path, TAUS, samples=5, seed=3)
    model, x = nn.Linear(3, 2).double(), torch.randn(4, 3, dtype=torch.float64)
    together = vmap(vmap(lambda params: functional_call(model, params, (x,))))(dict(found.params))
    for number, tau in enumerate(TAUS):
        draws = draws_of(path(tau), 5, 3)
        for draw in range(5):
            alone = functional_call(model, dict(draws.draw(draw)), (x,))
            torch.testing.assert_close(together[number, draw], alone, rtol=1e-12, atol=1e-12)


def test_bad_input_is_refused():
    path = linear(_posterior(0).mean, _posterior(1).mean)
    with pytest.raises(InputError, match=r"taus is \(\)"):
        along(path, ())
    with pytest.raises(InputError, match="tau is 2"):
        along(path, (0.5, 2))
    with pytest.raises(InputError, match="path is a dict"):
        along({}, (0.5,))
