"""A flow trained on draws of Hamiltonian Monte Carlo, against fresh chains: agreement, and how many draws it saves."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from coset.alignment import align_samples
from coset.canonical import canonicalize
from coset.distribution import Distribution, Gaussian, MeanField, Samples
from coset.distribution.files import pack, unpack
from coset.flow import FlowRecipe, energy_distance, fit_flow, transport
from coset.models import build
from coset.posterior import GaussianNoise, RealPredictive, diagnose, fit_hmc, predictive
from coset.study import Claim, Context, Findings, Scalar, Table, study
from coset.symmetry import Symmetry, discover
from coset_studies.flows._zoos import estimate_in

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HMC, FLOW, RAW = "HMC draws", "flow, aligned draws", "flow, draws as they are"
COUPLINGS, NORMAL = "coupling layers, aligned draws", "Gaussian, aligned draws"
FULL = "Gaussian with covariances, aligned draws"
MEAN, INTERVAL, DENSITY = "error of means", "error of 90 % intervals", "log density lost"
COLUMNS = ("value", "least", "greatest")
_MIXED = 100
"""So many draws of each chain are compared by R̂, at equal distances."""


@dataclass(frozen=True)
class Config:
    """A network with one hidden layer of ``width`` tanh units on so many ``points``; the rest of the data is for tests.

    ``chains`` of ``draws`` each, every ``thin`` iterations of ``steps`` leapfrog steps after ``warmup``, are learned,
    and ``fresh`` as many times as long ones are the reference. ``sizes``: numbers of draws that are compared, in
    ``repeats`` shifted choices, and ``flows``: those of them that flows learn. ``data``: a data set, or None for a wave
    with noise that is made here.
    """

    width: int
    points: int
    chains: int
    draws: int
    thin: int
    warmup: int
    steps: int
    fresh: int
    sizes: tuple[int, ...]
    flows: tuple[int, ...]
    repeats: int
    training: int
    hidden: int
    drawn: int
    epochs: int
    layers: int = 3
    batch_size: int = 128
    data: str | None = "snelson"
    noise: float = 0.3


QUICK = Config(
    width=2, points=40, chains=2, draws=10, thin=1, warmup=20, steps=5, fresh=1, sizes=(10, 20), flows=(10, 20),
    repeats=1, training=3, hidden=8, drawn=20, epochs=2, data=None,
)  # fmt: skip
SMALL = Config(
    width=5, points=40, chains=4, draws=100, thin=4, warmup=300, steps=25, fresh=3, sizes=(25, 50, 100, 200, 400),
    flows=(25, 100, 400), repeats=3, training=8000, hidden=128, drawn=1000, epochs=60,
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Setting:
    """The network, its group, the points that it was fitted to and those that it is tested on."""

    model: nn.Module
    sym: Symmetry
    fitted: tuple[Tensor, Tensor]
    tested: tuple[Tensor, Tensor]
    noise: float

    def predicts(self, q: Distribution, samples: int | None = None) -> RealPredictive:
        """Outputs of draws at the points of the test."""
        found = predictive(
            self.model, q, self.tested[0], y=self.tested[1], likelihood=GaussianNoise(self.noise), samples=samples,
            keep=True, show=False,
        )  # fmt: skip
        assert isinstance(found, RealPredictive)
        return found


def errors(found: RealPredictive, exact: RealPredictive) -> dict[str, float]:
    """Root mean squares over points of the errors of means and of both ends of 90 % intervals of f, in deviations of f
    under the exact posterior; and how much lower the mean log density of targets is, in nats.
    """
    at = torch.tensor([0.05, 0.95], dtype=torch.float64)
    ends = _members(found).quantile(at, 0) - _members(exact).quantile(at, 0)
    return {
        MEAN: float(((found.mean - exact.mean) / exact.model_std).square().mean().sqrt()),
        INTERVAL: float((ends / exact.model_std).square().mean().sqrt()),
        DENSITY: _log_density(exact) - _log_density(found),
    }


def _members(found: RealPredictive) -> Tensor:
    assert found.member_means is not None
    return found.member_means


def _log_density(found: RealPredictive) -> float:
    assert found.likelihood is not None
    return found.likelihood.mean


def some_of(samples: Samples, count: int, shift: int) -> Samples:
    """So many draws at equal distances along all chains, one after the other, as one chain."""
    flat = samples.flat
    total = len(samples)
    numbers = (torch.arange(count) * total // count + shift * total // (3 * count)) % total
    return Samples({name: tensor[numbers][None] for name, tensor in flat.items()})


def _data(config: Config, context: Context) -> Setting:
    generator = context.generator("points")
    if config.data is None:
        x = 6 * torch.rand(2 * config.points, 1, generator=generator, dtype=torch.float64) - 3
        y = (2 * x).sin() + config.noise * torch.randn(x.shape, generator=generator, dtype=torch.float64)
    else:
        data = context.data(config.data, dtype=torch.float64, flatten=True)
        x, y = data.train.x, data.train.y
    order = torch.randperm(len(x), generator=generator)
    first, rest = order[: config.points], order[config.points :]
    options = {"in_features": x.shape[1], "widths": [config.width], "out_features": y.shape[1]}
    model = build("mlp", seed=context.seed, activation="tanh", **options).double().eval()
    return Setting(model, discover(model, x[:2]), (x[first], y[first]), (x[rest], y[rest]), config.noise)


def _chains(config: Config, context: Context, setting: Setting, times: int, seed: int) -> Samples:
    """Chains ``times`` as long, drawn now or found in the store."""
    settings: dict[str, Any] = {
        "draws": config.draws * times, "warmup": config.warmup, "thin": config.thin, "leapfrog_steps": config.steps,
        "chains": config.chains, "prior": 1.0, "spread": "prior", "seed": seed,
    }  # fmt: skip
    data = {"data": config.data, "points": config.points, "noise": config.noise, "part": context.seed}
    key = {"kind": "chains of flows-posterior", "schema": 1, "width": config.width, **data, **settings}

    def make() -> tuple[Mapping[str, Tensor], Mapping[str, object]]:
        likelihood = GaussianNoise(config.noise)
        fit = fit_hmc(setting.model, setting.fitted, likelihood=likelihood, show=context.show, **settings)
        return pack(fit.posterior)

    entry = context.store.get_or_make(key, make)
    found = unpack(entry.params, entry.info)
    assert isinstance(found, Samples)
    return found


def _flow(config: Config, samples: Samples, seed: int) -> Distribution:
    """On principal components, so that it begins as the Gaussian with the covariance of the draws."""
    recipe = FlowRecipe(
        steps=config.training,
        batch_size=min(config.batch_size, len(samples)),
        learning_rate=2e-3,
        every=min(50, config.training),
    )
    field = {"hidden": config.hidden, "layers": config.layers}
    return fit_flow(samples, recipe, projection="pca", field_options=field, seed=seed, show=False).posterior


def _couplings(config: Config, samples: Samples, seed: int) -> Distribution:
    prior = MeanField(samples.mean, {name: torch.ones_like(t) for name, t in samples.mean.items()})
    settings: dict[str, Any] = {
        "epochs": config.epochs, "batch_size": min(50, len(samples)), "learning_rate": 2e-3, "seed": seed,
        "show": False,
    }  # fmt: skip
    found: Distribution = transport(prior, samples, **settings).posterior
    return found


def _normal(config: Config, samples: Samples, seed: int) -> Distribution:
    return MeanField(samples.mean, samples.std)


def _full(config: Config, samples: Samples, seed: int) -> Distribution:
    """Where the flow begins."""
    return Gaussian(samples.mean, torch.cov(vectors(samples).T), samples.random_names)


def vectors(samples: Samples) -> Tensor:
    """Draws as rows (N, D)."""
    flat = samples.flat
    return torch.cat([flat[name].flatten(1) for name in samples.random_names], 1)


MAKERS: Mapping[str, Callable[[Config, Samples, int], Distribution]] = {
    FLOW: _flow,
    RAW: _flow,
    COUPLINGS: _couplings,
    NORMAL: _normal,
    FULL: _full,
}
"""How a distribution is made of draws."""


def in_one_frame(sym: Symmetry, samples: Samples, reference: Mapping[str, Tensor]) -> Tensor:
    """Draws as rows (N, D), each brought to the reference by the group."""
    form = canonicalize(sym, samples.flat, reference).params
    return torch.cat([form[name].flatten(1) for name in samples.random_names], 1)


def mixing(setting: Setting, chains: Samples, more: Samples) -> dict[str, float]:
    """The largest R̂ of functions, and of weights modulo the group, with ``more`` draws as one more chain."""
    count = min(_MIXED, chains.draws, more.draws)
    both = [{n: t[:, :: s.draws // count][:, :count] for n, t in s.params.items()} for s in (chains, more)]
    joined = {name: torch.cat([part[name] for part in both]) for name in both[0]}
    found = diagnose(Samples(joined), model=setting.model, x=setting.tested[0][::4], sym=setting.sym, show=False)
    sides = found.sides
    return {"functions": sides["functions"].max_rhat, "weights modulo the group": sides["aligned weights"].max_rhat}


def _claim(table: str, row: Mapping[str, Scalar], what: str, threshold: float, paper: str, reason: str) -> Claim:
    return Claim(
        paper=paper,
        source="what a flow has to do that stands for a posterior",
        statistic=what,
        direction="below",
        threshold=threshold,
        reason=f"{reason}; set before the run.",
        interval="From the least to the greatest of the repeats, each with its own choice of draws and seed.",
        estimate=lambda results: estimate_in(results, table, COLUMNS, **row),
    )


_LARGEST = SMALL.sizes[-1]
_FLOW = f"flow of {_LARGEST} aligned draws against fresh chains: "
CLAIMS = [
    _claim("agreement", {"method": FLOW, "draws": _LARGEST, "statistic": MEAN},
           _FLOW + "root mean square error of predictive means, posterior deviations", 0.15,
           "A flow predicts as the posterior does.",
           "400 draws with the autocorrelation of such chains are off by about 0.1 themselves"),
    _claim("agreement", {"method": FLOW, "draws": _LARGEST, "statistic": INTERVAL},
           _FLOW + "root mean square error of the ends of 90 % intervals, posterior deviations", 0.3,
           "Its intervals are those of the posterior.",
           "Quantiles in the tails are twice as uncertain as means"),
    _claim("agreement", {"method": FLOW, "draws": _LARGEST, "statistic": DENSITY},
           _FLOW + "mean log predictive density lost, nats", 0.02,
           "Test data are as likely under it.",
           "An error of predictions of a fifth of the deviation of the noise costs 0.02 nats"),
    _claim("distances", {"statistic": "flow over Gaussian"},
           "energy distance to fresh draws modulo the group: that of the flow over that of a Gaussian", 0.5,
           "A flow is nearer to the posterior than a Gaussian with the deviations of the same aligned draws.",
           "A flow that is not has learned little more than two moments"),
    _claim("mixing", {"chain": FLOW, "side": "functions"},
           "largest R̂ of functions with the flow as a chain", 1.05,
           "Chains do not tell it from one of them.",
           "Chains of this length reach 1.02 among themselves"),
    _claim("mixing", {"chain": FLOW, "side": "weights modulo the group"},
           "largest R̂ of weights modulo the group with the flow as a chain", 1.1,
           "Neither do weights modulo the group.",
           "Chains of this length reach 1.07 among themselves"),
    _claim("saved", {"draws": 25, "statistic": MEAN},
           "error of means: flow of 25 draws over these draws", 1.0, "A flow saves draws.",
           "Below 1 the flow is nearer to the posterior than what it was trained on"),
    _claim("saved", {"draws": 25, "statistic": INTERVAL},
           "error of ends of intervals: flow of 25 draws over these draws", 1.0, "It saves draws where tails count.",
           "Below 1 the flow is nearer to the posterior than what it was trained on"),
]  # fmt: skip


_WORTH = (
    "Of so many draws of the chains themselves is the error that of the flow, by lines between the numbers of draws "
    "that were tried."
)

TEXT = """
A network of {width} tanh units ({weights} weights, a group of {order} permutations and signs) was fitted to {points}
points. {chains} chains of {draws} draws each were learned, in part thinned to fewer; {fresh} draws of fresh chains with
another seed are the reference. Two halves of these differ by {half_mean:.3f} posterior deviations in means and by
{half_interval:.3f} in ends of intervals: errors below that cannot be told apart.

With 400 aligned draws the flow predicts means nearly as well as the draws that it learned: they are off by
{agreement[flow, aligned draws, 400, error of means][value]:.2f} posterior deviations, those of the draws by
{agreement[HMC draws, 400, error of means][value]:.2f}. The ends of its 90 % intervals are off by
{agreement[flow, aligned draws, 400, error of 90 % intervals][value]:.2f} deviations, those of the draws by
{agreement[HMC draws, 400, error of 90 % intervals][value]:.2f}: its tails are too wide. Nor does it save draws: made of
25, its errors are {saved[25, error of means][value]:.1f} and {saved[25, error of 90 % intervals][value]:.1f} times
theirs, and what it makes of 400 predicts means as well as {worth[400, error of means][worth draws]:.0f} draws of the
chains.

The posterior of functions is far narrower than that of weights: a weight may move if others move along. A
distribution that is a little too wide in weights predicts far too widely. Whatever else was made of the same draws is
wider: a Gaussian with their covariances is off by
{agreement[Gaussian with covariances, aligned draws, 400, error of 90 % intervals][value]:.1f} in intervals, one with
their deviations alone by {agreement[Gaussian, aligned draws, 400, error of 90 % intervals][value]:.0f}, coupling
layers by {agreement[coupling layers, aligned draws, 400, error of 90 % intervals][value]:.1f}, a flow on draws that
were not aligned by {agreement[flow, draws as they are, 400, error of 90 % intervals][value]:.1f}. Weights do not show
it: R̂ modulo the group takes the flow for one of the chains
({mixing[flow, aligned draws, weights modulo the group][value]:.2f}), R̂ of functions stands at its threshold
({mixing[flow, aligned draws, functions][value]:.2f}).

The claim on the density of test data holds and says nothing of agreement: test data are likelier under wider
predictions than under the posterior itself, so that what is lost is below 0.
"""


@study(
    name="flows-posterior",
    title="A flow as a posterior: trained on chains, against fresh chains",
    reference="The thesis, chapters 2 and 3; Székely and Rizzo 2013 (energy distance); Vehtari et al. 2021 (R̂)",
    paper="""
    Chains leave a list of draws; a flow that is trained on them is a distribution that can be drawn from and has a
    density: transformation-based inference beside the chain-based one. Whether it is the posterior is asked of fresh
    chains.
    """,
    presets={"quick": QUICK, "small": SMALL, "paper": SMALL},
    claims=CLAIMS,
    text={"small": TEXT},
    tables={
        "agreement": "Errors against fresh chains, of as many draws of each method; means of the repeats.",
        "saved": "Errors of the flow over those of the draws that it was trained on.",
        "worth": _WORTH,
        "distances": "Energy distance to fresh draws in one frame of the group; p of as large a value by chance.",
        "mixing": """
    The largest R̂ of fresh chains with one more chain: of the draws of the first run, or of what was made of them.
    """,
    },
    figure=lambda results: _figure(results.tables["agreement"]),
    caption="""
    Errors of the predictive distribution against fresh chains, in deviations of the posterior, by the number of draws
    that are learned; bands from the least to the greatest repeat.
    """,
)
def run(config: Config, context: Context) -> Findings:
    """Chains to learn from, fresh ones, and what is made of more and more draws."""
    setting = _data(config, context)
    learned = _chains(config, context, setting, 1, 2 * context.seed)
    fresh = _chains(config, context, setting, config.fresh, 2 * context.seed + 1)
    exact = setting.predicts(fresh)
    curves: dict[tuple[str, int], list[dict[str, float]]] = {}
    largest: dict[str, list[Samples]] = {}
    with context.progress("sizes", len(config.sizes) * config.repeats) as bar:
        for size in config.sizes:
            for repeat in range(config.repeats):
                draws = some_of(learned, size, repeat)
                aligned = align_samples(setting.sym, draws, show=False).aligned
                curves.setdefault((HMC, size), []).append(errors(setting.predicts(draws), exact))
                if size == config.sizes[-1]:
                    largest.setdefault(HMC, []).append(draws)
                for method, make in MAKERS.items():
                    if size not in config.flows or (method != FLOW and size != config.sizes[-1]):
                        continue
                    q = make(config, draws if method == RAW else aligned, context.seed * 1000 + repeat)
                    drawn = q.sample(config.drawn, context.generator(f"{method} {size} {repeat}"))
                    found = Samples({name: tensor[None] for name, tensor in drawn.items()})
                    curves.setdefault((method, size), []).append(errors(setting.predicts(found), exact))
                    if size == config.sizes[-1]:
                        largest.setdefault(method, []).append(found)
                bar.advance(note=f"{size} draws")
    halves = [Samples({n: t[side] for n, t in fresh.params.items()}) for side in _halves(config.chains)]
    between = errors(setting.predicts(halves[0]), setting.predicts(halves[1]))
    agreement = [
        [method, size, name, *_spread([one[name] for one in found])]
        for (method, size), found in curves.items()
        for name in (MEAN, INTERVAL, DENSITY)
    ]
    tables = {
        "agreement": Table(("method", "draws", "statistic", *COLUMNS), agreement),
        "saved": Table(("draws", "statistic", *COLUMNS), _saved(curves, config.flows)),
        "worth": Table(("draws learned", "statistic", "worth draws", "bound"), _worth(curves, config.sizes), _WORTH),
        "distances": Table(("statistic", *COLUMNS, "least p"), _distances(setting.sym, fresh, largest)),
        "mixing": Table(("chain", "side", *COLUMNS), _mixing(setting, fresh, largest)),
    }
    return Findings(
        numbers={
            "width": config.width,
            "points": config.points,
            "weights": sum(t[0, 0].numel() for t in learned.params.values()),
            "order": round(torch.tensor(setting.sym.log_order).exp().item()),
            "chains": config.chains,
            "draws": config.draws,
            "fresh": len(fresh),
            "half_mean": between[MEAN],
            "half_interval": between[INTERVAL],
        },
        tables=tables,
    )


def _halves(chains: int) -> tuple[slice, slice]:
    return slice(0, chains // 2), slice(chains // 2, chains)


def _spread(values: list[float]) -> list[Scalar]:
    return [sum(values) / len(values), min(values), max(values)]


def _saved(curves: Mapping[tuple[str, int], list[dict[str, float]]], sizes: tuple[int, ...]) -> list[list[Scalar]]:
    rows: list[list[Scalar]] = []
    for size in sizes:
        for name in (MEAN, INTERVAL):
            pairs = zip(curves[FLOW, size], curves[HMC, size], strict=True)
            rows.append([size, name, *_spread([flow[name] / plain[name] for flow, plain in pairs])])
    return rows


def worth(error: float, sizes: Sequence[int], curve: Sequence[float]) -> tuple[float | None, str]:
    """So many draws have this error: by straight lines between logarithms of a curve that does not rise; beyond its
    ends None, and which end.
    """
    falling = np.minimum.accumulate(np.asarray(curve))
    if error > falling[0]:
        return None, f"fewer than {sizes[0]}"
    if error < falling[-1]:
        return None, f"more than {sizes[-1]}"
    known, first = np.unique(-np.log(falling), return_index=True)
    return float(np.exp(np.interp(-np.log(error), known, np.log(np.asarray(sizes))[first]))), ""


def _worth(curves: Mapping[tuple[str, int], list[dict[str, float]]], sizes: tuple[int, ...]) -> list[list[Scalar]]:
    """As many draws of the chains as are as near to fresh chains as the flow of fewer or more draws is."""
    rows: list[list[Scalar]] = []
    for name in (MEAN, INTERVAL):
        mean = {at: sum(one[name] for one in curves[at]) / len(curves[at]) for at in curves}
        plain = [mean[HMC, size] for size in sizes]
        rows += [[size, name, *worth(mean[FLOW, size], sizes, plain)] for size in sizes if (FLOW, size) in mean]
    return rows


def _distances(sym: Symmetry, fresh: Samples, largest: Mapping[str, list[Samples]]) -> list[list[Scalar]]:
    """Energy distances to fresh draws, all brought to one of them."""
    reference = fresh.draw(0, 0)
    count = min(300, len(fresh), *(len(one) for found in largest.values() for one in found))
    there = in_one_frame(sym, some_of(fresh, count, 0), reference)
    found = {
        method: [
            energy_distance(in_one_frame(sym, some_of(one, count, 0), reference), there, permutations=199)
            for one in several
        ]
        for method, several in largest.items()
    }
    rows: list[list[Scalar]] = [
        [method, *_spread([one.value for one in several]), min(one.p_value or 0.0 for one in several)]
        for method, several in found.items()
    ]
    ratios = [flow.value / normal.value for flow, normal in zip(found[FLOW], found[NORMAL], strict=True)]
    return [*rows, ["flow over Gaussian", *_spread(ratios), None]]


def _mixing(setting: Setting, fresh: Samples, largest: Mapping[str, list[Samples]]) -> list[list[Scalar]]:
    """R̂ of the fresh chains with one more: draws of the first run, of flows, of the Gaussian."""
    rows: list[list[Scalar]] = []
    for method in (HMC, FLOW, NORMAL, FULL):
        several = largest[method]
        found = [mixing(setting, fresh, one) for one in several]
        rows += [[method, side, *_spread([one[side] for one in found])] for side in found[0]]
    return rows


def _figure(agreement: Table) -> "Figure":
    """Errors by the number of draws."""
    from matplotlib.ticker import NullFormatter

    from coset.figures import BLUE, GREEN, INK, ORANGE, PURPLE, VERMILION, label_panel, new_figure

    figure = new_figure(6.2, 2.4)
    colours = {HMC: INK, FLOW: BLUE, RAW: VERMILION, COUPLINGS: GREEN, NORMAL: ORANGE, FULL: PURPLE}
    panels = figure.subplots(1, 2)
    for panel, letter, name in zip(panels, "ab", (MEAN, INTERVAL), strict=True):
        for method, colour in colours.items():
            rows = [row[1:] for row in agreement.rows if (row[0], row[2]) == (method, name)]
            if not rows:
                continue
            sizes, _, values, least, greatest = (
                [float(str(row[k])) if k != 1 else 0.0 for row in rows] for k in range(5)
            )
            panel.plot(sizes, values, "o-" if len(sizes) > 1 else "o", color=colour, label=method)
            panel.fill_between(sizes, least, greatest, color=colour, alpha=0.15, linewidth=0)
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.set_xticks(sorted({int(str(row[1])) for row in agreement.rows}), minor=False)
        panel.xaxis.set_major_formatter("{x:.0f}")
        panel.xaxis.set_minor_formatter(NullFormatter())
        panel.set_xlabel("draws")
        label_panel(panel, letter, name)
    panels[0].set_ylabel("posterior deviations")
    panels[0].legend(fontsize=6, loc="upper left", handlelength=1)
    panels[0].set_ylim(top=30)
    return figure
