"""``coset align``."""

import json
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import coset.cli.options as given
from coset.cli.examples import choose, load_examples
from coset.cli.networks import Networks, Source, method_options, moved_units, read_networks, written_by
from coset.cli.printing import print_json, show_end, show_table
from coset.errors import InputError

if TYPE_CHECKING:
    from coset.alignment import Alignment


def align(
    reference: Annotated[Path, typer.Argument(metavar="A", help="The weights that stay: safetensors or PyTorch.")],
    other: Annotated[Path, typer.Argument(metavar="B", help="The weights to bring to A, of the same architecture.")],
    model: given.Model,
    out: given.OutFile,
    option: given.FactoryOptions = None,
    shapes: given.InputShapes = None,
    symmetry: given.SymmetryFile = None,
    method: given.Method = "weights",
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
    element: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the element g of the group to this file.")
    ] = None,
    key: given.Key = None,
    strip_prefix: given.StripPrefix = "",
    as_json: given.Json = False,
) -> None:
    """Bring network B to network A: the same function as B, its units in the order (and scale) of A's.

    OUT has B's names and types, and in its header what was done. Code in pickles is never run.

    \b
    coset align a.safetensors b.safetensors --model resnet20 -o aligned.safetensors
    coset align a.pt b.pt --model mlp --option widths=[64,64] --method activations --data mnist -o aligned.safetensors
    coset align a.pt b.pt --model nets.py:make --input 2,3,32,32 --strip-prefix module. -o aligned.safetensors
    """
    from coset._files.atomic import atomic_path
    from coset.alignment import align as align_networks
    from coset.checkpoints import as_stored, output_file, output_place, write_like

    choice = choose(data, split, limit, mean, std, seed)
    settings = given.gathered(setting, gauge=gauge, scales=scales, continuous=continuous, objective=objective)
    known = method_options(method, settings, choice)
    if settings.get("both"):
        raise InputError("the setting both=true moves A, too, which is not written; leave it out, or use coset merge")
    if choice is not None and "data" not in known:
        raise InputError(f"the method {method} looks at weights only; leave --data out")
    inputs = [reference, other, *([symmetry] if symmetry else [])]
    with ExitStack() as stack:
        stack.enter_context(output_place(out, inputs, folder=other.is_dir()))
        if element:
            stack.enter_context(output_file(element, [*inputs, out]))
        given.check_formats({"--out": out}, given.WEIGHTS)
        given.check_formats({"--element": element})
        source = Source(model, option, shapes, symmetry, key, strip_prefix)
        networks = read_networks([reference, other], source)
        needed: dict[str, Any] = {"model": networks.model, "seed": seed}
        if choice is not None:
            examples = load_examples(choice, networks.inputs, networks.dtype)
            needed |= {"data": examples, "criterion": choice.criterion}
        options = {name: value for name, value in needed.items() if name in known} | settings
        a, b = networks.params
        result = align_networks(networks.symmetry, a, b, method, **options)
        told = _told(result, settings, str(choice) if choice else None, seed)
        stored = as_stored(networks.checkpoints[1], result.params, f"the aligned {other}")
        if element:
            # It takes its place only when the weights have taken theirs.
            result.element.save(stack.enter_context(atomic_path(element)), networks.symmetry)
        write_like(out, networks.checkpoints[1], stored, _metadata(networks, told))
    if as_json:
        print_json({"out": str(out), "element": str(element) if element else None, **told})
        return
    _show(told, out)


def _told(result: "Alignment[Any]", settings: dict[str, Any], data: str | None, seed: int) -> dict[str, Any]:
    """What came out, for people, machines and the header of the file alike."""
    moved = moved_units(result.element)
    return {
        "method": result.method,
        "settings": settings,
        "data": data,
        "seed": seed,
        "objective": {"before": result.history[0], "after": result.objective, "steps": len(result.history) - 1},
        "classes": [
            {
                "class": name,
                "units": p.numel(),
                "moved": moved[name],
                "before": result.before[name],
                "after": result.agreement[name],
            }
            for name, p in result.element.permutations.items()
        ],
        "scaled": [name for name, d in result.element.scales.items() if bool((d != 1).any())],
        "flipped": [name for name, s in result.element.signs.items() if bool((s != 1).any())],
        "mixed": list(result.element.matrices),
        "seconds": dict(result.seconds),
        "notes": list(result.notes),
    }


def _metadata(networks: Networks, told: dict[str, Any]) -> dict[str, str]:
    """B's own metadata, and what was done; without times, so that the same run writes the same file."""
    moved = sum(row["moved"] for row in told["classes"])
    units = sum(row["units"] for row in told["classes"])
    entries = {
        "method": told["method"],
        "settings": json.dumps(told["settings"]),
        "data": told["data"] or "none",
        "seed": str(told["seed"]),
        "objective.before": repr(told["objective"]["before"]),
        "objective.after": repr(told["objective"]["after"]),
        "done": f"brought to the first input: {moved} of {units} units moved, {len(told['scaled'])} families scaled, "
        f"{len(told['flipped'])} flipped",
        "notes": json.dumps(told["notes"], ensure_ascii=False),
    }
    kept = {name: text for name, text in networks.checkpoints[1].metadata.items() if not name.startswith("coset.")}
    return {**kept, **written_by("align", networks, entries)}


def _show(told: dict[str, Any], out: Path) -> None:
    rows = [
        [row["class"], str(row["units"]), str(row["moved"]), f"{row['before']:.4f}", f"{row['after']:.4f}"]
        for row in told["classes"]
    ]
    columns = ["class", "units", "moved", "agreement before", "after"]
    show_table(columns, rows, f"B brought to A by {told['method']}", right={1, 2, 3, 4})
    objective = told["objective"]
    times = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in told["seconds"].items())
    print(f"objective {objective['before']:.6g} → {objective['after']:.6g} in {objective['steps']} steps ({times})")
    for what in ("scaled", "flipped", "mixed"):
        if told[what]:
            print(f"{what} besides: {', '.join(told[what])}")
    show_end(told)
    print(f"weights: {out}")
