"""Loss barriers between independently trained MLPs, before and after alignment, by method and by width."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from coset.alignment import align
from coset.data import Dataset
from coset.landscape import Profiles, barrier, linear, on
from coset.models import build, example_input
from coset.study import Context, Findings, Scalar, Table, study
from coset.symmetry import Element, Symmetry, discover
from coset.train import RECIPES, Recipe
from coset_studies.rebasin._mnist_page import CAPTION, CLAIMS, METHODS, TABLES, TEXT, draw

Params = Mapping[str, Tensor]

_CONSTANT = replace(RECIPES["mnist-mlp"], epochs=12, schedule="constant")


@dataclass(frozen=True)
class Config:
    """Three hidden layers of ``width`` on ``data``, trained by ``recipe`` from ``pairs`` pairs of seeds.

    ``other_recipe``: for one pair more, to see how much depends on it. ``widths``: of the sweep, matched by the
    default. ``points`` of the training set count for barriers; ``images`` for activations; ``steps`` of the
    straight-through estimator.
    """

    data: str
    width: int
    widths: tuple[int, ...]
    recipe: Recipe
    other_recipe: Recipe
    pairs: int
    points: int
    images: int
    steps: int


@dataclass(frozen=True)
class _Pair:
    """Two trained networks, their group, and what barriers are measured on."""

    model: nn.Module
    sym: Symmetry
    a: Params
    b: Params
    ends: tuple[Mapping[str, Any], Mapping[str, Any]]


@study(
    name="rebasin-mnist",
    title="Loss barriers of MLPs before and after alignment",
    reference="Ainsworth et al. 2023, Git Re-Basin, fig. 2 and 5; Entezari et al. 2022; Rossi et al. 2023, section 4",
    paper="""
    Two networks trained from different seeds are apart by a high barrier of the loss on the line between them. Entezari
    et al. conjecture that permutations of units remove it; Git Re-Basin finds such permutations for wide MLPs on MNIST
    by matching weights, activations, or by a straight-through estimator, and finds that the barrier falls with the
    width.
    """,
    presets={
        "quick": Config(
            data="digits", width=32, widths=(8, 32), pairs=1, points=500, images=500, steps=20,
            recipe=Recipe(epochs=10, batch_size=64, learning_rate=2e-3, optimizer="adam", schedule="linear"),
            other_recipe=Recipe(epochs=12, batch_size=64, learning_rate=2e-3, optimizer="adam", schedule="constant"),
        ),
        "small": Config(
            data="mnist", width=512, widths=(64, 128, 256, 512, 1024), pairs=2, points=20000, images=10000, steps=300,
            recipe=RECIPES["mnist-mlp"], other_recipe=_CONSTANT,
        ),
        "paper": Config(
            data="mnist", width=512, widths=(64, 128, 256, 512, 1024, 2048), pairs=5, points=60000, images=60000,
            steps=1000, recipe=RECIPES["mnist-mlp"], other_recipe=_CONSTANT,
        ),
    },
    claims=CLAIMS,
    text={"small": TEXT},
    tables=TABLES,
    figure=draw,
    caption=CAPTION,
)  # fmt: skip
def run(config: Config, context: Context) -> Findings:
    """Train, align by every method, measure on 25 points; then sweep the width."""
    data = context.data(config.data, flatten=True)
    found: dict[str, list[Profiles]] = {method: [] for method in METHODS}
    sweep: dict[int, list[tuple[Profiles, Profiles]]] = {width: [] for width in config.widths}
    accuracies: list[tuple[float, float]] = []
    with context.progress("pairs of networks", config.pairs * (1 + len(config.widths))) as bar:
        for number in range(config.pairs):
            pair = _pair(config, context, data, config.width, number)
            accuracies += [(end["train"]["accuracy"], end["test"]["accuracy"]) for end in pair.ends]
            for method, g in _elements(config, context, data, pair, number).items():
                found[method].append(_barriers(config, data, pair, g))
            bar.advance(note=f"pair {number}")
            for width in config.widths:
                pair = _pair(config, context, data, width, number)
                g = align(pair.sym, pair.a, pair.b, seed=number, show=False).element
                naive = _barriers(config, data, pair, pair.sym.identity())
                sweep[width].append((naive, _barriers(config, data, pair, g)))
                bar.advance(note=f"pair {number}, width {width}")
    test = sum(ends[1] for ends in accuracies) / len(accuracies)
    other = _pair(config, context, data, config.width, 0, config.other_recipe)
    other_g = align(other.sym, other.a, other.b, seed=0, show=False).element
    numbers: dict[str, Scalar] = {
        "width": config.width,
        "pairs": config.pairs,
        "recipe": _sentence(config.recipe),
        "least_train_accuracy": 100 * min(ends[0] for ends in accuracies),
        "test_accuracy": 100 * test,
        **{
            f"{_word(method)}_{_word(what)}": _mean([profiles[what].barrier for profiles in found[method]])
            for method in METHODS
            for what in ("train loss", "test loss")
        },
        **{f"{_word(method)}_midpoint": _midpoint(found[method]) for method in METHODS},
        "other_recipe": _sentence(config.other_recipe),
        "other_recipe_as_trained": _barriers(config, data, other, other.sym.identity())["train loss"].barrier,
        "other_recipe_train_loss": _barriers(config, data, other, other_g)["train loss"].barrier,
        "narrowest": config.widths[0],
        "widest": config.widths[-1],
        "narrowest_barrier": _mean([aligned["train loss"].barrier for _, aligned in sweep[config.widths[0]]]),
        "widest_barrier": _mean([aligned["train loss"].barrier for _, aligned in sweep[config.widths[-1]]]),
    }
    return Findings(numbers, {"methods": _methods(found), "widths": _widths(sweep)})


def _sentence(recipe: Recipe) -> str:
    decay = {"linear": "decayed linearly to 0", "constant": "constant"}.get(recipe.schedule, recipe.schedule)
    return (
        f"{recipe.optimizer.capitalize()} at {recipe.learning_rate:g} {decay}, batches of {recipe.batch_size}, "
        f"{recipe.epochs} epochs"
    )


def _word(text: str) -> str:
    return text.replace(",", "").replace(" ", "_")


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _midpoint(profiles: list[Profiles]) -> float:
    return 100 * (1 - _mean([profile["test error"].midpoint.value for profile in profiles]))


def _pair(
    config: Config, context: Context, data: Dataset, width: int, number: int, recipe: Recipe | None = None
) -> _Pair:
    options = {"in_features": data.train.x.shape[1], "widths": [width] * 3, "out_features": data.outputs}
    entries = [
        context.trained(
            model="mlp",
            data=config.data,
            recipe=recipe or config.recipe,
            seed=seed,
            options=options,
            data_options={"flatten": True},
        )
        for seed in (2 * number, 2 * number + 1)
    ]
    model = build("mlp", seed=0, **options).eval().to(context.device)
    a, b = ({name: tensor.to(context.device) for name, tensor in entry.params.items()} for entry in entries)
    return _Pair(model, discover(model, example_input(model, 2)), a, b, (entries[0].info, entries[1].info))


def _elements(config: Config, context: Context, data: Dataset, pair: _Pair, seed: int) -> dict[str, Element]:
    """What each method finds."""
    sym, a, b = pair.sym, pair.a, pair.b
    images = (data.train.x[: config.images].to(context.device), data.train.y[: config.images].to(context.device))
    everything = (data.train.x.to(context.device), data.train.y.to(context.device))
    plain = align(sym, a, b, relax=False, seed=seed, show=False)
    default = align(sym, a, b, seed=seed, show=False)
    active = align(sym, a, b, method="activations", model=pair.model, data=images, seed=seed, show=False)
    learned = align(
        sym, a, b, method="ste", model=pair.model, data=everything, start=default.element, steps=config.steps,
        seed=seed, show=False,
    )  # fmt: skip
    return {
        "as trained": sym.identity(),
        "weights, one ascent": plain.element,
        "weights": default.element,
        "activations": active.element,
        "weights, then ste": learned.element,
    }


def _barriers(config: Config, data: Dataset, pair: _Pair, g: Element) -> Profiles:
    device = next(iter(pair.a.values())).device
    train = (data.train.x[: config.points].to(device), data.train.y[: config.points].to(device))
    test = (data.test.x.to(device), data.test.y.to(device))
    path = linear(pair.a, pair.sym.act(g, pair.b))
    found = barrier(path, on(pair.model, train=train, test=test), show=False)
    assert isinstance(found, Profiles)
    return found


def _methods(found: Mapping[str, list[Profiles]]) -> Table:
    columns = (
        "alignment",
        "train loss barrier",
        "test loss barrier",
        "train error barrier, points",
        "test error barrier, points",
        "midpoint test accuracy, %",
    )
    rows: list[list[Scalar]] = [
        [
            method,
            *(_mean([p[what].barrier for p in profiles]) for what in ("train loss", "test loss")),
            *(100 * _mean([p[what].barrier for p in profiles]) for what in ("train error", "test error")),
            _midpoint(profiles),
        ]
        for method, profiles in found.items()
    ]
    return Table(columns, rows)


def _widths(sweep: Mapping[int, list[tuple[Profiles, Profiles]]]) -> Table:
    rows = [
        (
            width,
            _mean([naive["train loss"].barrier for naive, _ in pairs]),
            _mean([aligned["train loss"].barrier for _, aligned in pairs]),
            _mean([aligned["test loss"].barrier for _, aligned in pairs]),
            _midpoint([aligned for _, aligned in pairs]),
        )
        for width, pairs in sweep.items()
    ]
    columns = ("width", "as trained, train", "aligned, train", "aligned, test", "midpoint test accuracy, %")
    return Table(columns, rows)
