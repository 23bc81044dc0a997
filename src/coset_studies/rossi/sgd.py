"""Variational inference against SGD: barriers between posteriors and between points, across widths."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from coset.study import Context, Findings, study
from coset.study.images import Images
from coset_studies.rossi._pairs import Inference, Measure, Network
from coset_studies.rossi._report import (
    SPLITS,
    Case,
    Compared,
    barrier_table,
    compare,
    ends_table,
    left_of,
    numbers_of,
    setting,
    settled,
)
from coset_studies.rossi._residual import IMAGES, INFERENCE, MEASURE, NETWORK, WIDTHS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = ("VI", "SGD")
ALIKE = 0.2
"""Of the larger of two barriers: those that differ by less are about the same."""


@dataclass(frozen=True)
class Config:
    """The networks, each with posteriors and with points."""

    images: Images
    networks: tuple[Network, ...]
    inference: Inference
    measure: Measure


def _config(preset: str) -> Config:
    networks = tuple(replace(NETWORK[preset], width=width) for width in WIDTHS[preset])
    return Config(IMAGES[preset], networks, INFERENCE[preset], MEASURE[preset])


@study(
    name="rossi-sgd",
    title="Barriers of posteriors and of SGD's points, across widths",
    reference="Rossi et al. 2023, fig. 9 (ResNet20 on CIFAR-10, VI against SGD)",
    paper="""
    After alignment variational inference and SGD (MAP points) behave alike in narrow networks; in wider ones the points
    reach marginally lower barriers. Wider networks have lower barriers after alignment (fig. 5).
    """,
    presets={preset: _config(preset) for preset in ("quick", "small", "paper")},
)
def run(config: Config, context: Context) -> Findings:
    """Both kinds at each width."""
    cases = {
        f"{kind} {network.channels}": Case(config.images, network, config.inference, kind)
        for network in config.networks
        for kind in KINDS
    }
    found = compare(context, cases, config.measure)
    widths = [network.channels for network in config.networks]
    return Findings(
        numbers=numbers_of(found) | {"narrowest": widths[0], "widest": widths[-1]},
        tables={"barriers": barrier_table(found, "network"), "networks": ends_table(found, "network")},
        outcome=_outcome(config, found, widths),
        figure=lambda: _figure(found, widths),
        caption="Barriers of the log-likelihood by the channels of the first stage; hollow: naive, filled: aligned.",
    )


def _outcome(config: Config, found: Mapping[str, Compared], widths: list[int]) -> str:
    sentences = [
        f"With {width} channels the train barrier is {{VI_{width}_naive_train:.3f}} nats between posteriors and "
        f"{{SGD_{width}_naive_train:.3f}} between points; aligned {{VI_{width}_aligned_train:.3f}} and "
        f"{{SGD_{width}_aligned_train:.3f}} (test: {{VI_{width}_aligned_test:.3f}} and "
        f"{{SGD_{width}_aligned_test:.3f}})."
        for width in widths
    ]
    sentences.append(f"\n\n{_alike(found, widths[0])}")
    widest = widths[-1]
    sentences.append(_widest(found, widest))
    for kind in KINDS:
        sentences.append(
            f"From {{narrowest}} to {{widest}} channels the aligned barrier of {kind} {_falls(found, kind, widths)}."
        )
    if higher := [label for label, one in found.items() if left_of(one) >= 1]:
        sentences.append(f"Alignment on the weights does not lower the train barrier of {' and '.join(higher)}.")
    smaller = setting(config.images, config.inference, config.networks, config.measure)
    return f"{' '.join(sentences)}\n\n{smaller} {settled(found)}"


def _falls(found: Mapping[str, Compared], kind: str, widths: list[int]) -> str:
    """Of the train barrier from the narrowest network to the widest."""
    ends = [found[f"{kind} {width}"].profiles["aligned"]["train log-likelihood"] for width in (widths[0], widths[-1])]
    error = math.hypot(*(profile.barrier_error or 0.0 for profile in ends))
    drop = ends[0].barrier - ends[1].barrier
    if abs(drop) <= 2 * error:
        return "does not change by more than twice the Monte Carlo error; in the paper it falls"
    return "falls, as in the paper" if drop > 0 else "rises, unlike in the paper"


def _alike(found: Mapping[str, Compared], width: int) -> str:
    """Of the narrowest network, where the paper finds that both kinds behave alike."""
    barriers = [found[f"{kind} {width}"].barrier("aligned", "train") for kind in KINDS]
    if abs(barriers[0] - barriers[1]) <= ALIKE * max(barriers):
        return "In the narrowest network the aligned barriers of both kinds are about the same, as in the paper."
    return "In the narrowest network the aligned barriers of the two kinds differ, unlike in the paper."


def _widest(found: Mapping[str, Compared], width: int) -> str:
    """Of the widest network, where the paper finds that points have marginally lower barriers."""
    gaps, errors = [], []
    for split in SPLITS:
        posteriors, points = (found[f"{kind} {width}"].profiles["aligned"][f"{split} log-likelihood"] for kind in KINDS)
        gaps.append(posteriors.barrier - points.barrier)
        errors.append(posteriors.barrier_error or 0.0)
    if all(gap > error for gap, error in zip(gaps, errors, strict=True)):
        return "In the widest network the points have the lower barrier after alignment, as in the paper."
    if all(gap < -error for gap, error in zip(gaps, errors, strict=True)):
        return "In the widest network the posteriors have the lower barrier after alignment, unlike in the paper."
    return """
    In the widest network neither kind has the lower aligned barrier by more than the Monte Carlo error on train and on
    test images; in the paper points have, marginally.
    """.strip()


def _figure(found: Mapping[str, Compared], widths: list[int]) -> "Figure":
    from coset.figures import BLUE, VERMILION, label_panel, new_figure

    figure = new_figure(7.4, 3.3)
    panels = figure.subplots(1, 2)
    for number, (axes, split) in enumerate(zip(panels, SPLITS, strict=True)):
        for kind, colour in zip(KINDS, (BLUE, VERMILION), strict=True):
            for path, fill in (("naive", "white"), ("aligned", colour)):
                values = [found[f"{kind} {width}"].barrier(path, split) for width in widths]
                style = "--" if path == "naive" else "-"
                axes.plot(widths, values, color=colour, ls=style, marker="o", mfc=fill, label=f"{kind}, {path}")
        axes.set_xscale("log", base=2)
        axes.set_xticks(widths, [str(width) for width in widths])
        axes.set_ylim(bottom=0)
        axes.set_xlabel("channels of the first stage")
        axes.set_ylabel("barrier, nats")
        label_panel(axes, "ab"[number], split)
    panels[1].legend()
    return figure
