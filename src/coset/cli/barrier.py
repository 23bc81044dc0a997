"""``coset barrier``."""

from collections.abc import Mapping
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import coset.cli.options as given
from coset._show.tables import csv_table
from coset.cli.between import Asked, Ends, Found, check_asked, measure, read_ends
from coset.cli.examples import Choice, chosen
from coset.cli.figure_files import reserve_figure, told_inputs, write_figure
from coset.cli.networks import NETWORK, Source, kind_of
from coset.cli.printing import decimals, print_json, show_end, show_table

if TYPE_CHECKING:
    from coset.landscape import Profile, Profiles


def barrier(
    start: Annotated[Path, typer.Argument(metavar="A", help="Weights, or a posterior as save_distribution wrote it.")],
    end: Annotated[Path, typer.Argument(metavar="B", help="Another one, of the same kind and architecture.")],
    model: given.Model,
    data: Annotated[str, typer.Option(metavar="NAME", help="A name from `coset data list`; its train and test parts.")],
    option: given.FactoryOptions = None,
    shapes: given.InputShapes = None,
    symmetry: given.SymmetryFile = None,
    align: Annotated[
        bool | None, typer.Option("--align/--no-align", help="Only with B aligned, or only as it is [default: both].")
    ] = None,
    path: Annotated[str, typer.Option(metavar="NAME", help="Move along the geodesic, or weigh anew: mixture.")] = (
        "geodesic"
    ),
    points: Annotated[int, typer.Option(metavar="N", help="Evenly spaced τ from A to B.")] = 25,
    tolerance: Annotated[
        float | None,
        typer.Option(metavar="X", help="Search for the largest excess until it changes by less, at most --points τ."),
    ] = None,
    samples: Annotated[int, typer.Option(metavar="N", help="Networks drawn from a posterior at each τ.")] = 32,
    likelihood: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="categorical, bernoulli, learned-noise, or a number: the deviation of Gaussian noise [default: "
            "categorical for labels, learned-noise for other targets].",
        ),
    ] = None,
    method: given.Method = "weights",
    renormalize: given.Renormalization = "none",
    gauge: given.Gauge = None,
    scales: given.Scales = None,
    continuous: given.Continuous = None,
    objective: given.Objective = None,
    setting: given.Settings = None,
    limit: Annotated[
        int, typer.Option(metavar="N", help="Take at most so many examples of each part, chosen by the seed.")
    ] = 10_000,
    mean: given.Mean = None,
    std: given.Std = None,
    seed: given.Seed = 0,
    out: given.FigureStem = None,
    key: given.Key = None,
    strip_prefix: given.PrefixToStrip = "",
    as_json: given.Json = False,
) -> None:
    """How much worse it gets on the way from A to B, as B is and after bringing B to A by symmetry.

    A barrier is the largest drop of the log-likelihood (nats per example) below the straight line between its values at
    A and B; of the error, the largest rise above it. Posteriors predict by the mean over their draws, which the numbers
    behind ± are the standard errors of. Nothing is written without --out.

    \b
    coset barrier a.safetensors b.safetensors --model resnet20 --data cifar10 --renormalize refresh --out barrier
    coset barrier q0.safetensors q1.safetensors --model mlp --option widths=[64,64] --data mnist --samples 16
    """
    from coset.landscape import plot_barriers

    settings = given.gathered(setting, gauge=gauge, scales=scales, continuous=continuous, objective=objective)
    asked = Asked(path, points, tolerance, samples, method, renormalize, align, settings, seed)
    given.check_counts({"--points": (points, 2), "--samples": (samples, 1), "--limit": (limit, 1)})
    choice = chosen(data, "train", limit, mean, std, seed)
    known = check_asked(asked, choice)
    with ExitStack() as stack:
        inputs = [start, end, *([symmetry] if symmetry else [])]
        reserve_figure(out, inputs, stack)
        source = Source(model, option, shapes, symmetry, key, strip_prefix)
        ends = read_ends((start, end), source, choice, likelihood, asked)
        found = measure(ends, asked, choice, known)
        told = _told(found, ends, asked, choice, source)
        told["files"] = write_figure(out, lambda: plot_barriers(found.profiles), told, _lines(found.profiles))
    if as_json:
        print_json(told)
    else:
        _show(found, told, asked)


def _told(found: Found, ends: Ends, asked: Asked, choice: Choice, source: Source) -> dict[str, Any]:
    """How the numbers came about, and all of them: for machines, and the file of numbers."""
    kind = kind_of(ends.read.values[0])
    return {
        "coset": version("coset"),
        "inputs": told_inputs(ends.read.checkpoints),
        "kind": kind,
        "model": source.model,
        "options": list(source.options or ()),
        "data": {
            "name": choice.name,
            "examples": {part: len(x) for part, (x, _) in ends.splits.items()},
            "mean": choice.mean,
            "std": choice.std,
        },
        "likelihood": repr(ends.likelihood),
        "path": asked.path,
        "points": asked.points,
        "tolerance": asked.tolerance,
        "samples": None if kind == NETWORK and asked.path == "geodesic" else asked.samples,
        "method": asked.method if asked.aligned else None,
        "settings": dict(asked.settings),
        "renormalize": asked.renormalize,
        "seed": asked.seed,
        "alignment": found.alignment,
        "notes": list(found.notes),
        "barriers": {way: profiles.to_dict() for way, profiles in found.profiles.items()},
    }


def _lines(ways: "Mapping[str, Profiles]") -> str:
    """A line for each way and τ; a column for each functional, and one for its standard errors if it has some."""
    noisy = {name for profiles in ways.values() for name, one in profiles.items() if any(one.errors or ())}
    rows: list[list[object]] = []
    for way, profiles in ways.items():
        columns: dict[str, tuple[float | None, ...]] = {"tau": profiles.taus}
        for name, profile in profiles.items():
            columns[name] = profile.values
            if name in noisy:
                columns[f"{name}, standard error"] = profile.errors or (None,) * len(profiles.taus)
        rows += [[way, *numbers] for numbers in zip(*columns.values(), strict=True)]
    return csv_table(["way", *columns], rows)


def _show(found: Found, told: dict[str, Any], asked: Asked) -> None:
    counts = ", ".join(f"{count:,} {part}" for part, count in told["data"]["examples"].items())
    drawn = "" if told["samples"] is None else f", {told['samples']} draws"
    print(f"A and B: {told['kind']}, {told['model']}; {told['data']['name']}: {counts} examples{drawn}")
    names = list(next(iter(found.profiles.values())))
    for measured, title, form in (
        ("log-likelihood", f"Log-likelihood, nats per example, along the {asked.path} from A to B", _nats),
        ("error", "Error: barriers in points, values in %", _percent),
    ):
        parts = [name for name in names if name.endswith(f" {measured}")]
        if not parts:
            continue  # regression has no error
        columns = [""]
        for name in parts:
            columns += [f"{name.removesuffix(f' {measured}')} barrier", "at τ", "at A", "at B"]
        rows = [
            [way, *(cell for name in parts for cell in form(profiles[name]))]
            for way, profiles in found.profiles.items()
        ]
        show_table(columns, rows, title, right=range(1, len(columns)))
    show_end(told)


def _nats(profile: "Profile") -> list[str]:
    doubt = f" ± {profile.barrier_error:.4f}" if profile.barrier_error else ""
    ends = (profile.values[0], profile.values[-1])
    barrier = f"{decimals(profile.barrier, 4)}{doubt}"
    return [barrier, f"{profile.argmax:.3g}", *(decimals(value, 4) for value in ends)]


def _percent(profile: "Profile") -> list[str]:
    ends = (profile.values[0], profile.values[-1])
    values = [f"{decimals(100 * value, 2)} %" for value in ends]
    return [decimals(100 * profile.barrier, 2), f"{profile.argmax:.3g}", *values]
