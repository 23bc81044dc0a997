"""Barriers of several pairs of networks side by side: measured, as tables, as curves."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from coset.data import Dataset
from coset.landscape import Profiles
from coset.study import Context, Results, Scalar, Table
from coset.study.images import Images, load_images
from coset_studies.rossi._claims import SPLITS
from coset_studies.rossi._pairs import (
    Architecture,
    Inference,
    Measure,
    Pair,
    barriers,
    objective_of,
    pair_of,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
    return Table(columns, rows)


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
    return Table(columns, rows)


def curve_table(found: Mapping[str, Compared], what: str) -> Table:
    """What the figure shows: a row for each pair, path and τ."""
    rows: list[list[Scalar]] = []
    for label, one in found.items():
        for path, profiles in one.profiles.items():
            parts = [profiles[f"{split} log-likelihood"] for split in SPLITS]
            rows += [
                [label, path, round(tau, 6), *(round(value, 6) for value in values)]
                for tau, *values in zip(parts[0].taus, *(part.values for part in parts), strict=True)
            ]
    return Table((what, "path", "τ", *SPLITS), rows)


def tables_of(found: Mapping[str, Compared], what: str, ends: str = "posteriors") -> dict[str, Table]:
    """Barriers, the ends, and the curves between them."""
    return {
        "barriers": barrier_table(found, what),
        ends: ends_table(found, what),
        "curves": curve_table(found, what),
    }


BARRIERS = (
    "Drop of the predictive log-likelihood per data point below the chord; ± is the Monte Carlo error of the one pair."
)
ENDS = """
Means over both networks, in nats per data point; cosines of the weights, averaged over all layers. The rise is that
from the last but one tenth of the epochs to the last, the larger of both.
"""
SHOWN = {"barriers": BARRIERS, "posteriors": ENDS}
"""The tables of a page, with their captions."""


def paths_figure(results: Results) -> "Figure":
    """Predictive log-likelihood along both paths, a panel for each part of the data, one legend for both."""
    from coset.figures import PALETTE, label_panel, new_figure

    table = results.tables["curves"]
    labels = list(dict.fromkeys(row[0] for row in table.rows))
    figure = new_figure(7.4, 3.6)
    for number, (axes, split) in enumerate(zip(figure.subplots(1, 2), SPLITS, strict=True)):
        for label, colour in zip(labels, PALETTE, strict=False):
            for path, (stroke, marker) in {"naive": ("--", "o"), "aligned": ("-", "s")}.items():
                rows = [row for row in table.rows if row[:2] == (label, path)]
                axes.plot(
                    [row[2] for row in rows],
                    [row[3 + number] for row in rows],
                    color=colour,
                    ls=stroke,
                    marker=marker,
                    markevery=max(1, len(rows) // 6),
                    label=f"{label}, {path}" if len(labels) > 1 else path,
                )
        axes.set_xlabel("τ")
        axes.set_ylabel("log-likelihood per data point, nats")
        label_panel(axes, "ab"[number], split)
    handles, names = figure.axes[0].get_legend_handles_labels()
    # One column for each pair, its two paths below each other.
    figure.legend(handles, names, loc="outside lower center", ncols=max(2, len(labels)), handlelength=3.0)
    return figure


def _word(text: str) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in text)
