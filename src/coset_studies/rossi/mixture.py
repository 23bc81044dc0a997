"""Two ways from one posterior to another: the mixture shows no barrier, the Wasserstein geodesic does."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from coset.landscape import Profiles
from coset.study import Context, Findings, Scalar, Table, study
from coset.study.images import Images, load_images
from coset_studies.rossi._mlps import DATA, INFERENCE, LAYERS, MEASURE, Layers, setting
from coset_studies.rossi._pairs import Inference, Measure, pair_of, profiles_to
from coset_studies.rossi._report import SPLITS

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
    flat = all(numbers[f"mixture_{split}"] <= 0.05 * numbers[f"geodesic_{split}"] for split in SPLITS)  # type: ignore[operator]
    verdict = (
        "As in the paper, the mixture is flat: both ends predict well, and so does any choice between them."
        if flat
        else "Unlike in the paper, the mixture is not flat."
    )
    outcome = f"""
    Along the mixture the predictive log-likelihood drops by {{mixture_train:.4f}} nats per train point and
    {{mixture_test:.4f}} per test point at most, along the geodesic by {{geodesic_train:.3f}} and
    {{geodesic_test:.3f}}, and by {{geodesic_aligned_train:.4f}} and {{geodesic_aligned_test:.4f}} after alignment.
    {verdict}

    {setting(config.images, config.inference, config.layers, data="cifar10")}
    """
    return Findings(
        numbers=numbers,
        tables={"paths": _table(found)},
        outcome=outcome,
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
    return Table(columns, rows, "Drop of the predictive log-likelihood per data point; ± is the Monte Carlo error.")


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
