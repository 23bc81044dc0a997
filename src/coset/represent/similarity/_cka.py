"""Centred kernel alignment modulo a group that acts on the channels.

CKA(X, Y) = HSIC(K, L)/sqrt(HSIC(K, K)·HSIC(L, L)) (Kornblith et al. 2019). Modulo O(C) the kernel is linear,
K_mn = Σ_cp x_mcp·x_ncp. Modulo G_ReLU (Godfrey et al. 2022, section 5) each channel's mean over examples and positions
is subtracted, the channel divided by its ℓ2 norm, and K_mn = max_c Σ_p x_mcp·x_ncp. That does not notice signs either.
Blocks that matrices mix are one unit, and made white first where these are not rotations: modulo GL(C) the biased CKA
is the mean of squared canonical correlations where there is one position.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from coset._batches import Repeated
from coset._checks import check_choice, is_count
from coset.errors import InputError
from coset.represent.channels import (
    Normalization,
    channel_statistics,
    check_pair,
    normalization,
    ordinary_features,
    straightened,
    straightening,
)
from coset.represent.similarity._hsic import FEWEST, HsicTerms, PairSums, check_examples, hsic_terms
from coset.represent.similarity.kernels import (
    KERNELS,
    UnitFeatures,
    centred,
    kernel_matrix,
    kernel_sums,
    linear_sums,
)
from coset.represent.unit_groups import Group, UnitGroup, group_on
from coset.running.moments import Moments

FORMS = ("auto", "features", "gram")
"""How the linear kernel is computed: by products of features, of examples (tiles of Gram matrices), or the cheaper."""


def cka(
    x: Tensor,
    y: Tensor,
    *,
    group: Group = "orthogonal",
    kernel: str | None = None,
    estimator: str = "unbiased",
    form: str = "auto",
    batches: int = 1,
) -> float:
    """The similarity of features x (N, C, *positions) and y (N, C', *positions') of the same examples; at most 1.

    ``group``: what the channels are compared modulo: "orthogonal", "permutation" (G_ReLU), another of ``GROUPS``, or
    what ``layer_group`` found at the layer. ``kernel``: of ``KERNELS``; by default "sum" modulo rotations and where
    no channels change places, else "max", which is not positive semidefinite: then CKA may be negative.
    ``estimator``: of HSIC, "unbiased" (4 examples or more) or "biased". ``form``: of the linear kernel. ``batches``:
    HSIC is averaged over so many nearly equal batches, in the order of the examples (shuffle them first if that order
    says anything), and one ratio is taken at the end. Everything is computed in float64; memory beside the features:
    tiles of the two kernels.
    """
    x, y = check_pair(x, y, positions=False)
    if not is_count(batches) or batches > len(x):
        raise InputError(f"batches is {batches!r}; expected a whole number from 1 to the number of examples, {len(x)}")
    check_examples(estimator, len(x))
    if len(x) // batches < FEWEST[estimator]:
        raise InputError(
            f"batches is {batches} for {len(x)} examples, {len(x) // batches} in a batch; the {estimator} HSIC needs "
            f"at least {FEWEST[estimator]}"
        )
    x, y = (
        ordinary_features(straightened(part, group, what, centred=True), group_on(group, part.shape[1], what))
        for part, what in ((x, "x"), (y, "y"))
    )
    pairs = list(zip(x.tensor_split(batches), y.tensor_split(batches), strict=True))
    return _of_checked(pairs, group, kernel, estimator, form)


def cka_of_batches(
    pairs: Iterable[tuple[Tensor, Tensor]],
    *,
    group: Group = "orthogonal",
    kernel: str | None = None,
    estimator: str = "unbiased",
    form: str = "auto",
) -> float:
    """``cka`` of features that come in batches (x, y), of which no two are held at once.

    The HSIC terms are averaged over batches, weighted by their examples, and one ratio is taken at the end (Nguyen et
    al. 2021). Means and norms of channels are those of all batches, so ``pairs`` is gone through twice or more: a list,
    or an object that begins anew with every ``iter``. Over random batches, unbiased terms have the expectation that
    they have on all examples at once.
    """
    if isinstance(pairs, Iterator):
        raise InputError("pairs is an iterator, which can be gone through once; expected a sequence of batches (x, y)")
    if not isinstance(pairs, Iterable):
        raise InputError(f"pairs is a {type(pairs).__name__}; expected a sequence of batches (x, y)")
    checked = Repeated(lambda: _checked(pairs))
    maps = [
        straightening(Repeated(partial(_column, checked, side)), group, "xy"[side], centred=True) for side in (0, 1)
    ]

    def straight() -> Iterator[tuple[Tensor, Tensor]]:
        for x, y in checked:
            yield maps[0](x), maps[1](y)

    return _of_checked(Repeated(straight), group, kernel, estimator, form)


def _of_checked(
    pairs: Iterable[tuple[Tensor, Tensor]], group: Group, kernel: str | None, estimator: str, form: str
) -> float:
    """CKA of batches of features (n, C, P) that have been checked."""
    check_choice("form", form, FORMS, quoted=True)
    left, right = (side_of(Repeated(partial(_column, pairs, number)), group, kernel, "xy"[number]) for number in (0, 1))
    terms, counts = [], []
    for number, (x, y) in enumerate(pairs):
        check_examples(estimator, len(x), f"pairs[{number}]")
        counts.append(len(x))
        if left.kernel == "sum":
            sums = _linear(left.ready(x), right.ready(y), form)
        else:
            sums = kernel_sums(left.by_unit(x), right.by_unit(y), left.kernel)
        terms.append(hsic_terms(sums, estimator))
    return mean_terms(terms, counts).ratio()


def default_kernel(group: UnitGroup) -> str:
    """The kernel that is invariant under ``group`` and knows most: the linear one if nothing but rotations mixes."""
    return "max" if group.permutes and not group.whole else "sum"


def shared_kernel(x: UnitGroup, y: UnitGroup) -> str:
    """The one kernel for a pair of layers on which these groups act, invariant under both.

    It is the groups' own where they have the same, "sum" where one of them mixes all channels, else "max": of
    channels that do not change places, too, it is a function.
    """
    own, other = default_kernel(x), default_kernel(y)
    return own if own == other else "sum" if x.whole or y.whole else "max"


def mean_terms(terms: Sequence[HsicTerms], counts: Sequence[int]) -> HsicTerms:
    """The terms averaged over batches with so many examples each: first the averages, then the ratio."""
    total = sum(counts)

    def mean(name: str) -> float:
        return float(sum(getattr(item, name) * count for item, count in zip(terms, counts, strict=True)) / total)

    return HsicTerms(mean("kl"), mean("kk"), mean("ll"), mean("size_k"), mean("size_l"))


def _checked(pairs: Iterable[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
    channels: tuple[int, int] | None = None
    for number, pair in enumerate(pairs):
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise InputError(f"pairs[{number}] is a {type(pair).__name__}; expected a batch (x, y) of two tensors")
        x, y = check_pair(*pair, positions=False, where=f" of pairs[{number}]")
        found = x.shape[1], y.shape[1]
        if channels is not None and found != channels:
            raise InputError(
                f"x and y of pairs[{number}] have {found[0]} and {found[1]} channels, those of pairs[0] "
                f"{channels[0]} and {channels[1]}; expected features of the same layers"
            )
        channels = found
        yield x, y


def _column(pairs: Iterable[tuple[Tensor, Tensor]], number: int) -> Iterator[Tensor]:
    return (pair[number] for pair in pairs)


@dataclass(frozen=True)
class Side:
    """What is done to the features of one side: their normalisation, if the kernel notices it, and the kernel."""

    group: UnitGroup
    kernel: str
    normalized: Normalization | None

    def ready(self, x: Tensor) -> Tensor:
        """Features (N, C, P) normalised."""
        return x if self.normalized is None else self.normalized(x)

    def by_unit(self, x: Tensor) -> UnitFeatures:
        """Features (N, C, P) that are normalised unit by unit as they are needed."""
        return UnitFeatures(x, self.group.units, self.normalized)

    def matrix(self, x: Tensor) -> Tensor:
        """The whole kernel matrix (N, N) of features (N, C, P)."""
        if self.kernel != "sum":
            return kernel_matrix(self.by_unit(x), self.kernel)
        flat = centred(self.ready(x).flatten(1))
        return flat @ flat.mT


def side_of(parts: Iterable[Tensor], group: Group, kernel: str | None, what: str) -> Side:
    """The side of features ``what`` that come in ``parts`` (n, C, P), of which means and norms are those of all."""
    first = next(iter(parts), None)
    if first is None:
        raise InputError("there are no features; expected at least one batch")
    acting = group_on(group, first.shape[1], what)
    return made_side(acting, kernel, lambda: channel_statistics(parts))


def whole_kernel(x: Tensor, group: Group, kernel: str | None, what: str) -> Tensor:
    """The kernel matrix (N, N) of checked features ``what`` (N, C, P), of any size."""
    x = ordinary_features(straightened(x, group, what, centred=True), group_on(group, x.shape[1], what))
    return side_of([x], group, kernel, what).matrix(x)


def made_side(group: UnitGroup, kernel: str | None, statistics: Callable[[], Moments]) -> Side:
    """A side from its group, its kernel (None: the group's own) and, where they matter, statistics of its channels."""
    kernel = kernel or default_kernel(group)
    check_choice("kernel", kernel, KERNELS, quoted=True)
    if group.whole and kernel != "sum":
        raise InputError(f"kernel is {kernel!r}, which rotations change; modulo {group} expected 'sum'")
    if kernel == "sum" and not group.scales:
        # HSIC centres what is linear by itself, and one scale for all cancels in the ratio.
        return Side(group, kernel, None)
    return Side(group, kernel, normalization(statistics(), group, centred=True))


def _linear(x: Tensor, y: Tensor, form: str) -> PairSums:
    """The sums of HSIC for linear kernels, in the cheaper form; means, which HSIC does not notice, are subtracted."""
    x, y = x.flatten(1), y.flatten(1)
    if form == "features" or (form == "auto" and features_are_cheaper(len(x), x.shape[1], y.shape[1])):
        return linear_sums(x, y)
    whole = [UnitFeatures(centred(z)[:, :, None], ((0, z.shape[1]),)) for z in (x, y)]
    return kernel_sums(whole[0], whole[1], "sum")


def features_are_cheaper(n: int, d: int, e: int) -> bool:
    """Whether XᵀY, XᵀX and YᵀY (d and e features) take fewer products than half of XXᵀ and YYᵀ (n examples)."""
    return n * (d * d + e * e + d * e) <= n * n * (d + e) / 2
