"""What is matched: inner products ⟨left | g·right⟩ over parameters, for points and for posteriors."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from coset._checks import check_choice
from coset._magnitudes import equivariant
from coset.alignment._result import Params, Weights, deviations, points
from coset.distribution.rescaling import common_exponent, rescaled
from coset.errors import InputError
from coset.symmetry import Symmetry


@dataclass(frozen=True, eq=False)
class Term:
    """⟨left | g·right⟩ for one parameter; ``signed`` is False for what knows no signs: deviations, squares."""

    name: str
    left: Tensor
    right: Tensor
    signed: bool = True


Builder = Callable[[str, Tensor, Tensor, Tensor | None, Tensor | None], list[Term]]


def _wasserstein(name: str, m0: Tensor, m1: Tensor, s0: Tensor | None, s1: Tensor | None) -> list[Term]:
    """−W₂²/2 up to a constant: ⟨m0 | g·m1⟩ + ⟨s0 | |g|·s1⟩ (Rossi et al. 2023, eq. 19; a point has no deviation)."""
    terms = [Term(name, m0, m1)]
    return terms if s0 is None or s1 is None else [*terms, Term(name, s0, s1, signed=False)]


def _kl(name: str, m0: Tensor, m1: Tensor, s0: Tensor | None, s1: Tensor | None) -> list[Term]:
    """−KL[g#q1 ‖ q0] up to a constant: ⟨m0/s0² | g·m1⟩ − ½⟨1/s0² | g²·(s1² + m1²)⟩; the trace term depends on g."""
    precision, s1 = _precision(name, s0), _deviation(name, s1)
    return [Term(name, m0 * precision, m1), Term(name, -0.5 * precision, s1.square() + m1.square(), signed=False)]


def _kl_means(name: str, m0: Tensor, m1: Tensor, s0: Tensor | None, s1: Tensor | None) -> list[Term]:
    """−½‖(m0 − g·m1)/s0‖² up to a constant: the KL without its trace term (Rossi et al. 2023, appendix B)."""
    precision, s1 = _precision(name, s0), _deviation(name, s1)
    return [Term(name, m0 * precision, m1), Term(name, -0.5 * precision, m1.square(), signed=False)]


DIVERGENCES: dict[str, Builder] = {"wasserstein": _wasserstein, "kl": _kl, "kl-means": _kl_means}
"""What is maximised: "wasserstein" (for points Git Re-Basin's inner product), "kl" (exact), "kl-means"."""


def _deviation(name: str, deviation: Tensor | None) -> Tensor:
    if deviation is None:
        raise InputError(f"'{name}' has no deviations: the KL between points is infinite; use divergence='wasserstein'")
    return deviation


def _precision(name: str, deviation: Tensor | None) -> Tensor:
    deviation = _deviation(name, deviation)
    if bool((deviation == 0).any()):
        raise InputError(
            f"the reference has deviations of 0 in '{name}': its KL is infinite; use divergence='wasserstein'"
        )
    return deviation.square().reciprocal()


def build_terms(
    sym: Symmetry,
    reference: Weights,
    other: Weights,
    divergence: str = "wasserstein",
    buffers: bool = False,
    only: Collection[str] | None = None,
) -> list[Term]:
    """The terms of all trained parameters that move, each tensor once; ``buffers``: running statistics too.

    ``only``: of these parameters alone.

    In no narrower type than float32, and all in float64 where products in float32 would over- or underflow.
    """
    check_choice("divergence", divergence, DIVERGENCES)
    m0, m1 = points(reference), points(other)
    s0, s1 = deviations(reference), deviations(other)
    names = matched_names(sym, [m0, m1], buffers, deviations=[s0, s1], only=only)
    terms: list[Term] = []
    for least in (torch.float32, torch.float64):
        terms.clear()
        for name in names:
            left, right = _ready(m0[name], least), _ready(m1[name], least)
            spreads = [_ready(part[name], least).to(left) if name in part else None for part in (s0, s1)]
            terms += DIVERGENCES[divergence](name, left, right.to(left), *spreads)
        wrong = next((found for term in terms if (found := _out_of_range(term)) is not None), None)
        if wrong is None:
            return terms
    raise InputError(wrong)


def ordinary_pair(left: Weights, right: Weights, divergence: str) -> tuple[Weights, Weights, int]:
    """Both networks multiplied by powers of two, which changes no permutation, and e: products are 2ᵉ times theirs.

    A KL has no unit: there both are multiplied by the same.
    """
    if divergence != "wasserstein":
        both = common_exponent(left, right)
        return rescaled(left, both), rescaled(right, both), 0
    by = common_exponent(left), common_exponent(right)
    return rescaled(left, by[0]), rescaled(right, by[1]), sum(by)


def _out_of_range(term: Term) -> str | None:
    """Why scores of a term may not be numbers of its type: they, or their squares, are infinite, or all but 0."""
    left, right = (float(equivariant(_norm, part)) for part in (term.left, term.right))
    limits = torch.finfo(term.left.dtype)
    if not left * right < limits.max**0.5:
        return f"the products of '{term.name}' overflow {term.left.dtype}; expected numbers nearer to 1"
    # Of a score that counts there are as many products as entries, and each has its digits.
    if left and right and not left * right > term.left.numel() * limits.tiny / limits.eps:
        return (
            f"the products of '{term.name}' underflow {term.left.dtype} beside those of other parameters; expected "
            f"numbers that are larger, or 0"
        )
    return None


def _norm(tensor: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(tensor, dtype=torch.float64)
    return norm


def matched_names(
    sym: Symmetry,
    networks: Sequence[Params],
    buffers: bool,
    deviations: Sequence[Params] = (),
    only: Collection[str] | None = None,
) -> list[str]:
    """The floating parameters that move; tied weights count once.

    Two names are tied if they move alike and hold the same numbers in every network, in one piece of memory or not:
    weights that come from a file are no longer one tensor. ``deviations``: of posteriors, which must be the same too.
    """

    def tied(a: str, b: str) -> bool:
        spreads = [(part.get(a), part.get(b)) for part in deviations]
        return all(torch.equal(network[a], network[b]) for network in networks) and all(
            one is two is None or (one is not None and two is not None and torch.equal(one, two))
            for one, two in spreads
        )

    names: list[str] = []
    alike: dict[tuple[object, ...], list[str]] = {}
    for name, structure in sym.structures.items():
        if only is not None and name not in only:
            continue
        if not networks[0][name].is_floating_point() or (sym.parameters[name].buffer and not buffers):
            continue
        group = alike.setdefault((id(structure), sym.parameters[name].shape), [])
        if not any(tied(name, other) for other in group):
            group.append(name)
            names.append(name)
    return names


def _ready(tensor: Tensor, least: torch.dtype) -> Tensor:
    """Without its graph, and in no narrower type than ``least``: products of half precision lose the assignment."""
    detached = tensor.detach()
    return detached.to(torch.promote_types(detached.dtype, least))
