"""Halfway between networks trained by others: every alignment with every renormalisation."""

import hashlib
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from coset.alignment import align, align_many, merge, renormalize
from coset.landscape import Profile, barrier, linear
from coset.models import build, example_input
from coset.study import Context, Findings, Scalar, Table, study
from coset.symmetry import Symmetry, discover
from coset.symmetry.axes import units_of
from coset.train import Recipe, evaluate
from coset_studies._shared.published import PIXELS, published_weights
from coset_studies.rebasin._midpoints_page import (
    ALIGNMENTS,
    BEST,
    CAPTION,
    CLAIMS,
    RENORMALIZATIONS,
    TABLES,
    TEXT,
    draw,
)

Params = Mapping[str, Tensor]


@dataclass(frozen=True)
class Config:
    """``networks`` of a model, from checkpoints in COSET_CHECKPOINTS or, where there is a recipe, trained here.

    ``images`` for activations and renormalisation, ``steps`` of the straight-through estimator and of Sinkhorn,
    ``starts`` from which the default is begun again, ``points`` of the line between the first two networks.
    """

    model: str
    options: tuple[tuple[str, Any], ...]
    data: str
    flatten: bool
    networks: int
    recipe: Recipe | None
    images: int
    steps: int
    starts: int
    points: int


@dataclass(frozen=True)
class _Setting:
    """The networks, their group, and the data: training images with labels, a part for statistics, the test set."""

    model: nn.Module
    sym: Symmetry
    networks: Sequence[Params]
    train: tuple[Tensor, Tensor]
    images: Tensor
    test: tuple[Tensor, Tensor]

    def accuracy(self, params: Params) -> float:
        """Test accuracy in percent."""
        found = evaluate(self.model, *self.test, params=params).accuracy
        assert found is not None
        return 100 * found


@study(
    name="rebasin-midpoints",
    title="Halfway between independently trained networks",
    reference="Ainsworth et al. 2023, Git Re-Basin; Jordan et al. 2023, REPAIR; Peña et al. 2023, Re-basin via "
    "implicit Sinkhorn differentiation; Qu and Horváth 2024",
    paper="""
    The average of two networks trained from different seeds is no better than chance. Matching units helps, more so in
    wide networks; what remains is largely a collapse of the variance of activations, which fresh batch-norm statistics
    (REPAIR) mend. For narrow networks a gap stays.
    """,
    presets={
        "quick": Config("mlp", (("in_features", 64), ("widths", (16, 16)), ("norm", "batch")), "digits", True, 3,
                        Recipe(epochs=8, batch_size=64, learning_rate=5e-3, optimizer="adam"), 400, 10, 2, 3),
        "small": Config("tiny10", (), "cifar10", False, 4, None, 5000, 200, 4, 9),
        "paper": Config("tiny10", (), "cifar10", False, 4, None, 50000, 400, 10, 25),
    },
    claims=CLAIMS,
    text={"small": TEXT},
    tables=TABLES,
    figure=draw,
    caption=CAPTION,
)  # fmt: skip
def run(config: Config, context: Context) -> Findings:
    """All pairs by all methods, all networks at once, and how much the default depends on its start."""
    setting = _setting(config, context)
    pairs = list(itertools.combinations(range(config.networks), 2))
    ends = [setting.accuracy(network) for network in setting.networks]
    found: dict[tuple[str, str], list[float]] = {}
    leans: dict[str, list[float]] = {alignment: [] for alignment in ALIGNMENTS}
    with context.progress("pairs", len(pairs) * len(ALIGNMENTS)) as bar:
        for i, j in pairs:
            for alignment in ALIGNMENTS:
                moved = _aligned(config, context, setting, alignment, i, j)
                leans[alignment].append(_lean(setting.sym, setting.networks[i], moved))
                for renormalization in RENORMALIZATIONS:
                    middle = _merged(setting, [setting.networks[i], moved], renormalization)
                    found.setdefault((alignment, renormalization), []).append(setting.accuracy(middle))
                bar.advance(note=f"{i} and {j}: {alignment}")
    starts = _starts(config, context, setting)
    lines = _lines(config, context, setting)
    everything = _all_at_once(config, context, setting)
    means = {key: sum(values) / len(values) for key, values in found.items()}
    numbers: dict[str, Scalar] = {
        "networks": config.networks,
        "ends": sum(ends) / len(ends),
        "naive": means["none", "none"],
        "weights": means["weights", "refresh"],
        "one_ascent": means["weights, one ascent", "refresh"],
        "activations": means["activations", "refresh"],
        "best": means[BEST, "refresh"],
        "best_lowest": min(found[BEST, "refresh"]),
        "best_data_free": means[BEST, "data-free"],
        "best_as_given": means[ALIGNMENTS[-2], "refresh"],
        "ratio_as_given": math.exp(sum(leans[ALIGNMENTS[-2]]) / len(pairs)),
        "ratio_best": math.exp(sum(leans[BEST]) / len(pairs)),
        "line_activations": min(lines["activations"].values()),
        "line_best": min(lines[BEST].values()),
        "starts": len(starts),
        "start_lowest": min(starts),
        "start_highest": max(starts),
        "start_range": max(starts) - min(starts),
        "all_weights": everything["weights, all at once"],
        "all_best": everything[BEST],
        "all_none": everything["none"],
    }
    return Findings(
        numbers,
        {
            "midpoints": _midpoints(found, leans),
            "pairs": _by_pair(pairs, found),
            "line": Table(("τ", *lines), [[tau, *(line[tau] for line in lines.values())] for tau in lines[BEST]]),
            "all": Table(("alignment", "test accuracy, %"), list(everything.items())),
        },
    )


def _setting(config: Config, context: Context) -> _Setting:
    options = dict(config.options)
    if config.recipe is None:
        data = context.data(config.data, flatten=config.flatten, normalize=False)
        x, tests = PIXELS.apply(data.train.x), PIXELS.apply(data.test.x)
        model = build(config.model, seed=0, **options).eval()
        networks = [published_weights(config.model, seed, model) for seed in range(config.networks)]
    else:
        data = context.data(config.data, flatten=config.flatten)
        x, tests = data.train.x, data.test.x
        options["out_features"] = data.outputs
        model = build(config.model, seed=0, **options).eval()
        networks = [
            context.trained(
                model=config.model, data=config.data, recipe=config.recipe, seed=seed, options=options,
                data_options={"flatten": config.flatten},
            ).params
            for seed in range(config.networks)
        ]  # fmt: skip
    device = context.device
    sym = discover(model, example_input(model, 2))
    return _Setting(
        model.to(device),
        sym,
        [{name: tensor.to(device) for name, tensor in network.items()} for network in networks],
        (x.to(device), data.train.y.to(device)),
        x[: config.images].to(device),
        (tests.to(device), data.test.y.to(device)),
    )


def _aligned(config: Config, context: Context, setting: _Setting, alignment: str, i: int, j: int) -> Params:
    """Network j brought to network i; what takes long is kept in the store."""
    a, b = setting.networks[i], setting.networks[j]
    if alignment == "none":
        return b
    address = {
        "kind": "alignment",
        "schema": 1,  # to be raised where an algorithm comes to give another alignment
        "networks": [_digest(a), _digest(b)],
        "alignment": alignment,
        "data": config.data,
        "images": config.images,
        "steps": config.steps,
        "seed": context.seed,
    }

    def make() -> tuple[Params, Mapping[str, object]]:
        return _align(config, context, setting, alignment, a, b), {}

    return context.store.get_or_make(address, make).params


def _align(config: Config, context: Context, setting: _Setting, alignment: str, a: Params, b: Params) -> Params:
    options: dict[str, Any] = {"seed": context.seed, "show": False}
    seen = {"model": setting.model, "data": setting.images}
    if alignment.startswith("weights"):
        return align(setting.sym, a, b, relax=alignment == "weights", **options).params
    start = align(setting.sym, a, b, method="activations", **seen, **options)
    if alignment == "activations":
        return start.params
    options |= {"model": setting.model, "data": setting.train, "start": start.element, "steps": config.steps}
    if alignment.endswith("sinkhorn"):
        return align(setting.sym, a, b, method="sinkhorn", objective="midpoint", **options).params
    return align(setting.sym, a, b, method="ste", scales="as given" not in alignment, **options).params


def _merged(setting: _Setting, networks: Sequence[Params], renormalization: str) -> Params:
    data = setting.images if renormalization == "refresh" else None
    return merge(
        setting.sym, networks, align=False, renormalize=renormalization, model=setting.model, data=data, show=False
    ).params


def _starts(config: Config, context: Context, setting: _Setting) -> list[float]:
    """Accuracy of the first pair's midpoint when the default begins elsewhere."""
    a, b = setting.networks[:2]
    generator = context.generator("starts")
    found = []
    for number in range(config.starts):
        start = setting.sym.element(setting.sym.restrict(scales=False, signs=False).random(generator).permutations)
        moved = align(setting.sym, a, b, start=start, seed=number, show=False).params
        found.append(setting.accuracy(_merged(setting, [a, moved], "refresh")))
    return found


def _lines(config: Config, context: Context, setting: _Setting) -> dict[str, dict[float, float]]:
    """Accuracy along the line between the first two networks, by τ, with fresh statistics at every point."""
    a = setting.networks[0]
    found = {}
    for alignment in ("none", "activations", BEST):
        moved = _aligned(config, context, setting, alignment, 0, 1)

        def refreshed(params: Params, tau: float, moved: Params = moved) -> Params:
            return renormalize(
                setting.sym, setting.model, params, [a, moved], method="refresh", weights=[1 - tau, tau],
                data=setting.images, show=False,
            ).params  # fmt: skip

        profile = barrier(linear(a, moved), setting.accuracy, points=config.points, at=refreshed, show=False)
        assert isinstance(profile, Profile)
        found[alignment] = dict(zip(profile.taus, profile.values, strict=True))
    return found


def _all_at_once(config: Config, context: Context, setting: _Setting) -> dict[str, float]:
    together = align_many(setting.sym, setting.networks, seed=context.seed, show=False).aligned
    chosen: dict[str, Sequence[Params]] = {"none": setting.networks, "weights, all at once": together}
    for alignment in ("weights", "activations", BEST):
        others = [_aligned(config, context, setting, alignment, 0, j) for j in range(1, config.networks)]
        chosen[alignment] = [setting.networks[0], *others]
    return {label: setting.accuracy(_merged(setting, networks, "refresh")) for label, networks in chosen.items()}


def _digest(params: Params) -> str:
    digest = hashlib.sha256()
    for name in sorted(params):
        digest.update(name.encode())
        digest.update(params[name].detach().cpu().numpy().tobytes())
    return digest.hexdigest()


def _lean(sym: Symmetry, a: Params, b: Params) -> float:
    """The mean of |log(‖w_b‖/‖w_a‖)| over the incoming weights w of hidden units: 0 where both networks count alike."""
    ratios = [
        (b[name].flatten(1).norm(dim=1) / a[name].flatten(1).norm(dim=1)).log().abs()
        for name, parameter in sym.parameters.items()
        if len(parameter.shape) > 1 and any(True for _ in units_of(parameter.axes[0]))
    ]
    return float(torch.cat(ratios).mean())


def _midpoints(found: Mapping[tuple[str, str], list[float]], leans: Mapping[str, list[float]]) -> Table:
    rows: list[list[Scalar]] = [
        [
            alignment,
            *(sum(values) / len(values) for name in RENORMALIZATIONS for values in [found[alignment, name]]),
            min(found[alignment, "refresh"]),
            max(found[alignment, "refresh"]),
            sum(leans[alignment]) / len(leans[alignment]),
        ]
        for alignment in ALIGNMENTS
    ]
    columns = ("alignment", "no renormalisation", "data-free", "refresh", "refresh, lowest pair", "highest", "lean")
    return Table(columns, rows)


def _by_pair(pairs: Sequence[tuple[int, int]], found: Mapping[tuple[str, str], list[float]]) -> Table:
    rows: list[list[Scalar]] = [
        [f"{i} and {j}", *(found[alignment, "refresh"][number] for alignment in ALIGNMENTS)]
        for number, (i, j) in enumerate(pairs)
    ]
    return Table(("pair", *ALIGNMENTS), rows)
