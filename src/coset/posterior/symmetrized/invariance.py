"""Whether permutations leave a posterior as it is, without which q^G is no better an approximation of it than q."""

import math
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from coset.errors import InputError
from coset.posterior.priors import Prior
from coset.posterior.problem import Problem
from coset.symmetry import Element, Symmetry

_RANDOM_ELEMENTS = 2
_DEVIATION = 0.5
_TOLERANCE = 1e-11


def check_invariant(sym: Symmetry, problem: Problem) -> None:
    """Refuse what the permutations of ``sym`` change: a prior (prop. 2.2), or tensors that are not inferred.

    The likelihood of permuted weights is the same only where buffers and frozen weights are permuted with them. If that
    changes them, the posterior given their values is another one. Every class that permutes is tried alone, so that the
    error can name it.
    """
    check_invariant_prior(sym, problem.prior, problem.layout.views(problem.start))
    _check_points(sym, problem.layout.fixed)


def check_invariant_prior(sym: Symmetry, prior: Prior, like: Mapping[str, Tensor]) -> None:
    """Refuse a prior whose log-density at random weights changes; ``like``: trained weights of one network."""
    generator = torch.Generator().manual_seed(0)
    start = {name: tensor.detach().double() for name, tensor in like.items()}
    weights = {
        name: tensor + _DEVIATION * torch.randn(tensor.shape, generator=generator, dtype=torch.float64).to(tensor)
        for name, tensor in start.items()
    }
    value = float(prior.log_prob(weights))
    if not math.isfinite(value):
        # A prior need not allow all weights; it does allow those of the network.
        weights = start
        value = float(prior.log_prob(weights))
    for name in sym.permuting:
        one = sym.restrict([name], scales=False, signs=False)
        for g in _elements(one, name, generator):
            moved = float(prior.log_prob(one.act(g, weights, partial=True)))
            if not math.isclose(moved, value, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE):
                raise InputError(
                    f"prior: its log-density changes from {value:.6g} by {moved - value:.3g} when units of the class "
                    f"'{name}' change places; expected a prior that is invariant under the permutations of sym"
                )


def _check_points(sym: Symmetry, points: Mapping[str, Tensor]) -> None:
    generator = torch.Generator().manual_seed(0)
    for name in sym.permuting:
        one = sym.restrict([name], scales=False, signs=False)
        for g in _elements(one, name, generator):
            moved = one.act(g, points, partial=True)
            changed = [key for key, tensor in points.items() if not torch.equal(moved[key], tensor)]
            if changed:
                raise InputError(
                    f"sym permutes the class '{name}', and '{changed[0]}', which is not inferred, differs between its "
                    f"units; expected the same for all of them, or sym.restrict to other classes"
                )


def _elements(sym: Symmetry, name: str, generator: torch.Generator) -> Iterator[Element]:
    """The exchange of two units and the shift of all by one, which make every permutation of a block; some at random.

    For several blocks, the first two in all of them at once.
    """
    shape = sym.shape(name)
    units = torch.arange(shape[-1])
    if shape[-1] > 1:
        for order in (torch.cat([units[:2].flip(0), units[2:]]), units.roll(-1)):
            yield sym.element({name: order.expand(shape).contiguous()})
    for _ in range(_RANDOM_ELEMENTS):
        yield sym.random(generator)
