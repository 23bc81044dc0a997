"""Barriers of pairs of MLPs against one setting: the body of the studies of figs. 5, 7 and 8."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from coset.study import Context, Findings
from coset_studies.rossi._pairs import Measure
from coset_studies.rossi._report import SPLITS, Case, Compared, barrier_table, compare, ends_table, numbers_of, settled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Found = Mapping[float, Compared]
"""What was measured, by the value of the setting."""


def sweep_findings(
    context: Context,
    cases: Mapping[float, Case],
    measure: Measure,
    *,
    what: str,
    judge: Callable[[Found], str],
    setting: str,
) -> Findings:
    """Every case, the table, and barriers against the setting ``what``; ``judge`` compares them with the paper's."""
    labels = {value: f"at {value:g}" for value in cases}
    measured = compare(context, {labels[value]: case for value, case in cases.items()}, measure)
    found = {value: measured[label] for value, label in labels.items()}
    lines = [
        f"{_listed(found, path, split)} nats on the {split} part, {path}"
        for path in ("naive", "aligned")
        for split in SPLITS
    ]
    values = ", ".join(f"{value:g}" for value in found)
    errors = ", ".join(f"{100 * one.error('test'):.2f}" for one in found.values())
    outcome = f"""
    With a {what} of {values} the barriers are {"; ".join(lines)}. The test errors at the ends are {errors} %.

    {judge(found)}

    {setting} {settled(measured)}
    """
    return Findings(
        numbers=numbers_of(measured),
        tables={"barriers": barrier_table(measured, what), "posteriors": ends_table(measured, what)},
        outcome=outcome,
        figure=lambda: _figure(found, what),
        caption=f"Barriers of the predictive log-likelihood against the {what}, with two standard errors.",
    )


def barriers_of(found: Found, path: str, split: str) -> list[float]:
    """In the order of the values."""
    return [one.barrier(path, split) for one in found.values()]


def falls(values: Sequence[float], share: float = 0.9) -> bool:
    """Whether a sequence goes down from its first to its last value, to less than ``share`` of it."""
    return values[-1] < share * values[0]


def _listed(found: Found, path: str, split: str) -> str:
    return ", ".join(f"{value:.3f}" for value in barriers_of(found, path, split))


def _figure(found: Found, what: str) -> "Figure":
    from coset.figures import BLUE, GREY, label_panel, new_figure

    figure = new_figure(7.4, 3.2)
    panels = figure.subplots(1, 2)
    for number, (axes, path) in enumerate(zip(panels, ("naive", "aligned"), strict=True)):
        for split, colour, marker, stroke in (("train", BLUE, "o", "-"), ("test", GREY, "s", "--")):
            profiles = [one.profiles[path][f"{split} log-likelihood"] for one in found.values()]
            axes.errorbar(
                list(found),
                [profile.barrier for profile in profiles],
                # Not drawn where they are not known.
                yerr=[math.nan if profile.barrier_error is None else 2 * profile.barrier_error for profile in profiles],
                color=colour,
                marker=marker,
                ls=stroke,
                capsize=2,
                label=split,
            )
        axes.set_xscale("log")
        axes.set_xticks(list(found), [f"{value:g}" for value in found])
        axes.minorticks_off()
        axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
        axes.set_xlabel(what)
        axes.set_ylabel("barrier, nats per data point")
        axes.legend()
        label_panel(axes, "ab"[number], path)
    return figure
