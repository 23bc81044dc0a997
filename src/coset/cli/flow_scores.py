"""``coset flow score`` and ``coset flow evaluate``."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import coset.cli.options as given
from coset._checks import check_choice, check_seed
from coset.cli.flow_files import Count, FlowFile, SolverName, SolverSteps, about_flow, chosen_solver, loaded_flow
from coset.cli.printing import print_json, show_table
from coset.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from coset.flow import Flow

Trace = Annotated[
    str,
    typer.Option(metavar="NAME", help="The divergence: exact, a pass for each weight and step, or hutchinson."),
]
Probes = Annotated[int, typer.Option(metavar="N", help="Draws of hutchinson's estimate.")]


def flow_score(
    flow: FlowFile,
    networks: Annotated[
        list[Path], typer.Argument(metavar="NETWORKS", help="Files of weights, or the folder of a zoo.")
    ],
    trace: Trace = "exact",
    probes: Probes = 1,
    modulo: Annotated[
        int | None,
        typer.Option(metavar="K", help="Average the density over K permutations, the networks as they are among them."),
    ] = None,
    solver: SolverName = None,
    steps: SolverSteps = None,
    key: given.Key = None,
    strip_prefix: given.PrefixToStrip = "",
    seed: given.Seed = 0,
    as_json: given.Json = False,
) -> None:
    """How likely given networks are: log p in nats, each first brought to its place in the frame of the flow.

    Densities of euclidean flows are by weights, those of geometric flows by the volume of the manifold of canonical
    weights: do not compare the one with the other. Normalized flows have none.

    \b
    coset flow score flow.safetensors a.pt b.safetensors
    coset flow score flow.safetensors zoo --trace hutchinson --probes 4 --json
    """
    import torch

    from coset.distribution import Estimate
    from coset.flow import log_prob_modulo

    given.check_counts({"--probes": (probes, 1), "--modulo": (1 if modulo is None else modulo, 1)})
    loaded = loaded_flow(flow)
    names, stack = _read(loaded, networks, key, strip_prefix)
    options: dict[str, Any] = {
        "solver": chosen_solver(loaded, solver, steps), "trace": trace, "probes": probes, "seed": check_seed(seed)
    }  # fmt: skip
    with torch.no_grad():
        placed = loaded.canonical(stack)
        if modulo is None:
            logs = loaded.log_prob(placed, **options)
        elif loaded.frame.symmetry is None:
            raise InputError(f"--modulo is {modulo}, and {flow} is of points without a symmetry; expected none")
        else:
            logs = log_prob_modulo(loaded.frame.symmetry, loaded, placed, draws=modulo, **options)
    size = loaded.frame.space.size
    mean = Estimate.of(logs / size) if len(logs) > 1 else None
    if as_json:
        pairs = zip(names, logs.tolist(), strict=True)
        rows = [{"network": n, "log_prob": v, "per_weight": v / size} for n, v in pairs]
        kept = {"trace": trace, "probes": probes, "modulo": modulo, "seed": seed}
        summary = None if mean is None else mean._asdict()
        print_json({"flow": str(flow), **about_flow(loaded), **kept, "networks": rows, "per_weight": summary})
        return
    show_table(
        ["network", "log p, nats", "per weight"],
        [[n, f"{v:.3f}", f"{v / size:.4f}"] for n, v in zip(names, logs.tolist(), strict=True)],
        right=[1, 2],
    )
    if mean is not None:
        print(f"mean per weight: {mean.value:.4f} ± {mean.error:.4f} (standard error)")
    print(f"densities are by {about_flow(loaded)['density']}, {size:,} coordinates")


def flow_evaluate(
    flow: FlowFile,
    zoo: Annotated[Path, typer.Argument(metavar="ZOO", help="The zoo that the flow was fitted to.")],
    held_out: Annotated[
        Path | None,
        typer.Option("--held-out", metavar="ZOO", help="A zoo of networks trained alike that the flow has not seen."),
    ] = None,
    networks: Count = 64,
    bar: Annotated[
        float | None,
        typer.Option(metavar="X", help="A performant network reaches this [default: what 95 % of ZOO reach]."),
    ] = None,
    generator: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A cheap generator beside the flow; may be repeated [default: all]."),
    ] = None,
    compared: Annotated[
        int | None, typer.Option(metavar="N", help="Measure distances to so many networks of ZOO [default: all].")
    ] = None,
    trace: Trace = "hutchinson",
    probes: Probes = 1,
    part: Annotated[str, typer.Option(metavar="PART", help="train, validation or test.")] = "test",
    data: Annotated[
        str | None, typer.Option(metavar="NAME", help="Data of `coset data list` [default: those of ZOO].")
    ] = None,
    loss: Annotated[str | None, typer.Option(metavar="NAME", help="The loss [default: that of the recipe].")] = None,
    solver: SolverName = None,
    steps: SolverSteps = None,
    seed: given.Seed = 0,
    as_json: given.Json = False,
) -> None:
    """Are samples good and new? Scores of the flow beside generators that cost nothing: what it has to beat.

    Accuracy and loss; the part that is novel (farther from every network of ZOO, modulo the symmetry, than half of
    these are from each other) and performant; memorised ones; the distance between distributions. Beside it noise on
    a network, interpolations and averages of aligned networks, Gaussians.

    \b
    coset flow evaluate flow.safetensors zoo
    coset flow evaluate flow.safetensors zoo --held-out others -n 256 --bar 0.95 --json
    """
    from coset.flow import GENERATORS, evaluate_flow
    from coset.zoo import open_zoo, zoo_task

    given.check_counts(
        {"--networks": (networks, 1), "--probes": (probes, 1), "--compared": (2 if compared is None else compared, 2)}
    )
    chosen = [check_choice("--generator", name, GENERATORS) for name in generator or GENERATORS]
    loaded, opened = loaded_flow(flow), open_zoo(zoo)
    if loaded.frame.symmetry is None:
        raise InputError(f"{flow} is of points without a symmetry; expected a flow of networks")
    others = None if held_out is None else open_zoo(held_out).stack()
    stack = opened.stack()
    _require_fit(loaded, stack, f"networks of {zoo}")
    if others is not None:
        _require_fit(loaded, others, f"networks of {held_out}")
    examples, known = zoo_task(opened, part, data=data, loss=loss)
    found = evaluate_flow(
        loaded,
        opened.model(opened.indices[0]),
        stack,
        (examples.x, examples.y),
        samples=networks,
        bar=bar,
        held_out=others,
        solver=chosen_solver(loaded, solver, steps),
        trace=trace,
        probes=probes,
        seed=check_seed(seed),
        loss=known,
        compared=compared,
        generators=chosen,
    )
    if as_json:
        about = {"flow": str(flow), "zoo": str(zoo), "part": part, "seed": seed, **about_flow(loaded)}
        print_json({**about, "scores": found.to_dict(), "not_beaten": list(found.not_beaten("flow"))})
        return
    print(found)
    first = found.scores["flow"]
    sign = "at least" if first.evaluation.measure == "accuracy" else "at most"
    reached = f"{first.evaluation.measure} {sign} {first.bar:.4g}"
    print(f"performant: {reached} on the {part} part, {len(examples):,} examples")


def _read(flow: "Flow", paths: list[Path], key: str | None, strip_prefix: str) -> tuple[list[str], dict[str, "Tensor"]]:
    """Networks by the names of their files, or by their numbers in a zoo, as a stack that fits the flow."""
    import torch

    from coset.checkpoints import match_checkpoint, read_checkpoint
    from coset.zoo import open_zoo

    folders = [path for path in paths if path.is_dir()]
    if folders and len(paths) > 1:
        raise InputError(f"{folders[0]} is a folder, beside others; expected files of weights, or one folder of a zoo")
    if folders:
        zoo = open_zoo(folders[0])
        stack = zoo.stack()
        _require_fit(flow, stack, f"networks of {folders[0]}")
        return [f"{folders[0]}[{index}]" for index in zoo.indices], stack
    like = dict(flow.frame.space.like)
    read = [read_checkpoint(path, key=key, strip_prefix=strip_prefix) for path in paths]
    found = [match_checkpoint(one, like, "networks of the flow") for one in read]
    return [str(path) for path in paths], {
        name: torch.stack([one[name].to(tensor.dtype) for one in found]) for name, tensor in like.items()
    }


def _require_fit(flow: "Flow", stack: Mapping[str, "Tensor"], what: str) -> None:
    """Raise unless networks have the tensors that those of a flow have."""
    like = flow.frame.space.like
    for name in {**like, **stack}:
        here, there = (tuple(t.shape) if t is not None else None for t in (like.get(name), stack.get(name)))
        if there is not None:
            there = there[1:]
        if here != there:
            raise InputError(f"{what} do not fit the flow: '{name}' is {there}; expected {here}")
