"""Options that several commands have, each described once."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from coset._checks import is_count
from coset.errors import InputError

Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines instead of text.")]
Seed = Annotated[int, typer.Option(help="Seed of all randomness: same seed, same result.")]
StoreFolder = Annotated[
    Path | None, typer.Option("--store", help="Folder of the store [default: COSET_STORE or the user's cache].")
]

MODEL_HELP = "hf:FOLDER, MODULE:FACTORY, FILE.py:FACTORY, or a built-in model such as resnet20."
Model = Annotated[str, typer.Option("--model", metavar="MODEL", help=MODEL_HELP)]
FactoryOptions = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="NAME=VALUE", help="An option of the factory as NAME=VALUE; may be repeated."),
]
InputShapes = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        metavar="SHAPE",
        help="Shape of an input, e.g. 2,3,32,32; once per input; i:2,16:1000 for whole numbers < 1000.",
    ),
]
SymmetryFile = Annotated[
    Path | None,
    typer.Option(
        "--symmetry", metavar="FILE", help="The symmetry as `coset discover -o` wrote it [default: discover it]."
    ),
]
Key = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Where in a PyTorch file the state dict is [default: the usual names]."),
]
StripPrefix = Annotated[
    str, typer.Option(metavar="PREFIX", help="Take this off the names in the files, e.g. 'module.'; OUT has it again.")
]
PrefixToStrip = Annotated[
    str, typer.Option("--strip-prefix", metavar="PREFIX", help="Take this off the names in the files, e.g. 'module.'.")
]
FigureStem = Annotated[
    Path | None, typer.Option("-o", "--out", metavar="STEM", help="Write STEM.png, .svg, .json and .csv.")
]
OutFile = Annotated[
    Path,
    typer.Option(
        "-o", "--out", metavar="OUT", help="Write the weights here: safetensors, .pt, or a folder like the one read."
    ),
]

DataName = Annotated[
    str | None,
    typer.Option(
        "--data", metavar="NAME", help="A name from `coset data list`, for what compares or counts activations."
    ),
]
DataPart = Annotated[str, typer.Option("--split", metavar="PART", help="Which part of the data: train or test.")]
Limit = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Take so many examples, chosen by the seed [default: all].")
]
Mean = Annotated[
    str | None,
    typer.Option(
        metavar="NUMBERS",
        help="Subtract from each channel of the data, e.g. 0.5,0.5,0.5; with --std [default: its own mean].",
    ),
]
Std = Annotated[
    str | None, typer.Option(metavar="NUMBERS", help="Divide each channel by this, after --mean [default: its own].")
]

Method = Annotated[str, typer.Option(metavar="NAME", help="How to align: by weights, activations, sinkhorn or ste.")]
Renormalization = Annotated[
    str,
    typer.Option(metavar="NAME", help="Statistics repaired afterwards: none, refresh, repair, rescale or data-free."),
]
Gauge = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Compare weights as given, or normalized: scales removed [default: given]."),
]
Scales = Annotated[
    bool | None, typer.Option("--scales/--no-scales", help="Match scales as well, where the model has them.")
]
Continuous = Annotated[
    bool | None,
    typer.Option(
        "--continuous/--no-continuous",
        help="Over the whole group where units may be mixed, or over permutations, scales and signs alone "
        "[default: the whole group].",
    ),
]
Objective = Annotated[str | None, typer.Option(metavar="NAME", help="What sinkhorn and ste minimise.")]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--setting", metavar="NAME=VALUE", help="Any other option of the method, as in Python; may be repeated."
    ),
]


_OTHER_FORMATS = (".pt", ".pth", ".ckpt", ".bin", ".pkl", ".pickle", ".h5", ".npz", ".npy", ".onnx", ".json")


WEIGHTS = (".pt", ".pth")
"""Names of files of weights that are written as PyTorch's."""


def check_formats(files: Mapping[str, Path | None], allowed: Sequence[str] = ()) -> None:
    """Raise if an option's file of tensors would get the name of another format than the one that is written."""
    for option, path in files.items():
        if path is not None and path.suffix.lower() in _OTHER_FORMATS and path.suffix not in allowed:
            expected = f"{path.stem}.safetensors"
            raise InputError(f"{option} is {path}, but what is written is safetensors; expected a name as {expected}")


def check_counts(counts: Mapping[str, tuple[int, int]]) -> None:
    """Raise unless each option's number is at least as large as the one beside it."""
    for option, (count, least) in counts.items():
        if not is_count(count, least):
            raise InputError(f"{option} is {count}; expected a whole number of at least {least}")


def parse_pairs(option: str, pairs: Sequence[str] | None) -> dict[str, Any]:
    """NAME=VALUE, the value read as JSON where it is JSON and as text otherwise."""
    result: dict[str, Any] = {}
    for pair in pairs or ():
        name, equals, text = pair.partition("=")
        if not equals or not name.isidentifier():
            raise InputError(f"{option} takes NAME=VALUE, found '{pair}'")
        try:
            result[name] = json.loads(text)
        except json.JSONDecodeError:
            result[name] = text
        except (ValueError, RecursionError) as error:  # numbers of thousands of digits, lists in lists in lists
            raise InputError(f"{option} {name} cannot be read as JSON: {error}") from error
    return result


def gathered(pairs: Sequence[str] | None, **named: Any) -> dict[str, Any]:
    """The settings of a method: those that have options of their own, if given, and NAME=VALUE for others."""
    return {name: value for name, value in named.items() if value is not None} | parse_pairs("--setting", pairs)
