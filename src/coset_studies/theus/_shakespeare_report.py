"""Tables, text and figure of the study on TinyShakespeare."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from coset.figures import PALETTE, label_panel, new_figure
from coset.study import Scalar, Table
from coset_studies.theus._pairs import LEARNED, NAIVE, PERMUTED, WEIGHTS, Line

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Found = Mapping[str, Mapping[str, Sequence[Line]]]
"""Setting → method → a line for each pair."""


def mean(values: Sequence[float]) -> float:
    """The mean of some numbers."""
    return sum(values) / len(values)


def barriers(lines: Sequence[Line]) -> list[float]:
    """The barrier of every pair."""
    return [line.profile.barrier for line in lines]


def barrier_table(found: Found, pairs: Sequence[tuple[int, int]]) -> Table:
    """A row for each setting, pair and method."""
    rows: list[list[Scalar]] = []
    for setting, methods in found.items():
        for number, (first, second) in enumerate(pairs):
            for method, lines in methods.items():
                profile = lines[number].profile
                ends = mean([profile.values[0], profile.values[-1]])
                rows.append(
                    [setting, f"{first} and {second}", method, profile.barrier, ends, profile.midpoint.value,
                     lines[number].seconds]
                )  # fmt: skip
    columns = ("setting", "pair", "method", "barrier, nats", "ends, nats", "halfway, nats", "alignment, s of one core")
    caption = "Validation loss a character on the line between two networks: above the chord, at the ends, halfway."
    return Table(columns, rows, caption)


def merged_table(found: Found) -> Table:
    """What merging loses: the loss halfway less that of the ends, means over the pairs."""
    rows: list[list[Scalar]] = []
    for setting, methods in found.items():
        permuted = min(mean(barriers(methods[method])) for method in PERMUTED)
        for method, lines in methods.items():
            lost = mean([line.profile.midpoint.excess for line in lines])
            halfway = mean([line.profile.midpoint.value for line in lines])
            left = mean(barriers(lines)) / mean(barriers(methods[NAIVE]))
            rows.append([setting, method, halfway, lost, 100 * left, permuted - mean(barriers(lines))])
    columns = (
        "setting", "method", "loss of the average, nats", "above its parents, nats", "barrier left, %",
        "barrier below the best permutations, nats",
    )  # fmt: skip
    caption = "The average of two networks, which `coset merge` writes; means over the pairs."
    return Table(columns, rows, caption)


def text_table(texts: Sequence[tuple[str, str, str]]) -> Table:
    """What networks write, with ⏎ for the ends of lines."""
    rows = [(setting, network, text.replace("\n", " ⏎ ")) for setting, network, text in texts]
    return Table(("setting", "network", "text"), rows, "Characters drawn one by one; ⏎ ends a line.")


def outcome(found: Found, known: float) -> str:
    """A paragraph for each setting, and one on how it was measured."""
    lines = [_paragraph(setting, methods) for setting, methods in found.items()]
    last = f"""
    The loss of a table of character pairs is {known:.3f} nats. Networks of a pair differ in their seed: initial weights
    and the order of the windows. Elements are learned from the match on weights, on the training loss halfway;
    barriers are on the validation part.
    """
    return "\n\n".join([*lines, last]).replace("{", "{{").replace("}", "}}")


def _paragraph(setting: str, methods: Mapping[str, Sequence[Line]]) -> str:
    ends = mean([value for line in methods[NAIVE] for value in (line.profile.values[0], line.profile.values[-1])])
    told = ", ".join(f"{method} {mean(barriers(lines)):.3f}" for method, lines in methods.items())
    naive = mean(barriers(methods[NAIVE]))
    shares = " and ".join(
        f"{100 * mean(barriers(methods[method])) / naive:.0f} % ({what})"
        for method, what in ((WEIGHTS, "weights"), (LEARNED, "learned"))
    )
    return (
        f"{setting}: validation loss {ends:.3f} nats a character. Barriers in nats, means over the pairs: {told}. "
        f"The whole group leaves {shares} of the naive barrier."
    )


def curves(found: Found) -> "Figure":
    """The loss along the line, a panel for each setting and a curve for each method."""
    figure = new_figure(2.6 * len(found) + 0.4, 2.9)
    panels = figure.subplots(1, len(found), sharey=True, squeeze=False)[0]
    for panel, letter, (setting, methods) in zip(panels, "abcdefgh", found.items(), strict=False):
        for colour, (method, lines) in zip(PALETTE, methods.items(), strict=True):
            taus = lines[0].profile.taus
            losses = [mean([line.profile.values[place] for line in lines]) for place in range(len(taus))]
            panel.plot(taus, losses, color=colour, label=method)
        label_panel(panel, letter, setting)
        panel.set_xlabel("τ")
    panels[0].set_ylabel("validation loss, nats")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure
