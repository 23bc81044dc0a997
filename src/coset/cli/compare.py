"""``coset compare``."""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import coset.cli.options as given
from coset._show.tables import csv_table
from coset.cli.examples import SUFFIXES, Choice, chosen, load_inputs
from coset.cli.figure_files import reserve_figure, told_inputs, write_figure
from coset.cli.networks import Networks, Source, read_networks
from coset.cli.printing import decimals, print_json, show_end, show_table
from coset.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

    from coset.checkpoints import Checkpoint
    from coset.represent import Interval, UnitGroup
    from coset.represent.similarity import LayerPair, NetworkComparison


def compare(
    first: Annotated[Path, typer.Argument(metavar="A", help="Weights: safetensors or PyTorch.")],
    second: Annotated[Path, typer.Argument(metavar="B", help="Other weights, of the same model or of --model-b.")],
    model: given.Model,
    data: Annotated[
        str,
        typer.Option(metavar="NAME", help="A name from `coset data list`, or a NumPy file of inputs, .npy or .npz."),
    ],
    option: given.FactoryOptions = None,
    shapes: given.InputShapes = None,
    symmetry: given.SymmetryFile = None,
    layers: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="Layers as in named_modules(), separated by commas; * and ? match [default: those before weights].",
        ),
    ] = None,
    model_b: Annotated[
        str | None, typer.Option("--model-b", metavar="MODEL", help="The model of B [default: that of A].")
    ] = None,
    option_b: Annotated[
        list[str] | None,
        typer.Option("--option-b", metavar="NAME=VALUE", help="An option of B's factory; may be repeated."),
    ] = None,
    layers_b: Annotated[
        str | None, typer.Option("--layers-b", metavar="NAMES", help="Layers of B, as many [default: --layers].")
    ] = None,
    split: given.DataPart = "test",
    limit: Annotated[int, typer.Option(metavar="N", help="Take at most so many examples, chosen by the seed.")] = 256,
    mean: given.Mean = None,
    std: given.Std = None,
    draws: Annotated[int, typer.Option(metavar="N", help="Resamples of the examples for the intervals.")] = 1000,
    seed: given.Seed = 0,
    out: given.FigureStem = None,
    key: given.Key = None,
    strip_prefix: given.PrefixToStrip = "",
    as_json: given.Json = False,
) -> None:
    """How similar the layers of A and B are, modulo the group that acts on each layer and modulo rotations.

    For each layer: its group, found by discovery; which measures are invariant under it; CKA and Procrustes similarity
    modulo the group and modulo O(C), with 95 % bootstrap intervals over examples. --out draws CKA of every layer of A
    with every layer of B. Nothing is written without it.

    \b
    coset compare a.safetensors b.safetensors --model resnet20 --data cifar10 --out layers
    coset compare a.pt b.pt --model mlp --option widths=[64,64] --data inputs.npy --layers 'activations.*'
    """
    given.check_counts({"--limit": (limit, 4), "--draws": (draws, 1)})
    choice = chosen(data, split, limit, mean, std, seed)
    if model_b is None and (option_b or layers_b):
        raise InputError("--option-b and --layers-b say what is different in B; they need --model-b")
    with ExitStack() as stack:
        files = [Path(data)] if Path(data).suffix in SUFFIXES else []
        reserve_figure(out, [first, second, *files, *([symmetry] if symmetry else [])], stack)
        source = Source(model, option, shapes, symmetry, key, strip_prefix)
        other = None if model_b is None else Source(model_b, option_b, shapes, None, key, strip_prefix)
        sides = _read_sides((first, second), source, other, choice)
        groups, notes = _find_layers(sides, layers, layers_b)
        found = _measure(sides, groups, seed=seed, draws=draws)
        told = _told(found, sides, choice, seed, draws) | {"notes": notes}
        told["files"] = write_figure(out, lambda: _drawn(found), told, _lines(found))
    if as_json:
        print_json(told)
    else:
        _show(found, told)


@dataclass(frozen=True, eq=False)
class _Sides:
    """Two networks and the inputs that both are run on; of one model they are the two networks of ``first``."""

    first: Networks
    second: Networks
    inputs: tuple["Tensor", "Tensor"]

    @property
    def checkpoints(self) -> tuple["Checkpoint", "Checkpoint"]:
        """The files of A and B."""
        return self.first.checkpoints[0], self.second.checkpoints[-1]


def _read_sides(files: tuple[Path, Path], source: Source, other: Source | None, choice: Choice) -> _Sides:
    """Read and check files, models and data; ``other``: the model of B, None if it is that of A."""
    if other is None:
        read = read_networks(files, source)
        x = load_inputs(choice, read.inputs, read.dtype)
        return _Sides(read, read, (x, x))
    first, second = read_networks(files[:1], source), read_networks(files[1:], other)
    x, y = (load_inputs(choice, side.inputs, side.dtype) for side in (first, second))
    return _Sides(first, second, (x, y))


_Groups = tuple[dict[str, "UnitGroup"], dict[str, "UnitGroup"]]
"""The layers of A and of B that are compared, with the group of each."""


def _find_layers(sides: _Sides, layers: str | None, layers_b: str | None) -> tuple[_Groups, list[str]]:
    """The layers to compare, checked by a run of the networks, and then their groups by the symmetry of the models.

    ``layers``, ``layers_b``: names separated by commas. Layers that nobody named are left out, with a note,
    if they have no group.
    """
    from coset.represent import layer_groups
    from coset.represent.layer_choice import groups_of_comparable

    ends = ((sides.first, layers, sides.inputs[0]), (sides.second, layers_b or layers, sides.inputs[1]))
    names = [_chosen(*end) for end in ends[: 1 if sides.first is sides.second else 2]]
    if len(names[0]) != len(names[-1]):
        raise InputError(
            f"{len(names[0])} layers of A and {len(names[-1])} of B are named ({', '.join(names[0])}; "
            f"{', '.join(names[-1])}); expected pairs: say which with --layers and --layers-b"
        )
    groups, refused = [], []
    for (side, text, inputs), own in zip(ends, names, strict=False):
        sym = side.symmetry
        if text is None:
            found, why = groups_of_comparable(sym, side.model, own, inputs)
        else:
            found, why = layer_groups(sym, side.model, own, inputs), {}
        groups.append(found)
        refused.append(why)
    pairs = list(zip(names[0], names[-1], strict=True))
    kept = [(x, y) for x, y in pairs if x in groups[0] and y in groups[-1]]
    if not kept:
        raise InputError("no pair of layers has a group in both networks; say which with --layers and --layers-b")
    notes = [f"left out: {reason}" for why in refused for reason in why.values()]
    return ({x: groups[0][x] for x, _ in kept}, {y: groups[-1][y] for _, y in kept}), notes


def _chosen(side: Networks, text: str | None, inputs: "Tensor") -> tuple[str, ...]:
    """The layers that are named, or those before weights; raises unless a pass calls each of them once."""
    from coset.represent import features, layers_before_weights
    from coset.represent.layer_choice import matching_layers

    if text is None:
        return layers_before_weights(side.model, side.inputs[0])
    words = [word.strip() for word in text.split(",")]
    if not all(words):
        raise InputError(f"--layers is '{text}'; expected names of layers separated by commas")
    names = matching_layers(side.model, words, side.inputs[0])
    features(side.model, inputs[:2], names, params=side.params[0], show=False)
    return names


def _measure(sides: _Sides, groups: _Groups, *, seed: int, draws: int) -> "NetworkComparison":
    """Run both networks and compare them in the layers of ``groups``."""
    from coset.represent import compare_networks

    return compare_networks(
        sides.first.model,
        sides.second.model,
        sides.inputs[0],
        *groups,
        inputs_y=sides.inputs[1],
        params_x=sides.first.params[0],
        params_y=sides.second.params[-1],
        seed=seed,
        draws=draws,
        called=("A", "B"),
    )


def _lines(found: "NetworkComparison") -> str:
    """A line of CSV for each layer of A with each of B; more is known of those that were compared one by one."""
    matrices = found.matrices
    known: dict[tuple[str, str], dict[str, float]] = {}
    for pair in found.pairs:
        row = known.setdefault((pair.layer_x, pair.layer_y), {})
        for measure, intervals in (("CKA", pair.cka), ("Procrustes", pair.procrustes)):
            for way, one in intervals.items():
                if one is not None:
                    ends = {"": one.value, ", low": one.low, ", high": one.high}
                    row |= {f"{measure}, {way}{end}": value for end, value in ends.items()}
    columns = dict.fromkeys(name for way in matrices for name in (f"CKA, {way}", f"CKA, {way}, kernel"))
    columns |= dict.fromkeys(name for row in known.values() for name in row)
    rows: list[list[object]] = []
    for i, x in enumerate(matrices["own"].layers_x):
        for j, y in enumerate(matrices["own"].layers_y):
            values: dict[str, float | str] = {}
            for way, matrix in matrices.items():
                assert matrix.kernels is not None
                values |= {f"CKA, {way}": float(matrix.similarity[i, j]), f"CKA, {way}, kernel": matrix.kernels[i][j]}
            values |= known.get((x, y), {})
            rows.append([x, y, *(values.get(name) for name in columns)])
    return csv_table(["layer of A", "layer of B", *columns], rows)


def _told(found: "NetworkComparison", sides: _Sides, choice: Choice, seed: int, draws: int) -> dict[str, Any]:
    """How the numbers came about, and all of them: for machines, and the file of numbers."""
    return {
        "coset": version("coset"),
        "inputs": told_inputs(sides.checkpoints),
        "models": [
            {"model": side.source.model, "options": list(side.source.options or ())}
            for side in (sides.first, sides.second)
        ],
        "data": {
            "name": choice.name,
            "part": choice.part,
            "examples": found.examples,
            "mean": choice.mean,
            "std": choice.std,
        },
        "seed": seed,
        "draws": draws,
        "layers": [_layer(pair) for pair in found.pairs],
        "cka": {way: matrix.to_dict() for way, matrix in found.matrices.items()},
    }


def _layer(pair: "LayerPair") -> dict[str, Any]:
    def numbers(intervals: "Mapping[str, Interval | None]") -> dict[str, Any]:
        return {
            way: None if one is None else {"value": one.value, "low": one.low, "high": one.high, "level": one.level}
            for way, one in intervals.items()
        }

    return {
        "layer": [pair.layer_x, pair.layer_y],
        "group": [str(pair.advice_x.group), str(pair.advice_y.group)],
        "contained in": [pair.advice_x.named, pair.advice_y.named],
        "invariant": [pair.advice_x.invariant, pair.advice_y.invariant],
        "orthogonal measures invariant": pair.advice_x.orthogonal and pair.advice_y.orthogonal,
        "kernel": pair.kernel,
        "cka": numbers(pair.cka),
        "procrustes": numbers(pair.procrustes),
        "note": pair.note,
    }


def _drawn(found: "NetworkComparison") -> "Figure":
    from coset.represent import plot_layers

    panels = {
        "modulo the layer's group": found.matrices["own"],
        "modulo rotations": found.matrices["orthogonal"],
    }
    return plot_layers(panels, x="layer of A", y="layer of B")


def _show(found: "NetworkComparison", told: dict[str, Any]) -> None:
    names = " and ".join(dict.fromkeys(item["model"] for item in told["models"]))
    data = told["data"]
    print(f"A and B: {names}; {data['name']}: {data['examples']:,} {data['part']} examples; 95 % bootstrap intervals")
    columns = [
        "layer",
        "group",
        "invariant",
        "CKA, own group",
        "CKA, O(C)",
        "Procrustes, own group",
        "Procrustes, O(C)",
    ]
    rows = []
    for pair in found.pairs:
        mark = "" if pair.advice_x.orthogonal and pair.advice_y.orthogonal else " *"
        rows.append(
            [
                _both(pair.layer_x, pair.layer_y),
                _both(str(pair.advice_x.group), str(pair.advice_y.group)),
                _both(pair.advice_x.invariant, pair.advice_y.invariant),
                _interval(pair.cka["own"]),
                _interval(pair.cka["orthogonal"]) + mark,
                _interval(pair.procrustes["own"]),
                _interval(pair.procrustes["orthogonal"]) + (mark if pair.procrustes["orthogonal"] else ""),
            ]
        )
    show_table(columns, rows, "Similarity of layers, 1 for equal ones, modulo what acts on their units")
    told_once = {side.invariant: side.sentence for pair in found.pairs for side in (pair.advice_x, pair.advice_y)}
    for words, sentence in told_once.items():
        print(f"{words}: {sentence}")
    if any(not side.orthogonal for pair in found.pairs for side in (pair.advice_x, pair.advice_y)):
        print("*: different for networks with the same function")
    print(f"kernels of CKA: own group: {_kernels(found.pairs)}; O(C): linear")
    show_end(told)


def _kernels(pairs: "Sequence[LayerPair]") -> str:
    """The kernel of most pairs, and where there is another."""
    from coset.represent.similarity.kernels import spoken

    usual, *others = [kernel for kernel, _ in Counter(pair.kernel for pair in pairs).most_common()]
    where = {kernel: [_both(p.layer_x, p.layer_y) for p in pairs if p.kernel == kernel] for kernel in others}
    apart = ", ".join(f"{spoken(kernel)} at {', '.join(names)}" for kernel, names in where.items())
    return f"{spoken(usual)} ({apart})" if apart else spoken(usual)


def _both(a: str, b: str) -> str:
    return a if a == b else f"{a} | {b}"


def _interval(one: "Interval | None") -> str:
    if one is None:
        return "–"
    value, low, high = (decimals(number, 3) for number in (one.value, one.low, one.high))
    return f"{value} [{low}, {high}]"
