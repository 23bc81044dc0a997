"""What the study ``barriers-of-samples`` says of its paths: numbers, text, tables and figure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from coset.landscape import Profile, Profiles
from coset.study import Scalar, Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Networks = Sequence[tuple[int, ...]]
"""The widths of the hidden layers of each network, the one on which all methods are run first."""
METHODS = {"map": "MAP", "mean-field": "mean-field VI", "laplace": "dense Laplace", "sgmcmc": "SGHMC"}
NAIVE, ALIGNED, EACH, WITHIN = "naive", "aligned", "draw by draw", "within one set"
LABELS = {NAIVE: "naive", ALIGNED: "aligned", EACH: "each", WITHIN: "within"}
"""Paths, as they are called in the names of numbers."""
LOW = 0.1
"""A barrier has gone with alignment if at most this share of it is left."""


@dataclass(frozen=True, eq=False)
class Way:
    """A path between the two posteriors of a method on a network: W₂ of its ends, and profiles on both parts."""

    network: tuple[int, ...]
    weights: int
    method: str
    alignment: str
    length: float
    profiles: Profiles

    def log_likelihood(self, part: str) -> Profile:
        """The predictive log-likelihood on "train" or "test"."""
        return self.profiles[f"{part} log-likelihood"]


OUTCOME = """
On {data}, with {weights} weights, the barrier in test log-likelihood between two seeds is, naive and aligned, in nats
per point: {map_naive:.3f} and {map_aligned:.3f} for MAP points, {mean_field_naive:.3f} and {mean_field_aligned:.3f} for
mean-field VI, {laplace_naive:.3f} and {laplace_aligned:.3f} for Laplace with a dense covariance, {sgmcmc_naive:.3f} and
{sgmcmc_aligned:.3f} for SGHMC.

A Gaussian is aligned by its means and marginal deviations and carries its covariance along; draws are aligned by one
element that brings their means and deviations together. With an element for each draw (each moved to the mean of all)
the barrier of SGHMC is {sgmcmc_each:.3f}, and W₂ {w2_each:.2f} beside {w2_aligned:.2f} with one for all and
{w2_naive:.2f} without. Between two halves of one set, chains that began at one network, the barrier is
{sgmcmc_within:.3f} at a W₂ of {w2_within:.2f}.

"""


def verdict(numbers: Mapping[str, Any]) -> str:
    """The sentences on the open question that the numbers allow."""
    lower = [method for method in METHODS if numbers[f"{_key(method)}_aligned"] < numbers[f"{_key(method)}_naive"]]
    gone = [method for method in lower if numbers[f"{_key(method)}_share"] <= LOW]
    new = [method for method in ("laplace", "sgmcmc") if method in lower]
    if len(new) == 2:
        text = "On this network the answer to the open question is yes: alignment lowers both of the new barriers. "
    elif new:
        only = METHODS[new[0]]
        text = f"On this network the answer to the open question is mixed: alignment lowers only that of {only}. "
    else:
        text = "On this network the answer to the open question is no: alignment lowers neither of the new barriers. "
    text += "Of the naive barrier there remain {laplace_share:.1%} (Laplace) and {sgmcmc_share:.1%} (SGHMC), beside "
    text += "{mean_field_share:.1%} (mean-field VI) and {map_share:.1%} (MAP). "
    if len(gone) == len(METHODS):
        return text + "Even so narrow a network aligns: a tenth or less is left by every method.\n\n"
    left = ", ".join(METHODS[method] for method in METHODS if method not in gone)
    return text + f"So narrow a network does not align perfectly: more than a tenth is left for {left}.\n\n"


SWEEP = """
On the widest network ({widest}), whose dense covariance is too large for Laplace here, the test barriers are, naive and
aligned, {widest_map_naive:.3f} and {widest_map_aligned:.3f} (MAP), {widest_mean_field_naive:.3f} and
{widest_mean_field_aligned:.3f} (mean-field VI), {widest_sgmcmc_naive:.3f} and {widest_sgmcmc_aligned:.3f} (SGHMC;
{widest_sgmcmc_each:.3f} draw by draw).
"""


def sweep(numbers: Mapping[str, Any]) -> str:
    """What width does, and whether chains of SGHMC that began at one network stay together."""
    swept = [method for method in METHODS if f"widest_{_key(method)}_share" in numbers]
    better = [name for name in swept if numbers[f"widest_{_key(name)}_share"] < numbers[f"{_key(name)}_share"]]
    worse = [name for name in swept if name not in better]
    parts = []
    for names, what in ((better, "a smaller share of the barrier"), (worse, "no smaller a share")):
        if names:
            listed = ", ".join(f"{METHODS[name]} ({{widest_{_key(name)}_share:.1%}})" for name in names)
            parts.append(f"{what} is left for {listed}")
    text = SWEEP + "With width " + "; ".join(parts) + ". "
    text += "Two halves of one set of SGHMC's draws, there, have a W₂ of {widest_w2_within:.1f} and a barrier of "
    text += (
        "{widest_sgmcmc_within:.3f}, beside {widest_w2_naive:.1f} between the sets and {widest_w2_aligned:.1f} once "
    )
    text += "aligned. "
    if numbers["widest_w2_within"] > numbers["widest_w2_aligned"]:
        return text + (
            "Chains that began at one network are thus farther apart than aligned sets of two seeds (though these are "
            "twice as many draws, which alone lowers a distance): what is left is no more than what parts draws of one "
            "network, and an element for all draws cannot take that away."
        )
    return text + "Chains that began at one network are thus closer than aligned sets of two seeds."


def _key(method: str) -> str:
    return method.replace("-", "_")


def words(widths: tuple[int, ...]) -> str:
    """The widths of a network in words."""
    return " and ".join(str(width) for width in widths)


def numbers_of(data: str, networks: Networks, ways: Sequence[Way]) -> dict[str, Any]:
    """Barriers of the first network, and of the last one under names that begin with "widest_"."""
    numbers: dict[str, Any] = {"data": data, "weights": ways[0].weights}
    numbers["widest"] = f"{words(networks[-1])} hidden units"
    for network, prefix in ((networks[0], ""), (networks[-1], "widest_")):
        draws = [way for way in ways if (way.network, way.method) == (network, "sgmcmc")]
        numbers |= {f"{prefix}w2_{LABELS[way.alignment]}": way.length for way in draws}
        for part, suffix in (("test", ""), ("train", "_train")):
            for way in ways:
                if way.network == network:
                    name = f"{prefix}{_key(way.method)}_{LABELS[way.alignment]}{suffix}"
                    numbers[name] = way.log_likelihood(part).barrier
            for method in METHODS:
                name = f"{prefix}{_key(method)}"
                if f"{name}_naive{suffix}" in numbers:
                    naive, aligned = (numbers[f"{name}_{label}{suffix}"] for label in (NAIVE, ALIGNED))
                    # No barrier to begin with: alignment takes nothing of it away.
                    numbers[f"{name}_share{suffix}"] = aligned / naive if naive > 0 else 1.0
    return numbers


def table(ways: Sequence[Way]) -> Table:
    """A row for each path."""
    rows: list[list[Scalar]] = []
    for way in ways:
        train, test, error = way.log_likelihood("train"), way.log_likelihood("test"), way.profiles["test error"]
        row: list[Scalar] = [words(way.network), way.weights, METHODS[way.method], way.alignment, way.length]
        for profile in (train, test):
            row += [(profile.values[0] + profile.values[-1]) / 2, profile.barrier, profile.barrier_error]
        rows.append([*row, 50 * (error.values[0] + error.values[-1]), 100 * error.midpoint.value])
    columns = (
        "hidden units", "weights", "method", "path", "W₂", "train, ends", "train barrier", "± train", "test, ends",
        "test barrier", "± test", "test error, ends, %", "halfway, %",
    )  # fmt: skip
    caption = (
        "Predictive log-likelihood in nats per point: the mean of both ends, and the barrier with its Monte Carlo "
        "standard error. Errors: the mean of both ends, and at τ = 1/2. Within one set: from one half of the chains of "
        "a seed to the other."
    )
    return Table(columns, rows, caption)


def profile_table(networks: Networks, ways: Sequence[Way]) -> Table:
    """The values along the paths of the first network, a row for each τ."""
    shown = {
        f"{METHODS[way.method]}, {way.alignment}, {part}": way.log_likelihood(part)
        for way in ways
        if way.network == networks[0]
        for part in ("train", "test")
    }
    taus = next(iter(shown.values())).taus
    rows = list(zip(taus, *(profile.values for profile in shown.values()), strict=True))
    caption = f"Predictive log-likelihood along the paths of the network with {words(networks[0])} hidden units."
    return Table(("τ", *shown), rows, caption)


def figure_of(networks: Networks, ways: Sequence[Way]) -> "Figure":
    """A panel for each method on the first network; of several networks one more, with the barriers of all."""
    from coset.figures import label_panel, new_figure

    swept = len(networks) > 1
    figure = new_figure(12.6 if swept else 9.6, 3.0)
    panels = figure.subplots(1, len(METHODS) + swept)
    for axes, letter, (method, title) in zip(panels, "abcd", METHODS.items(), strict=False):
        for way in ways:
            if way.network == networks[0] and way.method == method:
                _draw(axes, way)
        label_panel(axes, letter, title)
        axes.set_xlabel("τ")
        axes.legend(loc="lower center")
    low = min(axes.get_ylim()[0] for axes in panels[: len(METHODS)])
    for axes in panels[: len(METHODS)]:
        # The legend stands below the curves.
        axes.set_ylim(1.35 * low, 0.0)
    panels[0].set_ylabel("log-likelihood (nats)")
    if swept:
        _draw_sweep(panels[-1], networks, ways)
        label_panel(panels[-1], "e", "by network")
    return figure


def _draw(axes: "Axes", way: Way) -> None:
    from coset.figures import BLUE, GREEN, GREY, VERMILION

    colour = {NAIVE: VERMILION, ALIGNED: BLUE, EACH: GREEN, WITHIN: GREY}[way.alignment]
    # What lies upon an aligned path must not hide it.
    width = 0.8 if way.alignment == EACH else 1.6
    for part, stroke, label in (("test", "-", way.alignment), ("train", "--", None)):
        profile = way.log_likelihood(part)
        axes.plot(profile.taus, profile.values, color=colour, linestyle=stroke, label=label, linewidth=width)


def _draw_sweep(axes: "Axes", networks: Networks, ways: Sequence[Way]) -> None:
    from coset.figures import PALETTE

    for number, (method, title) in enumerate(METHODS.items()):
        for alignment, stroke in ((NAIVE, ":"), (ALIGNED, "-")):
            found = [way for way in ways if way.method == method and way.alignment == alignment]
            places = [networks.index(way.network) for way in found]
            # A barrier of 0 has no place on a logarithmic axis.
            heights = [max(way.log_likelihood("test").barrier, 1e-4) for way in found]
            label = title if alignment == ALIGNED else None
            axes.plot(places, heights, color=PALETTE[number], marker="osD^"[number], linestyle=stroke, label=label)
    axes.set_yscale("log")
    axes.set_xticks(range(len(networks)), ["\n".join(map(str, widths)) for widths in networks])
    axes.set_xlabel("hidden units")
    axes.set_ylabel("test barrier (nats)")
    # Beside the panel, for lines may go anywhere in it.
    axes.legend(title="aligned\n(dotted: naive)", title_fontsize=8.0, loc="center left", bbox_to_anchor=(1.0, 0.5))
