"""Barriers of several pairs of networks side by side: measured, as a table, as curves, in words."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from coset.data import Dataset
from coset.landscape import Profiles
from coset.study import Context, Scalar, Table
from coset.study.images import Images, load_images
from coset_studies.rossi._pairs import (
    Architecture,
    Inference,
    Measure,
    Network,
    Pair,
    barriers,
    objective_of,
    pair_of,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SPLITS = ("train", "test")
NEAR_ZERO = 0.1
"""The share of the naive barrier below which the aligned one counts as nearly none."""

SETTLED = 0.01
"""A rise of the objective, in nats per data point, that counts as none."""


@dataclass(frozen=True)
class Case:
    """One pair of networks to be measured; ``kind``: "VI" for posteriors, "SGD" for points."""

    images: Images
    network: Architecture
    inference: Inference
    kind: str = "VI"


@dataclass(frozen=True)
class Compared:
    """A pair and what lies on the two paths between its networks, "naive" and "aligned"."""

    pair: Pair
    profiles: Mapping[str, Profiles]

    def barrier(self, path: str, split: str) -> float:
        """The drop of the predictive log-likelihood in nats per data point."""
        return self.profiles[path][f"{split} log-likelihood"].barrier

    def error(self, split: str) -> float:
        """The mean error of the two ends."""
        values = self.profiles["naive"][f"{split} error"].values
        return (values[0] + values[-1]) / 2

    def midpoint_error(self, path: str, split: str) -> float:
        """The error halfway."""
        return self.profiles[path][f"{split} error"].midpoint.value


def compare(context: Context, cases: Mapping[str, Case], measure: Measure) -> dict[str, Compared]:
    """Infer, align and measure every case; barriers are measured on images that are not moved."""
    loaded: dict[Images, Dataset] = {}

    def data(choice: Images) -> Dataset:
        if choice not in loaded:
            loaded[choice] = load_images(context, choice)
        return loaded[choice]

    found = {}
    with context.progress("pairs of networks", len(cases)) as bar:
        for label, case in cases.items():
            images, plain = data(case.images), data(replace(case.images, copies=1))
            copies = case.images.copies
            pair = pair_of(context, images, case.network, case.inference, case.kind, copies)
            found[label] = Compared(pair, barriers(context, plain, pair, measure))
            bar.advance(note=label)
    return found


def numbers_of(found: Mapping[str, Compared]) -> dict[str, Scalar]:
    """Barriers as ``<label>_<path>_<split>``, errors of the ends in percent, what of the barrier is left."""
    numbers: dict[str, Scalar] = {}
    for label, one in found.items():
        name = _word(label)
        for split in SPLITS:
            numbers |= {f"{name}_{path}_{split}": one.barrier(path, split) for path in one.profiles}
            numbers[f"{name}_{split}_error"] = 100 * one.error(split)
            numbers |= {
                f"{name}_{path}_{split}_midpoint": 100 * one.midpoint_error(path, split) for path in one.profiles
            }
        numbers[f"{name}_left"] = 100 * left_of(one)
    return numbers | {"largest_rise": max(abs(one.pair.rise) for one in found.values())}


def left_of(one: Compared, split: str = "train") -> float:
    """The aligned barrier as a share of the naive one; 1 where there is none to begin with, and none is taken away."""
    naive = one.barrier("naive", split)
    return one.barrier("aligned", split) / naive if naive > 0 else 1.0


def barrier_table(found: Mapping[str, Compared], what: str) -> Table:
    """A row for each pair and path."""
    columns = (
        what,
        "path",
        "train barrier, nats",
        "± train",
        "test barrier, nats",
        "± test",
        "train error at the ends, %",
        "train error halfway, %",
        "test error at the ends, %",
        "test error halfway, %",
    )
    rows: list[list[Scalar]] = []
    for label, one in found.items():
        for path, profiles in one.profiles.items():
            row: list[Scalar] = [label, path]
            for split in SPLITS:
                profile = profiles[f"{split} log-likelihood"]
                row += [profile.barrier, profile.barrier_error]
            for split in SPLITS:
                row += [100 * one.error(split), 100 * one.midpoint_error(path, split)]
            rows.append(row)
    caption = "Drop of the predictive log-likelihood per data point below the chord; ± is the Monte Carlo error."
    return Table(columns, rows, caption)


def ends_table(found: Mapping[str, Compared], what: str) -> Table:
    """What the pairs are: how far inference came, and how alike they are before and after alignment."""
    rows: list[list[Scalar]] = []
    for label, one in found.items():
        traces = one.pair.traces
        log_likelihoods = [one.profiles["naive"][f"{split} log-likelihood"].values for split in SPLITS]
        ends = [(values[0] + values[-1]) / 2 for values in log_likelihoods]
        objective = [objective_of(trace) for trace in traces]
        kl = sum(trace["kl"] for trace in traces) / 2 if "kl" in traces[0] else None
        rows.append([label, *ends, sum(objective) / 2, one.pair.rise, kl, *one.pair.agreement])
    columns = (
        what,
        "train log-likelihood",
        "test log-likelihood",
        "ELBO or log joint",
        "its rise",
        "KL",
        "cosine before",
        "cosine aligned",
    )
    caption = (
        "Means over both networks, in nats per data point; cosines of the weights, averaged over all layers. The rise "
        "is that from the last but one tenth of the epochs to the last, the larger of both."
    )
    return Table(columns, rows, caption)


def verdict(one: Compared) -> str:
    """Whether alignment did here what it does in the paper."""
    without = [split for split in SPLITS if one.barrier("naive", split) <= 0]
    if without:
        return f"Unlike in the paper, there is no barrier to begin with on the {' and the '.join(without)} part."
    shares = [left_of(one, split) for split in SPLITS]
    if max(shares) <= NEAR_ZERO:
        return "As in the paper, alignment leaves nearly no barrier."
    if max(shares) < 1:
        return "As in the paper alignment lowers the barrier; unlike there it does not bring it near zero."
    return "Unlike in the paper, alignment does not lower the barrier on both parts of the data."


def settled(found: Mapping[str, Compared]) -> str:
    """Whether inference came to an end; a template for ``numbers_of``."""
    if max(abs(one.pair.rise) for one in found.values()) <= SETTLED:
        return (
            "Inference has come to rest: its objective changed by {largest_rise:.4f} nats at most from the last but "
            "one tenth of the epochs to the last, at rates that fall to 0."
        )
    return (
        "Inference has not come to rest: its objective still changed by up to {largest_rise:.3f} nats per data point "
        "near the end."
    )


def setting(images: Images, inference: Inference, networks: Sequence[Network], measure: Measure | None = None) -> str:
    """In what this run is smaller than the paper's; empty where it is not."""
    parts = [] if images.data.startswith("cifar") else [f"the images are {images.data}"]
    channels = sorted({network.channels for network in networks})
    if channels[0] < 16:
        parts.append(f"networks begin with {', '.join(map(str, channels))} channels (there 16)")
    if images.pool > 1:
        parts.append(f"pixels are averaged in squares of {images.pool}×{images.pool}")
    if images.train is not None:
        parts.append(f"there are {images.train:,} train images")
    if inference.epochs < 1000:
        parts.append(f"inference takes {inference.epochs} epochs (there 1,000)")
    if inference.optimizer != "sgd":
        parts.append(f"{inference.optimizer.capitalize()} finds both posteriors and points (there SGD with momentum)")
    if any(network.norm == "frn" for network in networks):
        parts.append("alignment is by permutations and the signs that FRN leaves free (there permutations)")
    if inference.temperature != 1:
        parts.append(f"the temperature is {inference.temperature:g} (there 1)")
    if measure is not None and measure.points is not None:
        parts.append(
            f"barriers are measured on {measure.points:,} images of each part, at {measure.taus} τ, with "
            f"{measure.samples} draws (there all, 25 and 128)"
        )
    return f"What is smaller or different here: {'; '.join(parts)}." if parts else ""


def paths_figure(found: Mapping[str, Compared], colours: Mapping[str, str] | None = None) -> "Figure":
    """Predictive log-likelihood along both paths, a panel for each part of the data."""
    from coset.figures import PALETTE, label_panel, new_figure

    figure = new_figure(7.4, 3.8)
    panels = figure.subplots(1, 2)
    chosen = colours or dict(zip(found, PALETTE, strict=False))
    for number, (axes, split) in enumerate(zip(panels, SPLITS, strict=True)):
        for label, one in found.items():
            _draw_paths(axes, label if len(found) > 1 else "", one, split, chosen[label])
        axes.set_xlabel("τ")
        axes.set_ylabel("log-likelihood per data point, nats")
        # Below the panel, for lines may go anywhere in it.
        place = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.18), "ncols": 1 if len(found) > 2 else 2}
        axes.legend(title="barrier, nats", title_fontsize=8.0, handlelength=3.0, **place)
        label_panel(axes, "ab"[number], split)
    return figure


def _draw_paths(axes: "Axes", label: str, one: Compared, split: str, colour: str) -> None:
    for path, (stroke, marker) in {"naive": ("--", "o"), "aligned": ("-", "s")}.items():
        profile = one.profiles[path][f"{split} log-likelihood"]
        text = f"{label}, {path}" if label else path
        axes.plot(
            profile.taus,
            profile.values,
            color=colour,
            ls=stroke,
            marker=marker,
            markevery=max(1, len(profile.taus) // 6),
            label=f"{text}: {profile.barrier:.3f}",
        )


def _word(text: str) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in text)
