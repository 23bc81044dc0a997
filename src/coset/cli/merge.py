"""``coset merge``."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

import coset.cli.options as given
from coset._checks import check_choice
from coset.cli.examples import Choice, choose, load_examples, numbers
from coset.cli.networks import Networks, Source, method_options, moved_units, read_networks, written_by
from coset.cli.printing import print_json, show_end, show_table
from coset.cli.worth import is_labelled, table, worth
from coset.errors import InputError


def merge(
    files: Annotated[list[Path], typer.Argument(metavar="A B [C …]", help="Weights of one architecture, two or more.")],
    model: given.Model,
    out: given.OutFile,
    option: given.FactoryOptions = None,
    shapes: given.InputShapes = None,
    symmetry: given.SymmetryFile = None,
    weights: Annotated[
        str | None, typer.Option(metavar="NUMBERS", help="One number per network, e.g. 0.5,0.3,0.2 [default: equal].")
    ] = None,
    average: Annotated[
        str,
        typer.Option(metavar="NAME", help="mean, spherical; with --base task-arithmetic, ties, dare or dare-ties."),
    ] = "mean",
    base: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The network from which the others began, for task vectors.")
    ] = None,
    density: Annotated[
        float | None, typer.Option(metavar="X", help="Part of each task vector that stays [default: all].")
    ] = None,
    scale: Annotated[
        float | None, typer.Option(metavar="X", help="Factor of the summed task vectors [default: 1].")
    ] = None,
    no_align: Annotated[bool, typer.Option("--no-align", help="Average the weights as they are.")] = False,
    method: given.Method = "weights",
    renormalize: given.Renormalization = "none",
    gauge: given.Gauge = None,
    scales: given.Scales = None,
    continuous: given.Continuous = None,
    objective: given.Objective = None,
    setting: given.Settings = None,
    data: given.DataName = None,
    split: given.DataPart = "train",
    limit: given.Limit = None,
    mean: given.Mean = None,
    std: given.Std = None,
    seed: given.Seed = 0,
    key: given.Key = None,
    strip_prefix: given.StripPrefix = "",
    as_json: given.Json = False,
) -> None:
    """Average networks modulo their symmetries: aligned first, so that unit meets unit.

    OUT is again a network of the same architecture, with the names and types of A. With labelled data it is said what
    all networks, their plain average and OUT are worth.

    \b
    coset merge a.safetensors b.safetensors c.safetensors --model mlp -o merged.safetensors
    coset merge a.pt b.pt --model mlp --base start.pt --average ties --density 0.2 -o merged.safetensors
    coset merge a.pt b.pt --model resnet20 --renormalize refresh --data cifar10 --limit 5000 -o merged.safetensors
    """
    from coset.alignment import merge as merge_networks
    from coset.alignment.averages import mean as plain_mean
    from coset.alignment.merging import options_of
    from coset.checkpoints import as_stored, output_place, write_like

    choice = choose(data, split, limit, mean, std, seed)
    shares = _shares(files, weights)
    settings = given.gathered(setting, gauge=gauge, scales=scales, continuous=continuous, objective=objective)
    every = [*files, *([base] if base else [])]
    known = method_options(method, settings, choice, align=not no_align, many=len(every) > 2)
    how = {name: value for name, value in (("density", density), ("scale", scale)) if value is not None}
    _check_names(average, base, how, renormalize, choice, "data" in known)
    inputs = [*every, *([symmetry] if symmetry else [])]
    with output_place(out, inputs, folder=files[0].is_dir()):
        given.check_formats({"--out": out}, given.WEIGHTS)
        source = Source(model, option, shapes, symmetry, key, strip_prefix)
        networks = read_networks(every, source)
        params, start = networks.params[: len(files)], networks.params[-1] if base else None
        examples = None if choice is None else load_examples(choice, networks.inputs, networks.dtype)
        reads = "data" in known or "data" in options_of(renormalize)
        merged = merge_networks(
            networks.symmetry,
            params,
            weights=shares,
            average=average,
            base=start,
            average_options=how or None,
            align=not no_align,
            method=method,
            renormalize=renormalize,
            model=networks.model,
            data=examples if reads else None,
            seed=seed,
            options=({"criterion": choice.criterion} if choice and {"data", "criterion"} <= known else {}) | settings,
        )
        told = {
            "average": average,
            "base": str(base) if base else "none",
            "average_options": how,
            "method": "none" if no_align else method,
            "settings": settings,
            "renormalize": renormalize,
            "data": str(choice) if choice else "none",
            "seed": seed,
            "weights": list(merged.weights),
            "moved": [sum(moved_units(g).values()) for g in merged.elements],
            "objective": [{"before": course[0], "after": course[-1]} for course in merged.histories],
            "notes": list(merged.notes),
        }
        stored = as_stored(networks.checkpoints[0], merged.params, "the merged network")
        write_like(out, networks.checkpoints[0], stored, _metadata(networks, told))
    if choice is not None and is_labelled(choice):
        named = {str(file): network for file, network in zip(every, networks.params, strict=True)}
        told["worth"] = worth(
            networks, {**named, "plain average": plain_mean(params, shares), "merged": merged.network}, choice
        )
    if as_json:
        print_json({"out": str(out), "inputs": [str(file) for file in files], **told})
    else:
        _show(told, files, out)


def _shares(files: list[Path], weights: str | None) -> list[float]:
    """The weights of the networks with sum 1, checked before anything is read."""
    from coset.alignment.averages import normalized_weights

    if len(files) < 2:
        raise InputError(f"there is one network to merge, {files[0]}; expected two or more")
    return normalized_weights(None if weights is None else numbers("--weights", weights), len(files))


def _check_names(
    average: str, base: Path | None, how: dict[str, Any], renormalize: str, choice: Choice | None, aligned_on_data: bool
) -> None:
    """Refuse what is not there, data that are missing, and data for nothing."""
    from coset.alignment.averages import AVERAGES, check_kind
    from coset.alignment.merging import RENORMALIZATIONS, options_of
    from coset.alignment.task_vectors import KINDS, TaskVectors

    check_choice("--average", average, [*AVERAGES, *KINDS])
    if (average in KINDS) != (base is not None):
        needs = "needs --base, the network from which the others began" if average in KINDS else "takes no --base"
        raise InputError(f"--average {average} {needs}")
    check_kind(average, base is not None, TaskVectors(**how) if how else None)
    check_choice("--renormalize", renormalize, RENORMALIZATIONS)
    measures = "data" in options_of(renormalize)
    if measures and choice is None:
        raise InputError(f"--renormalize {renormalize} measures units on inputs: say on which with --data")
    if choice is not None and not measures and not aligned_on_data and not is_labelled(choice):
        raise InputError(f"neither the alignment nor --renormalize {renormalize} looks at data; leave --data out")


def _metadata(networks: Networks, told: dict[str, Any]) -> dict[str, str]:
    """What was done, as texts; what the inputs say of themselves need not hold for their average."""
    entries = {name: value if isinstance(value, str) else json.dumps(value) for name, value in told.items()}
    return written_by("merge", networks, entries)


def _show(told: dict[str, Any], files: list[Path], out: Path) -> None:
    moved = told["moved"][: len(files)]
    columns = zip(files, told["weights"], moved, strict=True)
    rows = [[str(file), f"{share:.4g}", str(moved)] for file, share, moved in columns]
    how = "as they are" if told["method"] == "none" else f"aligned by {told['method']}"
    title = f"{told['average']} of {len(files)} networks, {how}; renormalised: {told['renormalize']}"
    show_table(["network", "weight", "units moved"], rows, title, right={1, 2})
    if "worth" in told:
        names, cells = table(told["worth"])
        show_table(names, cells, told["data"], right=set(range(1, len(names))))
    show_end(told)
    print(f"weights: {out}")
