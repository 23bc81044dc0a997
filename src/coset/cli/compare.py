"""``coset compare``."""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import coset.cli.options as given
from coset.cli.compared import Sides, find_layers, lines_of, measure, read_sides
from coset.cli.examples import SUFFIXES, Choice, chosen
from coset.cli.figure_files import reserve_figure, told_inputs, write_figure
from coset.cli.networks import Source
from coset.cli.printing import decimals, print_json, show_table
from coset.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from coset.represent import Interval, NetworkComparison
    from coset.represent.similarity import LayerPair


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
        sides = read_sides((first, second), source, other, choice)
        groups, notes = find_layers(sides, layers, layers_b)
        found = measure(sides, groups, seed=seed, draws=draws)
        told = _told(found, sides, choice, seed, draws) | {"notes": notes}
        told["files"] = write_figure(out, partial(_drawn, found), told, lines_of(found))
    if as_json:
        print_json(told)
    else:
        _show(found, told)


def _told(found: "NetworkComparison", sides: Sides, choice: Choice, seed: int, draws: int) -> dict[str, Any]:
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
    for note in told["notes"]:
        print(f"note: {note}")
    if told["files"]:
        print(f"written: {', '.join(told['files'])}")


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
