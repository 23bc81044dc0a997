"""How sure a similarity is: bootstrap intervals over examples, and permutation tests against unrelated features."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from coset._checks import check_count
from coset._show.progress import progress
from coset.errors import InputError
from coset.represent.channels import check_pair, ordinary_features, straightened
from coset.represent.similarity._cka import cka, whole_kernel
from coset.represent.similarity._hsic import ESTIMATORS, ROUNDING, check_examples
from coset.represent.similarity._procrustes import procrustes
from coset.represent.similarity.procrustes_resampling import resampled_distances, sums_by_example
from coset.represent.unit_groups import Group

_AT_ONCE = 256
"""So many draws are computed in one product of matrices."""


@dataclass(frozen=True, eq=False)
class Interval:
    """A value with its bootstrap percentile interval: ``low`` to ``high`` at ``level``; ``draws`` (B,), the values of
    the resamples.
    """

    value: float
    low: float
    high: float
    level: float
    draws: Tensor


@dataclass(frozen=True, eq=False)
class PermutationTest:
    """A value, those of ``draws`` (B,) with the examples of y shuffled, and the chance ``p_value`` of one as similar.

    p = (1 + number of draws at least as similar)/(1 + B), which is valid for any B.
    """

    value: float
    p_value: float
    draws: Tensor


def cka_interval(
    x: Tensor,
    y: Tensor,
    *,
    seed: int,
    group: Group = "orthogonal",
    kernel: str | None = None,
    estimator: str = "unbiased",
    draws: int = 1000,
    level: float = 0.95,
) -> Interval:
    """``cka`` with a bootstrap interval over examples.

    Means and norms of channels are those of all examples. A pair of copies of one example is no pair of examples: for
    the unbiased estimator it counts as the mean (0, the kernel being centred), as the diagonal does. A resample is a
    vector of weights w, so that its HSIC are quadratic forms such as wᵀ(K∘L)w; two (N, N) matrices are held.
    """
    check_draws(draws, level)
    value = cka(x, y, group=group, kernel=kernel, estimator=estimator)
    k, l = _kernels(x, y, group, kernel, estimator)  # noqa: E741
    return kernel_interval(k, l, value, seed=seed, estimator=estimator, draws=draws, level=level)


def kernel_interval(
    k: Tensor,
    l: Tensor,  # noqa: E741
    value: float,
    *,
    seed: int,
    estimator: str = "unbiased",
    draws: int = 1000,
    level: float = 0.95,
) -> Interval:
    """``cka_interval`` of kernel matrices (N, N) that are centred already, and their CKA."""
    check_draws(draws, level)
    n = len(k)
    generator = torch.Generator().manual_seed(seed)
    products = (k * l, k * k, l * l)
    least = [ROUNDING * float(square.mean()) for square in products[1:]]
    found = []
    for count in _portions(draws):
        w = _weights(n, count, generator).to(k)
        rows = (w @ k, w @ l)
        pairs = ((rows[0], rows[1]), (rows[0], rows[0]), (rows[1], rows[1]))
        kl, kk, ll = (_weighted_hsic(w, m, a, b, estimator) for m, (a, b) in zip(products, pairs, strict=True))
        if bool((kk <= least[0]).any()) or bool((ll <= least[1]).any()):
            raise InputError(f"a resample of the {n} examples does not tell them apart; expected more examples")
        found.append((kl / (kk.sqrt() * ll.sqrt())).clamp(-1.0, 1.0))
    return percentile_interval(value, torch.cat(found), level)


def cka_test(
    x: Tensor,
    y: Tensor,
    *,
    seed: int,
    group: Group = "orthogonal",
    kernel: str | None = None,
    estimator: str = "unbiased",
    draws: int = 1000,
    show: bool | None = None,
) -> PermutationTest:
    """A test of whether ``cka`` is larger than that of features whose examples have nothing to do with each other."""
    check_draws(draws)
    value = cka(x, y, group=group, kernel=kernel, estimator=estimator)
    k, l = _kernels(x, y, group, kernel, estimator)  # noqa: E741
    scale = float(k.norm() * l.norm())
    # Both are centred: HSIC is this sum but for a factor, which the norms have too.
    return _permutation_test(
        value, lambda order: float((k * l[order][:, order]).sum()) / scale, k, seed, draws, show, larger=True
    )


def procrustes_interval(
    x: Tensor, y: Tensor, *, seed: int, group: Group = "permutation", draws: int = 1000, level: float = 0.95
) -> Interval:
    """The distance of ``procrustes`` with a bootstrap interval over examples.

    The element of the group is that of all examples, see ``procrustes_resampling``. The interval is
    for the examples' own population as far as these determine the element: with few examples for the channels the
    least distance itself is too small, and the interval is around it.
    """
    check_draws(draws, level)
    found = procrustes(x, y, group=group)
    x, y = check_pair(x, y, positions=True)
    x, y = (ordinary_features(straightened(part, group, what), found.group) for part, what in ((x, "x"), (y, "y")))
    generator = torch.Generator().manual_seed(seed)
    sums = sums_by_example(x, y, found)
    distances = [resampled_distances(_weights(len(x), count, generator), sums, found) for count in _portions(draws)]
    return percentile_interval(found.distance, torch.cat(distances), level)


def procrustes_test(
    x: Tensor,
    y: Tensor,
    *,
    seed: int,
    group: Group = "permutation",
    draws: int = 200,
    show: bool | None = None,
) -> PermutationTest:
    """A test of whether the distance of ``procrustes`` is smaller than with the examples of y shuffled."""
    check_draws(draws)
    value = procrustes(x, y, group=group).distance
    return _permutation_test(
        value, lambda order: procrustes(x, y[order], group=group).distance, y, seed, draws, show, larger=False
    )


def _kernels(x: Tensor, y: Tensor, group: Group, kernel: str | None, estimator: str) -> tuple[Tensor, Tensor]:
    """The kernel matrices of both sides, centred so that HSIC is a sum of products of entries."""
    x, y = check_pair(x, y, positions=False)
    check_examples(estimator, len(x))
    centre = _doubly_centred if estimator == "biased" else u_centred
    return centre(whole_kernel(x, group, kernel, "x")), centre(whole_kernel(y, group, kernel, "y"))


def _doubly_centred(k: Tensor) -> Tensor:
    return k - k.mean(0) - k.mean(1, keepdim=True) + k.mean()


def u_centred(k: Tensor) -> Tensor:
    """K̃_ij − r_i/(n−2) − r_j/(n−2) + s/((n−1)(n−2)) off the diagonal, 0 on it (Székely and Rizzo 2014).

    Its rows sum to 0, and the unbiased HSIC is Σ K̃∘L̃/(n(n−3)).
    """
    n = len(k)
    bare = k - torch.diag(k.diagonal())
    rows = bare.sum(1)
    rest = bare - rows[:, None] / (n - 2) - rows / (n - 2) + rows.sum() / ((n - 1) * (n - 2))
    return rest.fill_diagonal_(0)


def _weighted_hsic(w: Tensor, products: Tensor, rows_k: Tensor, rows_l: Tensor, estimator: str) -> Tensor:
    """HSIC of resamples w (B, N) from K∘L (N, N) and the rows wK, wL (B, N), as in ``_hsic``; (B,)."""
    inner = ((w @ products) * w).sum(1)
    totals = (w * rows_k).sum(1) * (w * rows_l).sum(1)
    found: Tensor = ESTIMATORS[estimator](inner, (w * rows_k * rows_l).sum(1), totals, w.shape[1])
    return found


def _weights(n: int, draws: int, generator: torch.Generator) -> Tensor:
    """How often each of n examples stands in each resample, (draws, n) in float64."""
    chosen = torch.randint(n, (draws, n), generator=generator)
    return torch.zeros(draws, n, dtype=torch.float64).scatter_add_(1, chosen, torch.ones(draws, n, dtype=torch.float64))


def _portions(draws: int) -> list[int]:
    return [min(_AT_ONCE, draws - start) for start in range(0, draws, _AT_ONCE)]


def check_draws(draws: int, level: float = 0.5) -> None:
    """Raise unless there are draws to take percentiles at ``level`` of."""
    check_count("draws", draws)
    if not 0 < level < 1:
        raise InputError(f"level is {level!r}; expected a number between 0 and 1")


def percentile_interval(value: float, draws: Tensor, level: float) -> Interval:
    """A value with the percentiles of its resamples (B,)."""
    ends = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=draws.dtype, device=draws.device)
    low, high = torch.quantile(draws, ends).tolist()
    return Interval(value, low, high, level, draws.cpu())


def _permutation_test(
    value: float,
    measure: Callable[[Tensor], float],
    like: Tensor,
    seed: int,
    draws: int,
    show: bool | None,
    larger: bool,
) -> PermutationTest:
    """``value`` beside what ``measure`` gives for random orders of the examples of ``like``; ``larger`` is similar."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    with progress("permutation test", draws, show=show) as bar:
        for _ in range(draws):
            found.append(measure(torch.randperm(len(like), generator=generator).to(like.device)))
            bar.advance()
    shuffled = torch.tensor(found, dtype=torch.float64)
    # A shuffle that changes nothing counts in spite of rounding.
    slack = 1e-12
    similar = shuffled >= value - slack if larger else shuffled <= value + slack
    return PermutationTest(value, (1 + int(similar.sum())) / (1 + draws), shuffled)
