"""Whether activations lose their variance between two posteriors, with and without alignment."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from coset.landscape import VarianceProfile, activation_variances, geodesic
from coset.study import Context, Findings, Scalar, Table, study
from coset.study.images import Images, load_images
from coset_studies.rossi._mlps import DATA, INFERENCE, LAYERS, MEASURE, Layers, setting
from coset_studies.rossi._pairs import Inference, Measure, pair_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ENOUGH = 0.6
"""The share of the ends' variance above which a layer counts as not collapsed."""


@dataclass(frozen=True)
class Config:
    """One pair of posteriors, and how activations are measured."""

    images: Images
    layers: Layers
    inference: Inference
    measure: Measure


@study(
    name="rossi-collapse",
    title="Variance of activations between posteriors",
    reference="Rossi et al. 2023, fig. 10; Jordan et al. 2023 (REPAIR), section 3.1",
    paper="""
    Between two posteriors the variance of the activations, marginalised over draws of the weights, collapses in the
    deeper layers; after alignment there is no pathological collapse.
    """,
    presets={
        preset: Config(DATA[preset], LAYERS[preset], INFERENCE[preset], MEASURE[preset])
        for preset in ("quick", "small", "paper")
    },
)
def run(config: Config, context: Context) -> Findings:
    """The variance of each hidden unit along both geodesics, over that of the ends."""
    data = load_images(context, config.images)
    pair = pair_of(context, data, config.layers, config.inference)
    x = data.train.x[: config.measure.points].to(context.device)
    ends = {"naive": pair.second, "aligned": pair.aligned}
    hidden = tuple(f"activations.{number}" for number in range(len(config.layers.widths)))
    found = {
        label: activation_variances(
            pair.model,
            geodesic(pair.first, end),
            x,
            layers=hidden,
            points=config.measure.taus,
            samples=config.measure.samples,
            show=context.show,
        )
        for label, end in ends.items()
    }
    lowest = {label: [float(profile.lowest[layer]) for layer in hidden] for label, profile in found.items()}
    numbers: dict[str, Scalar] = {
        f"{label} {number + 1}": value for label, values in lowest.items() for number, value in enumerate(values)
    }
    shown = {label: " / ".join(f"{value:.2f}" for value in values) for label, values in lowest.items()}
    outcome = f"""
    The variance of a unit's output over the data, mean over the units of a layer, falls on the way to
    {shown["naive"]} of that of the ends in the hidden layers, and to {shown["aligned"]} after alignment.
    {_verdict(lowest)}

    {setting(config.images, config.inference, config.layers)}
    """
    return Findings(
        numbers=numbers,
        tables={"variances": _table(hidden, lowest)},
        outcome=outcome,
        figure=lambda: _figure(found),
        caption="Variance of the activations along the geodesic over that of the ends, for each hidden layer.",
    )


def _verdict(lowest: Mapping[str, list[float]]) -> str:
    kept = all(value >= ENOUGH for value in lowest["aligned"])
    twice = all(aligned >= 2 * naive for naive, aligned in zip(lowest["naive"], lowest["aligned"], strict=True))
    first = (
        "As in the paper, alignment leaves no pathological collapse"
        if kept
        else f"Unlike in the paper, alignment leaves less than {ENOUGH:g} of the variance in some layer"
    )
    second = "at least twice of what is left without it in every layer" if twice else "less than twice in some layer"
    return f"{first}; it keeps {second}."


def _table(hidden: tuple[str, ...], lowest: Mapping[str, list[float]]) -> Table:
    rows = [
        (layer, naive, aligned, aligned / naive)
        for layer, naive, aligned in zip(hidden, lowest["naive"], lowest["aligned"], strict=True)
    ]
    return Table(("layer", "naive", "aligned", "ratio"), rows, "Lowest share of the ends' variance on the way.")


def _figure(found: Mapping[str, VarianceProfile]) -> "Figure":
    from coset.landscape import plot_collapse

    return plot_collapse(found)
