"""Whether activations lose their variance between two posteriors, with and without alignment."""

import math
from dataclasses import dataclass

from coset.landscape import activation_variances, geodesic, plot_collapse
from coset.study import Claim, Context, Estimate, Findings, Results, Scalar, Table, study
from coset.study.images import Images, load_images
from coset_studies.rossi._claims import NO_ERROR, NO_NUMBERS
from coset_studies.rossi._mlps import DATA, INFERENCE, LAYERS, MEASURE, NARROWER, SETTING, Layers
from coset_studies.rossi._pairs import Inference, Measure, pair_of

ENOUGH = 0.6
"""The share of the ends' variance above which a layer counts as not collapsed."""

TEXT = (
    """
Without alignment the variance of the units falls on the way between the posteriors, and the deeper the layer, the more:
to {naive 1:.0%}, {naive 2:.0%} and {naive 3:.0%} of that of the ends in the three hidden layers. After alignment
{aligned 1:.0%}, {aligned 2:.0%} and {aligned 3:.0%} are left: no collapse, as in the paper, though the loss still grows
with the depth. The numbers are of one pair of posteriors; where on the way the least lies is in the figure.

"""
    + NARROWER
    + SETTING
)


@dataclass(frozen=True)
class Config:
    """One pair of posteriors, and how activations are measured."""

    images: Images
    layers: Layers
    inference: Inference
    measure: Measure


def _lowest(results: Results, column: str, choose: slice) -> Estimate | None:
    """The least cell of a column in the chosen layers."""
    table = results.tables["variances"]
    cells = [row[table.columns.index(column)] for row in table.rows][choose]
    value = min(float(str(cell)) for cell in cells)
    return Estimate(value, value, value)


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
    claims=[
        Claim(
            paper="Between two posteriors the variance of the activations collapses in the deeper layers.",
            source="fig. 10",
            statistic="lowest share of the ends' variance on the naive path, last hidden layer",
            direction="below",
            threshold=0.1,
            reason=f"A tenth of the variance is a third of the deviation. {NO_NUMBERS}",
            interval=NO_ERROR,
            possible=(0.0, math.inf),
            estimate=lambda results: _lowest(results, "naive", slice(-1, None)),
        ),
        Claim(
            paper="After alignment there is no pathological collapse.",
            source="fig. 10",
            statistic="lowest share of the ends' variance on the aligned path, of all hidden layers",
            direction="above",
            threshold=ENOUGH,
            reason=f"An average of two independent units of equal variance keeps 0.5. {NO_NUMBERS}",
            interval=NO_ERROR,
            possible=(0.0, math.inf),
            estimate=lambda results: _lowest(results, "aligned", slice(None)),
        ),
    ],
    text={"small": TEXT},
    tables={"variances": "Lowest share of the ends' variance on the way; mean over the units of a layer."},
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
    rows = [
        (layer, naive, aligned, aligned / naive)
        for layer, naive, aligned in zip(hidden, lowest["naive"], lowest["aligned"], strict=True)
    ]
    return Findings(
        numbers,
        {"variances": Table(("layer", "naive", "aligned", "ratio"), rows)},
        figure=lambda: plot_collapse(found),
        caption="Variance of the activations along the geodesic over that of the ends, for each hidden layer.",
    )
