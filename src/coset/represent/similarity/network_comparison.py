"""Two networks compared layer by layer, modulo each layer's own group and modulo rotations, on the same examples."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from coset._batches import BATCH_SIZE
from coset._show.progress import progress
from coset.errors import InputError
from coset.represent._features import ChannelAxis, features
from coset.represent._layer_group import named_group
from coset.represent.channels import check_features
from coset.represent.similarity._advice import Advice, advice
from coset.represent.similarity._cka import shared_kernel, whole_kernel
from coset.represent.similarity._hsic import check_examples, hsic_terms, sums_of_matrices
from coset.represent.similarity.layer_matrix import Kernels, LayerMatrix
from coset.represent.similarity.resampling import Interval, kernel_interval, procrustes_interval, u_centred
from coset.represent.unit_groups import Group, UnitGroup
from coset.running import check_layers

WAYS = ("own", "orthogonal")
"""Modulo what layers are compared: the group that acts on each, and O(C)."""

_Held = list[dict[str, Tensor]]
"""Of each layer the centred kernel matrices (N, N), by name of the kernel."""

_KEPT = 1 << 27
"""So many entries of features are held at a time, unless a single pair of layers has more."""


@dataclass(frozen=True, eq=False)
class LayerPair:
    """A layer of x and one of y: how similar, by ``WAYS``, with bootstrap intervals over examples.

    ``kernel``: that of CKA modulo their own groups, the same for both; modulo O(C) it is "sum". ``procrustes``: the
    similarity 1 − d, None where it is not defined, and then ``note`` says why.
    """

    layer_x: str
    layer_y: str
    advice_x: Advice
    advice_y: Advice
    kernel: str
    cka: Mapping[str, Interval]
    procrustes: Mapping[str, Interval | None]
    note: str | None


@dataclass(frozen=True, eq=False)
class NetworkComparison:
    """``pairs``: the layers compared one by one; ``matrices``: CKA of every layer of x with every one of y, by
    ``WAYS``, on so many ``examples``.
    """

    pairs: tuple[LayerPair, ...]
    matrices: Mapping[str, LayerMatrix]
    examples: int


def compare_networks(
    model_x: nn.Module,
    model_y: nn.Module,
    inputs: Tensor,
    groups_x: Mapping[str, UnitGroup],
    groups_y: Mapping[str, UnitGroup] | None = None,
    *,
    seed: int,
    inputs_y: Tensor | None = None,
    params_x: Mapping[str, Tensor] | None = None,
    params_y: Mapping[str, Tensor] | None = None,
    channel_axis: ChannelAxis = None,
    draws: int = 1000,
    level: float = 0.95,
    batch_size: int = BATCH_SIZE,
    called: tuple[str, str] = ("x", "y"),
    show: bool | None = None,
) -> NetworkComparison:
    """Compare two networks on ``inputs``: CKA and Procrustes similarity modulo each layer's own group and modulo O(C).

    ``groups_x``, ``groups_y``: name of the layer → its group, as ``layer_groups`` finds them; the k-th layers of both
    are a pair, by default the same of both networks. ``inputs_y``: the same examples as y takes them, where that is
    not as x does. ``params_x``, ``params_y``: weights in place of the models' own. CKA of any two layers has one kernel
    on both sides (``shared_kernel``) and the unbiased HSIC; all kernels are held, four (N, N) matrices for every pair
    of layers, and one more for each layer that has another kernel with some others. ``called``: the networks' names in
    complaints.
    """
    others = groups_x if groups_y is None else groups_y
    layers = check_layers(model_x, tuple(groups_x)), check_layers(model_y, tuple(others))
    if len(groups_x) != len(others):
        raise InputError(f"groups_x has {len(groups_x)} layers and groups_y {len(others)}; expected pairs of layers")
    both = inputs, inputs if inputs_y is None else inputs_y
    if len(both[0]) != len(both[1]):
        raise InputError(f"inputs has {len(both[0])} examples and inputs_y {len(both[1])}; expected the same examples")
    check_examples("unbiased", len(inputs), "inputs")
    runs = tuple(
        partial(features, model, params=params, channel_axis=channel_axis, batch_size=batch_size, show=False)
        for model, params in ((model_x, params_x), (model_y, params_y))
    )
    kernels: dict[str, Kernels] = {
        "own": tuple(tuple(shared_kernel(x, y) for y in others.values()) for x in groups_x.values()),
        "orthogonal": (("sum",) * len(others),) * len(groups_x),
    }
    held: dict[str, tuple[_Held, _Held]] = {way: ([], []) for way in WAYS}
    similar = []
    with progress("comparing layers", len(groups_x), show=show) as bar:
        for place, (names, pair) in enumerate(_features(runs, layers, both)):
            acting = groups_x[names[0]], others[names[1]]
            wanted = set(kernels["own"][place]), {row[place] for row in kernels["own"]}
            for side, (name, whole, group) in enumerate(zip(names, pair, acting, strict=True)):
                what = f"layer '{name}' of {called[side]}"
                held["own"][side].append({kernel: _kernel(whole, group, kernel, what) for kernel in wanted[side]})
                held["orthogonal"][side].append({"sum": _kernel(whole, "orthogonal", "sum", what)})
            similar.append(_procrustes(*pair, acting, draws, level, seed))
            bar.advance()
    tables = {way: _table(*held[way], kernels[way]) for way in WAYS}

    def cka(place: int) -> dict[str, Interval]:
        found = {}
        for way, sides in held.items():
            x, y = (side[place][kernels[way][place][place]] for side in sides)
            value = float(tables[way][place, place])
            found[way] = kernel_interval(x, y, value, seed=seed, draws=draws, level=level)
        return found

    pairs = tuple(
        LayerPair(
            x, y, advice(groups_x[x]), advice(others[y]), kernels["own"][place][place], cka(place), *similar[place]
        )
        for place, (x, y) in enumerate(zip(*layers, strict=True))
    )
    matrices = {way: LayerMatrix("cka", *layers, tables[way], kernels[way]) for way in WAYS}
    return NetworkComparison(pairs, matrices, len(inputs))


def _features(
    runs: tuple[Callable[..., dict[str, Tensor]], ...],
    layers: tuple[tuple[str, ...], tuple[str, ...]],
    inputs: tuple[Tensor, Tensor],
) -> Iterator[tuple[tuple[str, str], tuple[Tensor, Tensor]]]:
    """The names and features of one pair of layers after the other; as many are computed at once as can be held."""
    sides = tuple(zip(runs, inputs, layers, strict=True))
    few = [run(x[:1], own) for run, x, own in sides]
    pairs = tuple(zip(*layers, strict=True))
    for portion in _portions([(few[0][x].numel() + few[1][y].numel()) * len(inputs[0]) for x, y in pairs]):
        found = [run(x, own[portion]) for run, x, own in sides]
        for x, y in pairs[portion]:
            yield (x, y), (found[0].pop(x), found[1].pop(y))


def _portions(sizes: list[int]) -> Iterator[slice]:
    """Runs of pairs of layers that are held at once."""
    start, held = 0, 0
    for place, size in enumerate(sizes):
        if place > start and held + size > _KEPT:
            yield slice(start, place)
            start, held = place, 0
        held += size
    yield slice(start, len(sizes))


def _kernel(x: Tensor, group: Group, kernel: str, what: str) -> Tensor:
    """The centred kernel matrix (N, N) with norm 1, so that CKA is a sum of products; raises where there is none."""
    matrix = whole_kernel(check_features(x, what), group, kernel, what)
    hsic_terms(sums_of_matrices(matrix, matrix), "unbiased").ratio(what, what)
    centred = u_centred(matrix)
    norm: Tensor = torch.linalg.vector_norm(centred)
    return centred / norm


def _table(x: _Held, y: _Held, kernels: Kernels) -> Tensor:
    """CKA of all pairs of centred kernels with norm 1, each pair with its kernel; beyond ±1 is rounding."""
    rows = [
        [torch.vdot(a[kernel].flatten(), b[kernel].flatten()) for kernel, b in zip(row, y, strict=True)]
        for row, a in zip(kernels, x, strict=True)
    ]
    return torch.tensor(rows, dtype=torch.float64).clamp(-1.0, 1.0)


def _procrustes(
    x: Tensor, y: Tensor, groups: tuple[UnitGroup, UnitGroup], draws: int, level: float, seed: int
) -> tuple[dict[str, Interval | None], str | None]:
    """Similarities by ``WAYS``, and why there is none: positions must agree, and one group must act on both."""
    if x.shape[2:].numel() != y.shape[2:].numel():
        return dict.fromkeys(WAYS), "different positions, Procrustes compares position by position"
    own: Group | None = groups[0] if groups[0] == groups[1] else named_group(groups[0])
    if groups[0] != groups[1] and named_group(groups[1]) != own:
        own = None
    found: dict[str, Interval | None] = dict.fromkeys(WAYS)
    for way, group in zip(WAYS, (own, "orthogonal"), strict=True):
        if group is not None:
            found[way] = _similarity(procrustes_interval(x, y, group=group, seed=seed, draws=draws, level=level))
    return found, None if own is not None else "different groups, Procrustes needs one that acts on both"


def _similarity(distance: Interval) -> Interval:
    return Interval(1 - distance.value, 1 - distance.high, 1 - distance.low, distance.level, 1 - distance.draws)
