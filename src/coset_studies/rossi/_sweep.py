"""Barriers of pairs of MLPs against one setting: the body of the studies of figs. 5, 7 and 8."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from coset.study import Context, Findings, Results
from coset.study.estimates import ERRORS
from coset_studies.rossi._claims import SPLITS
from coset_studies.rossi._pairs import Measure
from coset_studies.rossi._report import Case, barrier_table, compare, ends_table, numbers_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BARS = """
Error bars are two Monte Carlo standard errors of the one pair at each setting; how much other seeds differ is not
known.
"""


def sweep_findings(context: Context, cases: Mapping[float, Case], measure: Measure, what: str) -> Findings:
    """Every case; ``what`` names the setting that varies."""
    found = compare(context, {f"at {value:g}": case for value, case in cases.items()}, measure)
    return Findings(numbers_of(found), {"barriers": barrier_table(found, what), "posteriors": ends_table(found, what)})


def sweep_figure(results: Results) -> "Figure":
    """Barriers against the setting, a panel for each path."""
    from coset.figures import BLUE, GREY, label_panel, new_figure

    table = results.tables["barriers"]
    what = table.columns[0]
    figure = new_figure(7.4, 3.2)
    for number, (axes, path) in enumerate(zip(figure.subplots(1, 2), ("naive", "aligned"), strict=True)):
        rows = [row for row in table.rows if row[1] == path]
        values = [float(str(row[0]).removeprefix("at ")) for row in rows]
        for split, colour, marker, stroke in zip(SPLITS, (BLUE, GREY), "os", ("-", "--"), strict=True):
            column = table.columns.index(f"{split} barrier, nats")
            axes.errorbar(
                values,
                [row[column] for row in rows],
                # Not drawn where they are not known.
                yerr=[float("nan" if row[column + 1] is None else str(row[column + 1])) * ERRORS for row in rows],
                color=colour,
                marker=marker,
                ls=stroke,
                capsize=2,
                label=split,
            )
        axes.set_xscale("log")
        axes.set_xticks(values, [f"{value:g}" for value in values])
        axes.minorticks_off()
        axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
        axes.set_xlabel(what)
        axes.set_ylabel("barrier, nats per data point")
        axes.legend()
        label_panel(axes, "ab"[number], path)
    return figure
