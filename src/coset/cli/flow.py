"""``coset flow``: fit, sample, score, evaluate."""

from dataclasses import fields
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import coset.cli.options as given
from coset._checks import check_seed, is_number
from coset.cli.flow_files import Count, FlowFile, SolverName, SolverSteps, about_flow, chosen_solver, loaded_flow
from coset.cli.flow_scores import flow_evaluate, flow_score
from coset.cli.printing import print_json, show_table
from coset.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from coset.zoo import Zoo

flow_app = typer.Typer(help="Flows over weights: sampling networks.", no_args_is_help=True)


@flow_app.command("fit")
def flow_fit(
    zoo: Annotated[Path, typer.Argument(metavar="ZOO", help="The folder of a zoo, networks of one architecture.")],
    out: Annotated[Path, typer.Option("-o", "--out", metavar="FLOW", help="Write the flow to this safetensors file.")],
    geometry: Annotated[
        str, typer.Option(metavar="NAME", help="Weights as they are, euclidean; canonical ones: normalized, geometric.")
    ] = "euclidean",
    order: Annotated[
        str, typer.Option(metavar="NAME", help="Units aligned to the first network, in canonical order, or as given.")
    ] = "aligned",
    classifier: Annotated[
        bool, typer.Option("--classifier", help="Logits of canonical weights have one size: labels stay.")
    ] = False,
    source: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="gaussian, kaiming; units, of the field units; uniform, wrapped-normal on spheres [default: gaussian, "
            "on spheres uniform].",
        ),
    ] = None,
    coupling: Annotated[
        str, typer.Option(metavar="NAME", help="Pairs of source and network: independent, optimal-transport, orbit.")
    ] = "independent",
    field: Annotated[
        str, typer.Option(metavar="NAME", help="mlp; units, relational, pna: these move with permutations of units.")
    ] = "mlp",
    field_option: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="An option of the field, e.g. hidden=512; may be repeated."),
    ] = None,
    projection: Annotated[
        str, typer.Option(metavar="NAME", help="The mlp reads all weights, none, or components: pca, random.")
    ] = "none",
    components: Annotated[int | None, typer.Option(metavar="N", help="So many components of a projection.")] = None,
    condition: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="A column of the zoo's table that samples can be asked for."),
    ] = None,
    steps: Annotated[int | None, typer.Option(metavar="N", help="Steps of training [default: 2000].")] = None,
    batch_size: Annotated[int | None, typer.Option(metavar="N", help="Networks in a step [default: 64].")] = None,
    learning_rate: Annotated[float | None, typer.Option(metavar="X", help="Of Adam [default: 0.001].")] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A further setting of the recipe, e.g. times=beta; may be repeated."),
    ] = None,
    validation: Annotated[
        float | None, typer.Option(metavar="SHARE", help="Hold out this share, and record its loss.")
    ] = None,
    symmetry: given.SymmetryFile = None,
    checkpoint: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Here an interrupted fit goes on: give the same command again.")
    ] = None,
    seed: given.Seed = 0,
    as_json: given.Json = False,
) -> None:
    """Learn a flow from noise to the networks of a zoo, by conditional flow matching.

    \b
    coset flow fit zoo -o flow.safetensors
    coset flow fit zoo -o flow.safetensors --geometry geometric --coupling orbit --checkpoint fit.part
    coset flow fit zoo -o flow.safetensors --condition test_accuracy --validation 0.1 --steps 500
    """
    from coset.checkpoints import output_file
    from coset.flow import FlowRecipe, fit_flow, save_flow
    from coset.symmetry import Symmetry
    from coset.zoo import open_zoo

    given.check_formats({"--out": out})
    own = {"coupling": coupling, "steps": steps, "batch_size": batch_size, "learning_rate": learning_rate}
    settings = given.gathered(setting, **own)
    known = [part.name for part in fields(FlowRecipe)]
    if odd := sorted(settings.keys() - set(known)):
        raise InputError(f"--setting {odd[0]} is no setting of the recipe; expected one of {', '.join(known)}")
    recipe = FlowRecipe(**settings)
    opened = open_zoo(zoo)
    with output_file(out, [] if checkpoint is None else [checkpoint]):
        fit = fit_flow(
            opened,
            recipe,
            sym=None if symmetry is None else Symmetry.load(symmetry),
            geometry=geometry,
            order=order,
            classifier=classifier,
            source=source,
            field=field,
            field_options=given.parse_pairs("--field-option", field_option),
            projection=projection,
            components=components,
            conditions=None if condition is None else _column(opened, condition),
            validation=validation,
            seed=seed,
            checkpoint=checkpoint,
        )
        save_flow(fit.posterior, out)
    told = {
        "coset": version("coset"),
        "flow": str(out),
        "zoo": str(zoo),
        "networks": len(opened.indices),
        **about_flow(fit.posterior),
        "settings": {name: getattr(recipe, name) for name in known},
        "seed": seed,
        "seconds": fit.seconds,
        "trace": {name: fit.trace[name] for name in fit.trace.columns},
    }
    if as_json:
        print_json(told)
        return
    print(f"{fit.posterior}, of {len(opened.indices)} networks of {zoo}")
    losses = [name for name in fit.trace.columns if name != "seconds"]
    show_table(
        ["per coordinate", "first record", "last record"],
        [[name, f"{fit.trace[0][name]:.6g}", f"{fit.trace[-1][name]:.6g}"] for name in losses],
        right=[1, 2],
    )
    print(f"{recipe.steps} steps; written: {out}")


@flow_app.command("sample")
def flow_sample(
    flow: FlowFile,
    out: Annotated[Path, typer.Option("-o", "--out", metavar="DIR", help="A new folder for the networks.")],
    networks: Count = 64,
    zoo: Annotated[
        Path | None,
        typer.Option(metavar="ZOO", help="Make DIR the folder of a zoo, of the model that the networks of ZOO have."),
    ] = None,
    condition: Annotated[
        float | None, typer.Option(metavar="X", help="A number or label, of flows that were fitted with some.")
    ] = None,
    guidance: Annotated[
        float, typer.Option(metavar="W", help="How much the condition counts: 1 as it was learned, more beyond.")
    ] = 1.0,
    noise: Annotated[
        float, typer.Option(metavar="X", help="Stochastic sampling, of euclidean flows with independent pairs.")
    ] = 0.0,
    solver: SolverName = None,
    steps: SolverSteps = None,
    seed: given.Seed = 0,
    as_json: given.Json = False,
) -> None:
    """Draw networks: plain safetensors checkpoints of the architecture, DIR/000000.safetensors and on, or a zoo.

    \b
    coset flow sample flow.safetensors -n 64 -o samples
    coset flow sample flow.safetensors -n 1000 -o drawn --zoo zoo
    coset zoo evaluate drawn --data breast-cancer
    coset flow sample flow.safetensors -o good --condition 0.97 --guidance 2
    """
    import torch

    from coset.checkpoints import write_checkpoints
    from coset.zoo import open_zoo, save_zoo

    given.check_counts({"--networks": (networks, 1)})
    loaded = loaded_flow(flow)
    like = None if zoo is None else open_zoo(zoo)
    if out.is_dir() and any(out.iterdir()):
        raise InputError(f"--out {out} is not empty; expected a new folder")
    told = condition
    if condition is not None and loaded.spec.labels:
        told = int(condition) if condition == int(condition) else condition
    options: dict[str, Any] = {"condition": told, "guidance": guidance, "noise": noise}
    generator = torch.Generator().manual_seed(check_seed(seed))
    with torch.no_grad():
        drawn = loaded.sample(networks, generator, solver=chosen_solver(loaded, solver, steps), **options)
    about = {"coset.version": version("coset"), "coset.command": "flow sample", "coset.flow": flow.name}
    if like is None:
        files = [str(file) for file in write_checkpoints(out, drawn, {**about, "coset.seed": str(seed)})]
    else:
        sources = [f"{flow.name}[{row}]" for row in range(networks)]
        made = {"by": "flow", "flow": flow.name, "seed": seed, **options}
        save_zoo(drawn, out, like=like, sources=sources, made=made)
        files = []
    if as_json:
        print_json({"folder": str(out), "networks": networks, "files": files, "zoo": like is not None})
    else:
        print(f"{networks} samples of {loaded}")
        last = f" … {Path(files[-1]).name}" if len(files) > 1 else ""
        print(f"written: {files[0]}{last}" if files else f"written: {out}")


flow_app.command("score")(flow_score)
flow_app.command("evaluate")(flow_evaluate)


def _column(zoo: "Zoo", name: str) -> "Tensor":
    """A column of the table of a zoo as conditions: whole numbers as labels, others as numbers."""
    import torch

    table = zoo.rows()
    rows = [table[index] for index in zoo.indices]
    values = [row.get(name) for row in rows]
    numbers = [n for n in dict.fromkeys(n for row in rows for n in row) if all(is_number(r.get(n)) for r in rows)]
    if not values or not all(map(is_number, values)):
        raise InputError(f"--condition {name} is no column of numbers of {zoo.folder}; it has {', '.join(numbers)}")
    return torch.tensor(values)
