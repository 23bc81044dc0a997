"""Two ways from one posterior to another: the mixture shows no barrier, the Wasserstein geodesic does."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from coset.landscape import Profiles
from coset.study import Claim, Context, Findings, Scalar, Table, study
from coset.study.estimates import least
from coset.study.images import Images, load_images
from coset_studies.rossi._claims import INTERVAL, NOTICEABLE, SPLITS, beside
from coset_studies.rossi._mlps import DATA, INFERENCE, LAYERS, MEASURE, NARROWER, SETTING, Layers
from coset_studies.rossi._pairs import Inference, Measure, pair_of, profiles_to

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TEXT = (
    """
Along the geodesic there is a barrier, {geodesic_train:.2f} nats on train and {geodesic_test:.2f} on test images, and
with alignment there is next to none ({geodesic_aligned_train:.3f} and {geodesic_aligned_test:.3f}).

That the mixture has none is no finding. Its predictive likelihood is (1−τ)p₀ + τp₁ at every image, and the logarithm is
concave, so that by Jensen's inequality the log-likelihood never lies below the chord, whatever the two posteriors are.
What the table shows for the mixture ({mixture_train:.1e} nats) is what rounding and the draws leave. So the
mixture says nothing about the landscape, as the paper says, and no verdict is given on it.

The images are those of MNIST (there CIFAR-10).

"""
    + NARROWER
    + SETTING
)


@dataclass(frozen=True)
class Config:
    """One pair of posteriors."""

    images: Images
    layers: Layers
    inference: Inference
    measure: Measure


@study(
    name="rossi-mixture",
    title="Mixtures against geodesics",
    reference="Rossi et al. 2023, fig. 3",
    paper="""
    Along the mixture (1−τ)q₀ + τq₁ the predictive likelihood has no barrier, whatever lies between the two; it says
    nothing about the landscape. Along the Wasserstein geodesic there is one.
    """,
    presets={
        preset: Config(DATA[preset], LAYERS[preset], INFERENCE[preset], MEASURE[preset])
        for preset in ("quick", "small", "paper")
    },
    claims=[
        Claim(
            paper="Along the Wasserstein geodesic there is a barrier.",
            source="fig. 3",
            statistic="barrier on the geodesic, nats, the smaller of train and test",
            direction="above",
            threshold=NOTICEABLE,
            reason="A tenth of log 10, the loss of guessing among ten classes; set when the first run was known.",
            interval=INTERVAL,
            possible=(0.0, math.inf),
            estimate=lambda results: least(
                [beside(results, "paths", "geodesic", f"{split} barrier, nats") for split in SPLITS]
            ),
        )
    ],
    text={"small": TEXT},
    tables={"paths": "Drop of the predictive log-likelihood per data point; ± is the Monte Carlo error."},
)
def run(config: Config, context: Context) -> Findings:
    """Three ways between the same two posteriors."""
    data = load_images(context, config.images)
    pair = pair_of(context, data, config.layers, config.inference)
    found = {
        "mixture": profiles_to(context, data, pair, pair.second, config.measure, "mixture"),
        "geodesic": profiles_to(context, data, pair, pair.second, config.measure),
        "geodesic, aligned": profiles_to(context, data, pair, pair.aligned, config.measure),
    }
    numbers: dict[str, Scalar] = {
        f"{name.replace(', ', '_')}_{split}": profiles[f"{split} log-likelihood"].barrier
        for name, profiles in found.items()
        for split in SPLITS
    }
    for split in SPLITS:
        numbers[f"error_{split}"] = found["mixture"][f"{split} log-likelihood"].barrier_error
    return Findings(
        numbers,
        {"paths": _table(found)},
        figure=lambda: profiles_figure(found),
        caption="Predictive log-likelihood along three ways between two posteriors.",
    )


def _table(found: dict[str, Profiles]) -> Table:
    rows: list[list[Scalar]] = []
    for name, profiles in found.items():
        row: list[Scalar] = [name]
        for split in SPLITS:
            profile = profiles[f"{split} log-likelihood"]
            row += [profile.barrier, profile.barrier_error, profile.argmax]
        rows.append(row)
    columns = ("path", "train barrier, nats", "±", "at τ", "test barrier, nats", "±", "at τ")
    return Table(columns, rows)


def profiles_figure(found: Mapping[str, Profiles]) -> "Figure":
    """Log-likelihoods along several paths, a panel for each part of the data."""
    from coset.figures import PALETTE, label_panel, new_figure

    figure = new_figure(7.4, 3.9)
    for number, (axes, split) in enumerate(zip(figure.subplots(1, 2), SPLITS, strict=True)):
        for place, (label, profiles) in enumerate(found.items()):
            profile = profiles[f"{split} log-likelihood"]
            axes.plot(
                profile.taus,
                profile.values,
                color=PALETTE[place],
                ls=("-", "--", ":", "-.")[place],
                marker="osDv"[place],
                markevery=(place, 6),
                label=f"{label}: {profile.barrier:.4f}",
            )
        axes.set_xlabel("τ")
        axes.set_ylabel("log-likelihood per data point, nats")
        axes.legend(title="barrier, nats", title_fontsize=8.0, loc="upper center", bbox_to_anchor=(0.5, -0.2))
        label_panel(axes, "ab"[number], split)
    return figure
