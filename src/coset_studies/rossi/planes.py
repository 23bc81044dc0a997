"""Planes through three networks: the posterior between samples of two posteriors, naive and aligned."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from coset.distribution import MeanField
from coset.landscape import Functional, Plane, Profile, barrier, geodesic, linear, loss, plane
from coset.posterior import Isotropic
from coset.study import Claim, Context, Findings, Scalar, Table, study
from coset.study.estimates import number, ratio
from coset.study.images import Images, load_images
from coset_studies.rossi import _mlps
from coset_studies.rossi._claims import NO_ERROR, NO_NUMBERS
from coset_studies.rossi._mlps import NARROWER, SETTING, Layers
from coset_studies.rossi._pairs import Inference, Network, Pair, pair_of
from coset_studies.rossi._residual import IMAGES, INFERENCE, NETWORK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LEVELS = 12
CAPTION = """
(a, b) Log-posterior on the planes through samples of q₀, of q₁ (as it came; aligned) and of the posterior halfway.
(c, d, e) Log-likelihood, log-prior and log-posterior on the plane of three means; from dark to bright it is as many
nats in all three. Nats per data point; s and t have scales of their own.
"""
TEXT = (
    """
On the straight line between a sample of q₀ and one of q₁ the log-posterior drops by {naive_drop:.2f} nats per data
point below the chord; if q₁ is aligned, by {aligned_drop:.2f}. The aligned samples are connected by the higher
density, as in the paper. One sample of each posterior is drawn, so that no error is known; that a drop is left at all
with alignment fits [rossi-barriers](rossi-barriers.md), where a quarter of the train barrier on CIFAR-10 is left,
too.

That the prior is about as strong at the three means is no finding of this run. A permutation and signs leave a
Gaussian prior as it is, so that q₁ and its aligned copy have exactly the same, and two networks that were trained
alike have about the same: their log-priors differ by {prior_spread:.4f} nats per data point. On the plane of the
means the log-likelihood varies by {likelihood_range:.1f}. So what is different there comes from the likelihood, as
the paper says.

The networks are MLPs on CIFAR-10 (as in fig. 2; figs. 6 and A16 are of ResNet20), whose pictures are averaged in
squares of 2×2 and normalised. The planes show the posterior that is not tempered.

"""
    + NARROWER
    + SETTING.replace(", pixels are from 0 to 1", "")
)


@dataclass(frozen=True)
class Config:
    """Two posteriors of ``network``; planes are evaluated on ``points`` train examples and ``grid``² networks."""

    images: Images
    network: Network | Layers
    inference: Inference
    points: int
    grid: int
    margin: float = 0.25


@study(
    name="rossi-planes",
    title="The posterior on planes through three networks",
    reference="Rossi et al. 2023, fig. 2, fig. 6 and fig. A16 (planes), sections 5.1 and D",
    paper="""
    Samples of q₀ and of the aligned q₁ are connected by regions of higher posterior density than samples of q₀ and of
    q₁ as it came. On the plane through the three means the prior is about as strong everywhere: what is different comes
    from the likelihood.
    """,
    claims=[
        Claim(
            paper="Aligned samples are connected by regions of higher posterior density than samples as they came.",
            source="figs. 2, 6 and A16",
            statistic="drop of the log-posterior between two samples, aligned, as a share of that as they came",
            direction="below",
            threshold=0.5,
            reason=f"A drop of half the size is seen in a picture of the plane. {NO_NUMBERS}",
            interval=NO_ERROR,
            possible=(0.0, math.inf),
            estimate=lambda results: ratio(number(results, "aligned_drop"), number(results, "naive_drop")),
        )
    ],
    text={"small": TEXT},
    tables={"lines": "Log-posterior per data point between a sample of q₀ and one of q₁."},
    presets={
        "quick": Config(IMAGES["quick"], NETWORK["quick"], INFERENCE["quick"], points=100, grid=9),
        # The MLPs of fig. 2: a residual network takes ten times as long.
        "small": Config(
            replace(IMAGES["small"], flat=True),
            _mlps.LAYERS["small"],
            _mlps.INFERENCE["small"],
            points=2000,
            grid=25,
        ),
        "paper": Config(IMAGES["paper"], NETWORK["paper"], INFERENCE["paper"], points=10_000, grid=41),
    },
)
def run(config: Config, context: Context) -> Findings:
    """The planes through samples of q₀, q₁ and of what is halfway between them, and through the means."""
    data = load_images(context, config.images)
    pair = pair_of(context, data, config.network, config.inference)
    x, y = data.train.x[: config.points].to(context.device), data.train.y[: config.points].to(context.device)
    prior = Isotropic(config.inference.prior_variance**0.5)
    first, second, aligned = pair.first, pair.second, pair.aligned
    assert isinstance(first, MeanField)
    triples = {
        "naive": [draw_sample(context, q, name) for name, q in _three(first, second).items()],
        "aligned": [draw_sample(context, q, name) for name, q in _three(first, aligned).items()],
        "means": [dict(q.mean) for q in (first, second, aligned)],
    }
    planes = {}
    with context.progress("planes", len(triples)) as bar:
        for label, networks in triples.items():
            settings: dict[str, Any] = {"points": (config.grid, config.grid), "margin": config.margin, "show": False}
            found = plane(pair.model, networks, (x, y), prior=prior, **settings)
            # The prior stands beside the likelihood of all train examples, of which these are some.
            planes[label] = replace(found, log_prior=found.log_prior * found.count / len(data.train))
            bar.advance(note=label)
    lines = {
        label: log_posterior_line(pair, triples[label], (x, y), prior, len(data.train))
        for label in ("naive", "aligned")
    }
    priors = [_log_prior(pair, mean, prior) / len(data.train) for mean in triples["means"]]
    return _findings(planes, lines, priors)


def _three(first: Any, end: Any) -> dict[str, MeanField]:
    return {"q0": first, "q1": end, "halfway": geodesic(first, end)(0.5)}


def draw_sample(context: Context, q: MeanField, name: str) -> dict[str, Tensor]:
    """One network of q, with noise of its own: with common noise the three would lie on one line."""
    drawn = q.sample(1, context.generator(f"sample of {name}"))
    return {key: tensor[0] for key, tensor in drawn.items()}


def log_posterior_line(
    pair: Pair, networks: list[dict[str, Tensor]], data: tuple[Tensor, Tensor], prior: Isotropic, count: int
) -> Profile:
    """The log-posterior per data point on the straight line between the first two networks."""
    cost = loss(pair.model, data)

    def log_posterior(params: Mapping[str, Tensor]) -> float:
        return _log_prior(pair, params, prior) / count - cost(params)

    functional = Functional("log-posterior", log_posterior, better="higher", unit="nats")
    return barrier(linear(networks[0], networks[1]), functional, show=False)


def _log_prior(pair: Pair, params: Mapping[str, Tensor], prior: Isotropic) -> float:
    return float(prior.log_prob({name: params[name] for name, _ in pair.model.named_parameters()}))


def _findings(planes: Mapping[str, Plane], lines: Mapping[str, Profile], priors: list[float]) -> Findings:
    values = planes["means"].log_likelihood
    # Where no point lies below the chord the drop may be -0.
    drops = {label: line.barrier + 0.0 for label, line in lines.items()}
    numbers: dict[str, Scalar] = {f"{label}_drop": drop for label, drop in drops.items()}
    numbers |= {f"{label}_ends": (line.values[0] + line.values[-1]) / 2 for label, line in lines.items()}
    spread, likelihoods = max(priors) - min(priors), float(values.max() - values.min())
    numbers |= {"prior_spread": spread, "likelihood_range": likelihoods}
    rows: list[list[Scalar]] = [
        [label, line.values[0], line.midpoint.value, line.values[-1], drops[label]] for label, line in lines.items()
    ]
    columns = ("samples", "of q₀", "halfway", "of q₁", "drop")
    return Findings(
        numbers,
        {"lines": Table(columns, rows)},
        figure=lambda: _figure(planes),
        caption=CAPTION,
    )


def _figure(planes: Mapping[str, Plane]) -> "Figure":
    from coset.figures import label_panel, new_figure

    figure = new_figure(9.6, 5.6)
    grid = figure.add_gridspec(2, 6)
    means = planes["means"]
    naive, aligned = planes["naive"], planes["aligned"]
    halfway, moved = ("q₀", "q₁", "halfway"), ("q₀", "aligned q₁", "halfway")
    three = ("q₀", "q₁", "aligned q₁")
    # One scale of colours for both, so that they can be compared.
    both = _levels(naive.log_posterior, aligned.log_posterior)
    panels = [
        (grid[0, 0:3], naive, naive.log_posterior, both, "log-posterior, samples as they came", halfway),
        (grid[0, 3:6], aligned, aligned.log_posterior, both, "log-posterior, samples aligned", moved),
    ]
    of_means = {"likelihood": means.log_likelihood, "prior": means.log_prior, "posterior": means.log_posterior}
    span = max(float(values.max() - values.min()) for values in of_means.values())
    for column, (name, values) in enumerate(of_means.items()):
        place = grid[1, 2 * column : 2 * column + 2]
        # As many nats from dark to bright in all three: so much less does the prior vary.
        panels.append((place, means, values, _levels(values, span=span), f"log-{name}, means", three))
    for letter, (place, which, values, levels, title, labels) in zip("abcde", panels, strict=True):
        axes = figure.add_subplot(place)
        _draw_plane(axes, which, values, levels, labels)
        label_panel(axes, letter, title)
    return figure


def _levels(*values: Tensor, span: float | None = None) -> list[float]:
    """Closer where the values are high, which is where the networks are; ``span``: from the lowest to the highest."""
    top, bottom = max(float(part.max()) for part in values), min(float(part.min()) for part in values)
    bottom = bottom if span is None else top - span
    return [top - (top - bottom) * (step / LEVELS) ** 2 for step in range(LEVELS, -1, -1)]


def _draw_plane(axes: "Axes", which: Plane, values: Tensor, levels: list[float], labels: tuple[str, ...]) -> None:
    from coset.figures import INK, VERMILION

    filled = axes.contourf(which.s.numpy(), which.t.numpy(), values.numpy(), levels=levels, cmap="cividis")
    axes.figure.colorbar(filled, ax=axes, format="%.3f")
    for (s, t), label in zip(which.coordinates.tolist(), labels, strict=True):
        axes.plot([s], [t], "o", color=VERMILION, mec="white")
        axes.annotate(
            label, (s, t), xytext=(4, 4), textcoords="offset points", color=INK,
            bbox={"boxstyle": "round,pad=0.1", "fc": "white", "ec": "none", "alpha": 0.7},
        )  # fmt: skip
    axes.grid(visible=False)
    axes.set_xlabel("s")
    axes.set_ylabel("t")
