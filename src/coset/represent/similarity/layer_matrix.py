"""Layer × layer comparison of two models over data, batch by batch: no features are held."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from coset._batches import BATCH_SIZE, Inputs, Repeated, count_batches, input_batches
from coset._checks import check_choice
from coset._show.progress import Ticker, progress
from coset._show.tables import csv_table
from coset.data import Split
from coset.errors import InputError
from coset.represent._features import ChannelAxis, feature_chunks, inputs_of
from coset.represent.channels import channel_statistics, check_features, needs_straightening, straightening
from coset.represent.similarity._cka import Side, made_side, mean_terms, shared_kernel
from coset.represent.similarity._hsic import HsicTerms, check_examples, hsic_terms, sums_of_matrices
from coset.represent.similarity._procrustes import CrossMoments, added, cross_moments, procrustes_of_moments
from coset.represent.unit_groups import Group, group_on
from coset.running import check_layers
from coset.running.moments import Moments, merged

Kernels = tuple[tuple[str, ...], ...]
"""Names of kernels, by layer of x and layer of y."""


@dataclass(frozen=True, eq=False)
class LayerMatrix:
    """How similar the layers of two models are: ``similarity`` (layers of x, layers of y) in float64.

    It is CKA, or 1 − the Procrustes distance, as ``measure`` says. ``kernels``, of CKA: by rows, the kernel that both
    layers of each pair have.
    """

    measure: str
    layers_x: tuple[str, ...]
    layers_y: tuple[str, ...]
    similarity: Tensor
    kernels: Kernels | None = None

    def to_dict(self) -> dict[str, object]:
        """All of it, ready for JSON; rows belong to the layers of x."""
        return {
            "measure": self.measure,
            "layers_x": list(self.layers_x),
            "layers_y": list(self.layers_y),
            "similarity": self.similarity.tolist(),
            **({} if self.kernels is None else {"kernels": [list(row) for row in self.kernels]}),
        }

    def to_csv(self) -> str:
        """A line for each pair of layers."""
        rows = [
            [x, y, value, *([] if self.kernels is None else [self.kernels[i][j]])]
            for i, (x, row) in enumerate(zip(self.layers_x, self.similarity.tolist(), strict=True))
            for j, (y, value) in enumerate(zip(self.layers_y, row, strict=True))
        ]
        columns = ["layer of x", "layer of y", self.measure, *([] if self.kernels is None else ["kernel"])]
        return csv_table(columns, rows)


Chunk = tuple[dict[str, Tensor], dict[str, Tensor]]
"""The features of a batch in both models: name of the layer → (n, C, P)."""


@dataclass(frozen=True)
class Comparison:
    """Two models on the same batches: ``chunks`` begins anew every time it is called."""

    measure: str
    layers_x: tuple[str, ...]
    layers_y: tuple[str, ...]
    chunks: Callable[[], Iterator[Chunk]]
    group_of: Callable[[str], Group]
    kernel: str | None
    estimator: str
    bar: Ticker


def compare_layers(
    model_x: nn.Module,
    model_y: nn.Module,
    data: Inputs | Split,
    layers_x: Sequence[str],
    layers_y: Sequence[str] | None = None,
    *,
    measure: str = "cka",
    group: Group | Mapping[str, Group] = "orthogonal",
    kernel: str | None = None,
    estimator: str = "unbiased",
    params_x: Mapping[str, Tensor] | None = None,
    params_y: Mapping[str, Tensor] | None = None,
    channel_axis: ChannelAxis = None,
    batch_size: int = BATCH_SIZE,
    show: bool | None = None,
) -> LayerMatrix:
    """The similarity of every named layer of one model to every one of another, on the same data.

    ``measure``: of ``MEASURES``. "cka" averages HSIC over batches (``cka_of_batches``), "procrustes" sums over all
    examples. ``layers_y``: by default those of x. ``group``: one for all layers, or by name of the layer, as
    ``layer_groups`` gives them; CKA of layers with different groups has one kernel on both sides (``shared_kernel``),
    or ``kernel`` everywhere. ``params_x``, ``params_y``: weights in place of the models' own. Data are gone through
    twice: once for the means and norms of channels.
    """
    names_x = check_layers(model_x, layers_x)
    names_y = check_layers(model_y, names_x if layers_y is None else layers_y)
    check_choice("measure", measure, MEASURES, quoted=True)
    if isinstance(data, Iterator):
        raise InputError("data is an iterator, which can be gone through once; expected tensors or a loader")
    inputs = inputs_of(data, model_x)

    def chunks() -> Iterator[Chunk]:
        sides = ((model_x, names_x, params_x), (model_y, names_y, params_y))
        for batch in input_batches(inputs, batch_size):
            both = [
                next(
                    feature_chunks(model, batch, names, params=params, channel_axis=channel_axis, batch_size=len(batch))
                )
                for model, names, params in sides
            ]
            # Both models see each batch of a loader that shuffles.
            yield _checked(both[0]), _checked(both[1])

    def group_of(layer: str) -> Group:
        if not isinstance(group, Mapping):
            return group
        if layer not in group:
            raise InputError(f"group says nothing of layer '{layer}'; expected a group for every layer compared")
        return group[layer]

    with progress("comparing layers", 2 * (count_batches(inputs, batch_size) or 0), show=show) as bar:
        straight = _straightened(chunks, (names_x, names_y), group_of, centred=measure == "cka")
        comparison = Comparison(measure, names_x, names_y, straight, group_of, kernel, estimator, bar)
        return MEASURES[measure](comparison)


def _straightened(
    chunks: Callable[[], Iterator[Chunk]],
    layers: tuple[tuple[str, ...], tuple[str, ...]],
    group_of: Callable[[str], Group],
    *,
    centred: bool,
) -> Callable[[], Iterator[Chunk]]:
    """The features by the straightening of each layer, known from more passes over the layers that matrices mix."""

    def of_layer(side: int, name: str) -> Iterator[Tensor]:
        return (chunk[side][name] for chunk in chunks())

    maps = {
        (side, name): straightening(
            Repeated(partial(of_layer, side, name)), group_of(name), f"layer '{name}'", centred=centred
        )
        for side, names in enumerate(layers)
        for name in names
        if needs_straightening(group_of(name))
    }

    def straight() -> Iterator[Chunk]:
        for chunk in chunks():
            for (side, name), ready in maps.items():
                chunk[side][name] = ready(chunk[side][name])
            yield chunk

    return straight if maps else chunks


def _checked(features: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: check_features(tensor, f"layer '{name}'") for name, tensor in features.items()}


def _cka(comparison: Comparison) -> LayerMatrix:
    """CKA of all pairs: per batch the kernel matrices of each layer, then the HSIC of all pairs."""
    sides, kernels = _sides(comparison)
    terms: dict[tuple[str, str], list[HsicTerms]] = {}
    counts = []
    for number, chunk in enumerate(comparison.chunks()):
        n = len(next(iter(chunk[0].values())))
        check_examples(comparison.estimator, n, f"batch {number}")
        counts.append(n)
        tables = [
            {(name, kernel): side.matrix(features[name]) for (name, kernel), side in own.items()}
            for own, features in zip(sides, chunk, strict=True)
        ]
        for (name_x, name_y), kernel in kernels.items():
            both = tables[0][name_x, kernel], tables[1][name_y, kernel]
            found = hsic_terms(sums_of_matrices(*both), comparison.estimator)
            terms.setdefault((name_x, name_y), []).append(found)
        comparison.bar.advance()
    means = {names: mean_terms(found, counts) for names, found in terms.items()}
    table = _table(comparison, lambda x, y: means[x, y].ratio(f"layer '{x}' of x", f"layer '{y}' of y"))
    return replace(table, kernels=tuple(tuple(kernels[x, y] for y in table.layers_y) for x in table.layers_x))


_Sides = dict[tuple[str, str], Side]
"""By name of the layer and of the kernel."""


def _sides(comparison: Comparison) -> tuple[tuple[_Sides, _Sides], dict[tuple[str, str], str]]:
    """The sides of every layer of both models, from one pass over the data, and the kernel of every pair."""
    known: tuple[dict[str, Moments], dict[str, Moments]] = ({}, {})
    for chunk in comparison.chunks():
        for own, features in zip(known, chunk, strict=True):
            for name, tensor in features.items():
                here = channel_statistics([tensor])
                own[name] = merged(own[name], here) if name in own else here
        comparison.bar.advance()

    groups = [
        {name: group_on(comparison.group_of(name), len(one.mean), f"layer '{name}'") for name, one in own.items()}
        for own in known
    ]
    kernels = {
        (x, y): comparison.kernel or shared_kernel(of_x, of_y)
        for x, of_x in groups[0].items()
        for y, of_y in groups[1].items()
    }

    def side(number: int, name: str, kernel: str) -> Side:
        return made_side(groups[number][name], kernel, lambda: known[number][name])

    x, y = (
        {key: side(number, *key) for key in dict.fromkeys((pair[number], kernel) for pair, kernel in kernels.items())}
        for number in (0, 1)
    )
    return (x, y), kernels


def _procrustes(comparison: Comparison) -> LayerMatrix:
    """1 − the Procrustes distance of all pairs, from sums over all batches; both layers must have one group."""
    moments: dict[tuple[str, str], CrossMoments] = {}
    for name_x in comparison.layers_x:
        for name_y in comparison.layers_y:
            if comparison.group_of(name_x) != comparison.group_of(name_y):
                raise InputError(
                    f"layers '{name_x}' and '{name_y}' have different groups; Procrustes needs one that acts on both"
                )
    for x, y in comparison.chunks():
        for name_x, a in x.items():
            for name_y, b in y.items():
                if a.shape[2] != b.shape[2]:
                    raise InputError(
                        f"layer '{name_x}' of x has {a.shape[2]} positions and layer '{name_y}' of y {b.shape[2]}; "
                        f"Procrustes compares position by position"
                    )
                here = cross_moments([(a, b)])
                pair = (name_x, name_y)
                moments[pair] = added(moments[pair], here) if pair in moments else here
        comparison.bar.advance(2)
    return _table(comparison, lambda x, y: procrustes_of_moments(moments[x, y], comparison.group_of(x)).similarity)


def _table(comparison: Comparison, value: Callable[[str, str], float]) -> LayerMatrix:
    rows = [[value(x, y) for y in comparison.layers_y] for x in comparison.layers_x]
    similarity = torch.tensor(rows, dtype=torch.float64)
    return LayerMatrix(comparison.measure, comparison.layers_x, comparison.layers_y, similarity)


MEASURES: dict[str, Callable[[Comparison], LayerMatrix]] = {"cka": _cka, "procrustes": _procrustes}
"""Similarities of all pairs of layers, by name of the measure."""
