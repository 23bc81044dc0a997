"""Densities modulo the group: what a distribution over weights gives to the orbit of a network."""

import math
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from coset._checks import check_count, check_seed, keyword_options
from coset.distribution import Distribution
from coset.distribution.contract import require
from coset.errors import InputError
from coset.posterior.symmetrized import all_permutations, permutation_count
from coset.symmetry import Element, Symmetry
from coset.symmetry.stacks import move_stack, stacked_elements
from coset.train.randomness import stream

_ENTRIES = 2**22
"""So many weights of moved networks are held at once."""


def log_prob_modulo(
    sym: Symmetry,
    q: Distribution,
    params: Mapping[str, Tensor],
    *,
    draws: int | None = None,
    seed: int = 0,
    **options: Any,
) -> Tensor:
    """log q^G(θ) = log (1/|G|) Σ_g q(g⁻¹·θ) over the permutations of ``sym``, in nats (Gelberg et al. 2024, eq. 4).

    ``q``: any distribution with a density; ``params``: all parameters of one network, or (N, *shape) each; (N,) in
    float64. ``options`` are those of ``q.log_prob``, which gets the ``seed``, too, where it has one. Scales and signs
    of ``sym`` play no part.

    Without ``draws`` the sum is exact, over groups of at most 100,000 elements. With ``draws`` K it is the estimate

        log (1/K)(q(θ) + Σ_{j<K} q(g_j⁻¹·θ)),   g_j uniform, the same for all networks.

    Of θ ~ q its mean is an upper bound of E log q^G(θ), by at most log |G|, which decreases to it with K: it is −H^K,
    the entropy's bound. Of any θ its mean is at most log q^G(θ) + log((|G| + K − 1)/K): where no drawn element meets a
    mode of q, as nearly always in large groups, it is log q(θ) − log K, whatever q^G(θ) is.
    """
    require(q, Distribution, "q", "a distribution over weights with a density")
    check_seed(seed)
    finite = sym.restrict(scales=False, signs=False)
    stack, single = _stack(finite, params)
    if draws is None:
        elements, count = all_permutations(finite), permutation_count(finite)
    else:
        count = check_count("draws", draws)
        elements = _drawn(finite, count, seed)
    rows = len(next(iter(stack.values())))
    size = sum(t[0].numel() for t in stack.values() if t.is_floating_point())
    most = max(1, _ENTRIES // (rows * size))
    if "seed" in keyword_options(q.log_prob):
        options = {"seed": seed, **options}
    total: Tensor | None = None
    # With g also g⁻¹ is gone through, and it is as likely to be drawn.
    while part := list(islice(elements, most)):
        logs = q.log_prob(_moved(finite, part, stack), **options).double().reshape(len(part), rows)
        logs = torch.logsumexp(logs, 0)
        total = logs if total is None else torch.logaddexp(total, logs)
    assert total is not None
    found = total - math.log(count)
    return found[0] if single else found


def _stack(sym: Symmetry, params: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], bool]:
    """Networks (N, *shape), and whether it was a single one."""
    lead = None
    for name, structure in sym.parameters.items():
        if name in params:
            lead = params[name].ndim - len(structure.shape)
            break
    if lead not in (0, 1):
        raise InputError("params are no network of sym, nor a stack of some; expected (*shape) or (N, *shape) each")
    return {name: t if lead else t[None] for name, t in params.items()}, not lead


def _drawn(sym: Symmetry, count: int, seed: int) -> Iterator[Element]:
    """The neutral element, and random ones."""
    generator = stream("elements of a density", seed, 0)
    neutral = {name: torch.arange(sym.shape(name)[-1]).expand(sym.shape(name)).clone() for name in sym.permuting}
    yield Element(neutral)
    for _ in range(count - 1):
        yield sym.random(generator)


def _moved(sym: Symmetry, elements: list[Element], stack: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Every network moved by every element, (elements · N, *shape), element by element."""
    rows, count = len(next(iter(stack.values()))), len(elements)
    whole = {name: t.expand(count, *t.shape).reshape(count * rows, *t.shape[1:]) for name, t in stack.items()}
    known = {name: t for name, t in whole.items() if name in sym.parameters}
    joined = stacked_elements(elements)
    every = Element({name: p.repeat_interleave(rows, 0) for name, p in joined.permutations.items()})
    return {**whole, **move_stack(sym, every, known)}
