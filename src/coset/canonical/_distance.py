"""Distances between networks modulo their group."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from coset._checks import check_choice, check_count, check_seed
from coset._show.progress import progress
from coset.alignment import align_stack
from coset.alignment.inputs import check_same_names
from coset.canonical._form import canonicalize
from coset.errors import InputError
from coset.geometry import Manifold, manifold
from coset.symmetry import Symmetry
from coset.symmetry.enumeration import finite_elements, finite_order
from coset.symmetry.stacks import Stack, leading, move_stack

METRICS = ("geodesic", "euclidean")

LIMIT = 100_000
"""Groups of at most so many elements are gone through one by one."""

_HELD = 2**22
"""Numbers that are held at once where pairs are compared."""

_VIOLATED = 1e-9
"""A side that is longer by less than this part than the two others together is so by rounding."""


@dataclass(frozen=True, eq=False)
class Distances:
    """Distances (N, M) of networks modulo G, in float64.

    ``exact``: the minimum over the whole group was taken. Else they are bounds from above, the better of both
    directions of an alignment; ``violations`` is then the part of all triples, of networks among themselves, in which
    one side is longer than the two others together (None of two different stacks, or of fewer than three networks).
    """

    values: Tensor
    metric: str
    exact: bool
    violations: float | None

    def __repr__(self) -> str:
        shape = "×".join(map(str, self.values.shape))
        found = "" if self.violations is None else f", {self.violations:.2%} of triples violated"
        return f"Distances({shape}, {self.metric}, {'exact' if self.exact else 'bounds from above'}{found})"


def distance(
    sym: Symmetry,
    a: Mapping[str, Tensor],
    b: Mapping[str, Tensor],
    *,
    metric: str = "geodesic",
    bias: str = "outside",
    classifier: bool | str = False,
    limit: int = LIMIT,
    seed: int = 0,
) -> float:
    """min over g of d(canonical a, g·canonical b): how far two networks are apart modulo G; see ``distances``."""
    for what, params in (("a", a), ("b", b)):
        check_stack(what, params)
        if leading(sym, params, what) is not None:
            raise InputError(f"{what} has a leading axis; expected one network, or distances for many")
    options = {"metric": metric, "bias": bias, "classifier": classifier, "limit": limit, "seed": seed}
    one, two = ({name: tensor[None] for name, tensor in params.items()} for params in (a, b))
    return float(distances(sym, one, two, **options, show=False).values[0, 0])  # type: ignore[arg-type]


def distances(
    sym: Symmetry,
    networks: Stack,
    others: Stack | None = None,
    *,
    metric: str = "geodesic",
    bias: str = "outside",
    classifier: bool | str = False,
    limit: int = LIMIT,
    seed: int = 0,
    show: bool | None = None,
) -> Distances:
    """Distances between all networks of one stack, or between those of two, modulo the whole group.

    Networks are first brought to their canonical form, without translations and scales, where permutations and signs
    are isometries. d is the geodesic distance on the ``manifold`` of canonical weights, √(Σ r²φ² + ‖·‖²), or the
    Euclidean one of the same coordinates. Over a finite group of at most ``limit`` elements the minimum is exact, and d
    is a metric on the quotient; a unit without incoming weights is at the angle π/2 of all others, and keeps the scale
    that it has. Of larger groups, and where matrices or turns act, networks are aligned in both
    directions, and the nearer end counts. ``bias``, ``classifier``: as in ``canonicalize``.
    """
    check_choice("metric", metric, METRICS)
    check_count("limit", limit)
    check_seed(seed)
    for what, part in (("networks", networks), ("others", networks if others is None else others)):
        check_stack(what, part)
        if leading(sym, part, what) is None:
            raise InputError(f"{what} is a single network; expected a stack with a leading axis, or distance")
    if others is not None:
        check_same_names(networks, others, "networks", "others")
    forms = [
        canonicalize(sym, _double(sym, stack), bias=bias, classifier=classifier)
        for stack in (networks, others)
        if stack is not None
    ]
    here, there = forms[0].params, forms[-1].params
    space = manifold(sym, bias=bias, classifier=forms[0].last)
    measure = _Measure(space, metric)
    finite = not sym.continuous and not sym.turns and finite_order(sym) <= limit
    if finite:
        values = _exact(sym, measure, here, there, show)
    else:
        values = _aligned(sym, measure, here, there, seed, show)
        other = values if others is None else _aligned(sym, measure, there, here, seed, show)
        values = torch.minimum(values, other.T)
    if others is None:
        values.fill_diagonal_(0.0)
    violations = None if finite or others is not None or len(values) < 3 else triangle_violations(values)
    return Distances(values, metric, finite, violations)


def triangle_violations(values: Tensor) -> float:
    """The part of all triples i, j, k with d(i, j) > d(i, k) + d(k, j) for one order of them; ``values``: (N, N)."""
    if not isinstance(values, Tensor):
        raise InputError(f"values is a {type(values).__name__}; expected a tensor (N, N)")
    count = len(values) if values.ndim else 0
    if values.ndim != 2 or values.shape[1] != count or count < 3:
        raise InputError(f"values has shape {tuple(values.shape)}; expected (N, N) with N of at least 3")
    bad = 0
    for k in range(count):
        detour = values[:, k, None] + values[None, k, :]
        over = values > detour * (1 + _VIOLATED)
        over[k], over[:, k] = False, False
        over.fill_diagonal_(False)
        # Every triple has one longest side at most that is too long, and is met with it twice.
        bad += int(over.sum()) // 2
    return bad / (count * (count - 1) * (count - 2) / 6)


def check_stack(what: str, params: object) -> None:
    """Refuse what is no dict of parameters."""
    if not isinstance(params, Mapping):
        raise InputError(f"{what} is a {type(params).__name__}; expected a dict of parameters")


def _double(sym: Symmetry, stack: Stack) -> dict[str, Tensor]:
    """Of a stack all that is saved, in float64."""
    return {
        name: tensor.double() if tensor.is_floating_point() else tensor
        for name, tensor in stack.items()
        if name not in sym.unsaved
    }


@dataclass(frozen=True)
class _Measure:
    """d of points whose leading axes broadcast."""

    space: Manifold
    metric: str

    def __call__(self, x: Stack, y: Stack) -> Tensor:
        if self.metric == "geodesic":
            return self.space.distance(x, y)
        one, two = self.space.read(x, "networks"), self.space.read(y, "others")
        differences = {name: two[name] - one[name] for name in one}
        return self.space.norm(one, differences)


def _exact(sym: Symmetry, measure: _Measure, here: Stack, there: Stack, show: bool | None) -> Tensor:
    """The least over all permutations and signs, (N, M)."""
    rows, columns = len(next(iter(here.values()))), len(next(iter(there.values())))
    moving = {name: tensor for name, tensor in there.items() if name in sym.parameters}
    fixed = {name: tensor for name, tensor in there.items() if name not in sym.parameters}
    size = rows * sum(tensor[0].numel() for tensor in moving.values())
    ends = {name: tensor[:, None] for name, tensor in here.items()}
    result = torch.full((rows, columns), torch.inf, dtype=torch.float64)
    with progress("distances", columns, show=show) as bar:
        for column in range(columns):
            for elements in finite_elements(sym, max(1, _HELD // max(1, size))):
                count = len(next(iter((*elements.permutations.values(), *elements.signs.values())), torch.zeros(1)))
                images = {name: t[column].expand(count, *t.shape[1:]) for name, t in (moving | fixed).items()}
                if elements.permutations or elements.signs:
                    images |= move_stack(sym, elements, {name: images[name] for name in moving})
                least = measure(ends, {name: t[None] for name, t in images.items()}).amin(1)
                result[:, column] = torch.minimum(result[:, column], least)
            bar.advance()
    return result


def _aligned(sym: Symmetry, measure: _Measure, here: Stack, there: Stack, seed: int, show: bool | None) -> Tensor:
    """Of every network of the second stack brought to each of the first, (N, M)."""
    rows = len(next(iter(here.values())))
    result = []
    with progress("distances", rows, show=show) as bar:
        for row in range(rows):
            target = {name: tensor[row] for name, tensor in here.items()}
            found = align_stack(sym, target, there, seed=seed, show=False)
            result.append(measure({name: t[None] for name, t in target.items()}, found.aligned))
            bar.advance()
    return torch.stack(result)
