"""``coset audit``."""

from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import coset.cli.options as given
from coset.cli.figure_files import told_inputs
from coset.cli.networks import Source, build_model, read_networks
from coset.cli.printing import print_json
from coset.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from coset.metanet import Audit
    from coset.symmetry import Symmetry
    from coset.zoo import Zoo


def audit(
    reader: Annotated[str, typer.Argument(metavar="READER", help="MODULE:FUNCTION or FILE.py:FUNCTION.")],
    networks: Annotated[
        list[Path], typer.Argument(metavar="NETWORKS", help="Files of weights of one model, or the folder of a zoo.")
    ],
    model: Annotated[
        str | None, typer.Option("--model", metavar="MODEL", help=f"{given.MODEL_HELP} [default: that of the zoo].")
    ] = None,
    option: given.FactoryOptions = None,
    shapes: given.InputShapes = None,
    symmetry: given.SymmetryFile = None,
    kinds: Annotated[
        str | None,
        typer.Option(
            metavar="KINDS",
            help="Some of permutations, scales, signs, turns, matrices, translations, all, separated by commas "
            "[default: all that the model has].",
        ),
    ] = None,
    draws: Annotated[int, typer.Option(metavar="N", help="Random places on the orbit of each network, per kind.")] = 16,
    spread: Annotated[float, typer.Option(metavar="X", help="Random scales are exp(X·N(0, 1)).")] = 0.5,
    budget: Annotated[int, typer.Option(metavar="N", help="Readings for the worst case, per kind.")] = 256,
    output: Annotated[
        str | None,
        typer.Option(metavar="KIND", help="What READER gives: numbers, labels or parameters [default: found]."),
    ] = None,
    batch: Annotated[bool, typer.Option("--batch", help="READER takes many networks, on a leading axis.")] = False,
    limit: Annotated[
        int | None, typer.Option(metavar="N", help="Take so many networks of a zoo, chosen by the seed [default: all].")
    ] = None,
    seed: given.Seed = 0,
    key: given.Key = None,
    strip_prefix: given.PrefixToStrip = "",
    as_json: given.Json = False,
) -> None:
    """How far a function that reads weights changes when networks are moved by symmetries, which change no output.

    READER takes a dict of parameters and gives a number, a vector, a label, or edits of the parameters. For each kind
    of symmetry: whether it is invariant up to rounding, how far it changes at random places of the orbit and at the
    worst one that is found, and that beside the distance between two networks. A dict of edits should be equivariant.

    \b
    coset audit readers.py:norms a.safetensors b.safetensors --model resnet20
    coset audit mypackage.probes:accuracy zoo --limit 100 --batch --json
    """
    from coset.metanet import audit as audit_reader
    from coset.models import load_callable

    given.check_counts({"--draws": (draws, 1), "--budget": (budget, 0), "--limit": (1 if limit is None else limit, 1)})
    function = load_callable(reader, "reader", "a function of parameters")
    source = Source(model or "", option, shapes, symmetry, key, strip_prefix)
    found, sym, inputs = (
        _zoo(networks[0], source, limit, seed) if _is_zoo(networks) else _files(networks, source, limit)
    )
    result = audit_reader(
        function,
        sym,
        found,
        kinds=None if kinds is None else [kind.strip() for kind in kinds.split(",")],
        draws=draws,
        spread=spread,
        budget=budget,
        batch=batch,
        kind_of_output=output,
        seed=seed,
    )
    if as_json:
        print_json({"coset": version("coset"), "reader": reader, "inputs": inputs, **result.to_dict()})
    else:
        _show(result, reader)


def _is_zoo(networks: list[Path]) -> bool:
    folders = [path for path in networks if path.is_dir()]
    if folders and len(networks) > 1:
        raise InputError(f"{folders[0]} is a folder, beside others; expected files of weights, or one folder of a zoo")
    return bool(folders)


_Read = tuple[Any, "Symmetry", list[dict[str, str]]]
"""Networks, their symmetry, and where they come from."""


def _files(files: list[Path], source: Source, limit: int | None) -> _Read:
    if not source.model:
        raise InputError(f"{files[0]} is no folder of a zoo; say with --model which network its weights are of")
    if limit is not None:
        raise InputError(f"--limit is {limit}, and takes networks of a zoo; expected a zoo, or fewer files")
    read = read_networks(files, source)
    return list(read.params), read.symmetry, told_inputs(read.checkpoints)


def _zoo(folder: Path, source: Source, limit: int | None, seed: int) -> _Read:
    from coset.symmetry import Symmetry, discover
    from coset.zoo import open_zoo

    for option, text in (("--key", source.key), ("--strip-prefix", source.strip_prefix)):
        if text:
            raise InputError(f"{option} is {text!r} and {folder} a folder of a zoo; expected no {option}")
    if not source.model and (source.options or source.shapes):
        raise InputError("--option and --input say which model it is; they need --model")
    zoo = open_zoo(folder)
    weights = _chosen(zoo, limit, seed)
    if source.symmetry is not None:
        sym = Symmetry.load(source.symmetry)
    elif source.model:
        sym = discover(*build_model(source.model, source.options, source.shapes))
    else:
        sym = zoo.symmetry(zoo.indices[0])
    return weights, sym, [{"folder": str(folder)}]


def _chosen(zoo: "Zoo", limit: int | None, seed: int) -> "dict[str, Tensor] | Zoo":
    """All networks that can be used, or some of them."""
    import torch

    from coset._checks import check_seed

    if limit is None or limit >= len(zoo.indices):
        zoo.stack()  # refused here, before a symmetry is looked for
        return zoo
    order = torch.randperm(len(zoo.indices), generator=torch.Generator().manual_seed(check_seed(seed)))
    return zoo.stack(sorted(zoo.indices[number] for number in order[:limit].tolist()))


def _show(result: "Audit", reader: str) -> None:
    print(reader)
    print(result)
    invariant = [kind for kind in result.kinds if result.invariant(kind)]
    print(f"invariant under: {', '.join(invariant) or 'none of them'}")
