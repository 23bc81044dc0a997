"""The figure of the study of the two-weight network: test errors, distances to the posterior, and the scan."""

from typing import TYPE_CHECKING

from coset.study import Results
from coset_studies._shared.reading import Record, records
from coset_studies.gelberg.two_weights._claims import KEYS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ORDERS = ("MSE", "L^G", "L_VI")
CAPTION = """
(a) Test MSE after 10 epochs, means over seeds with their standard errors; crosses: table 2 of the paper. (b) Test MSE
at the optimum of each objective; grey: the posterior itself. (c) The scan: of 25 starts, how many have all three orders
of the paper's tables (MSE, L^G and L_VI) at every α. (d) KL of the symmetrized q to the posterior after 10 epochs,
median over seeds. (e) The same at the optima. (f) How many of the 12 orders (three, at four α) the optima have.
"""


def draw(results: Results) -> "Figure":
    """Errors and divergences against α, after some epochs and at the optimum; both scans."""
    from coset.figures import label_panel, new_figure

    figure = new_figure(9.6, 5.6)
    panels = figure.subplots(2, 3)
    runs, optima, scan = panels.T
    errors, divergences = records(results, "errors"), records(results, "divergences")
    _run_errors(runs[0], errors, results)
    _lines(optima[0], errors, "at the optimum")
    _medians(runs[1], divergences, results)
    _lines(optima[1], divergences, "optimal KL(q^G‖p)")
    rows = records(results, "scan")
    _counts(scan[0], rows, ("all three",))
    _counts(scan[1], rows, tuple(f"{order}, optima" for order in ORDERS))
    titles = ("Test MSE, 10 epochs", "Test MSE, optima", "Starts with all orders", "KL($q^G$‖posterior), 10 epochs",
              "KL($q^G$‖posterior), optima", "Orders of 12, optima")  # fmt: skip
    for axes, letter, title in zip(panels.flat, "abcdef", titles, strict=True):
        label_panel(axes, letter, title)
    for axes in (*runs, *optima):
        axes.set_xticks([0.05, 0.1, 0.15, 0.2])
        axes.set_xlabel("α")
    for axes in (runs[1], optima[1]):
        axes.set_yscale("log")
        axes.set_ylabel("nats")
        axes.set_ylim(3e-3, 1.0)
    runs[0].legend(loc="upper left")
    optima[0].legend(loc="upper left")
    return figure


def _colours() -> dict[str, str]:
    from coset.figures import BLUE, GREEN, VERMILION

    return dict(zip(KEYS, (VERMILION, BLUE, GREEN), strict=True))


def _run_errors(axes: "Axes", rows: list[Record], results: Results) -> None:
    from coset.figures import INK

    count = results.numbers["seeds"]
    assert isinstance(count, int)
    for shift, (method, colour) in enumerate(_colours().items()):
        own = [row for row in rows if row["method"] == method]
        at = [row["α"] + 0.008 * (shift - 1) for row in own]
        spread = [row["deviation"] / count**0.5 for row in own]
        axes.errorbar(at, [row["MSE"] for row in own], spread, fmt="o", color=colour, label=method)
        known = [(x, row["paper"]) for x, row in zip(at, own, strict=True) if row["paper"] is not None]
        label = "paper" if shift == 0 else None
        axes.plot([x for x, _ in known], [y for _, y in known], "x", color=INK, label=label)
    axes.set_ylim(0, 0.7)


def _medians(axes: "Axes", rows: list[Record], results: Results) -> None:
    alphas = list(dict.fromkeys(row["α"] for row in rows))
    for shift, (method, colour) in enumerate(_colours().items()):
        names = [f"median_kl_symmetrized_{KEYS[method]}_{place}" for place in range(len(alphas))]
        at = [alpha + 0.008 * (shift - 1) for alpha in alphas]
        axes.plot(at, [results.numbers[name] for name in names], "o", color=colour)  # type: ignore[arg-type]


def _lines(axes: "Axes", rows: list[Record], column: str) -> None:
    from coset.figures import GREY

    posterior = [row for row in rows if row["method"] == "the posterior itself"]
    if posterior:
        values = [row[column] for row in posterior]
        axes.plot([row["α"] for row in posterior], values, color=GREY, lw=3.0, label="the posterior itself")
    for method, colour in _colours().items():
        own = [row for row in rows if row["method"] == method]
        axes.plot([row["α"] for row in own], [row[column] for row in own], "o-", color=colour, label=method)


def _counts(axes: "Axes", rows: list[Record], columns: tuple[str, ...]) -> None:
    """The sum of some columns for every noise and prior, as numbers on shades."""
    from coset.figures import INK

    noises, priors = (sorted({row[name] for row in rows}) for name in ("noise", "prior"))
    held = {(row["noise"], row["prior"]): sum(row[column] for column in columns) for row in rows}
    most = max(1, *held.values())
    shades = [[held[noise, prior] for noise in noises] for prior in priors]
    axes.imshow(shades, origin="lower", cmap="Blues", vmin=0, vmax=1.2 * most, aspect="auto")
    for (noise, prior), many in held.items():
        colour = "white" if many > 0.6 * most else INK
        place = noises.index(noise), priors.index(prior)
        axes.text(*place, str(many), ha="center", va="center", color=colour, fontsize=7.5)
    axes.set_xticks(range(len(noises)), [f"{noise:g}" for noise in noises])
    axes.set_yticks(range(len(priors)), [f"{prior:g}" for prior in priors])
    axes.grid(False)
    axes.set_xlabel("variance of the noise")
    axes.set_ylabel("variance of the prior")
