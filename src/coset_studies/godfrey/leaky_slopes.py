"""ResNet20s with LeakyReLU of several slopes: accuracy and G_ReLU stitching (Godfrey et al. 2022, fig. 8, table 3)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from coset.represent import Interval
from coset.study import Context, Findings, Scalar, Table, study
from coset_studies.godfrey._contrasts import average, contrast, key_of, listed, minus, points, sign, told
from coset_studies.godfrey._penalties import over_what
from coset_studies.godfrey._residual import (
    FEWER_IMAGES,
    IMAGES,
    PAPER_RECIPE,
    RECIPE,
    RESNET20_PLACES,
    TINY,
    Places,
)
from coset_studies.godfrey._setting import (
    LAST_EPOCH,
    earlier_sentence,
    interval_sentence,
    sentence,
    stitching_differences,
    zoo_differences,
)
from coset_studies.godfrey._similarity import percentiles
from coset_studies.godfrey._stitching import Penalties, Training, penalties
from coset_studies.godfrey._zoo import Pairs, Zoo, answers, chosen_pairs, load_networks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PUBLISHED = {1e-4: 89.3, 1e-3: 89.4, 1e-2: 89.2, 0.1: 89.4, 0.5: 86.6, 0.9: 73.0, 1.0: 41.8}
"""Table 3: the slope and the accuracy in percent."""
FAMILY = "G_ReLU"
BOTH: Pairs = ((0, 1), (1, 0))


@dataclass(frozen=True)
class Config:
    """Two networks of each slope, stitched to each other."""

    zoo: Zoo
    slopes: tuple[float, ...]
    places: Places
    pairs: Pairs
    training: Training


@dataclass(frozen=True, eq=False)
class Slope:
    """What was measured of one slope.

    ``accuracies``: of each network on all test images, in percent; ``chance``: that by chance, as a share; ``found``:
    the penalties, on the test images held out for them.
    """

    accuracies: tuple[float, ...]
    chance: float
    found: Penalties

    @property
    def accuracy(self) -> float:
        """The mean, in percent."""
        return sum(self.accuracies) / len(self.accuracies)

    @property
    def room(self) -> float:
        """The accuracy above chance on the images of the penalties, which is all there is to lose, as a share."""
        return self.found.accuracy - self.chance


PRESETS = {
    "quick": Config(
        Zoo("resnet", IMAGES["quick"], 2, RECIPE["quick"], TINY),
        (0.01, 1.0),
        RESNET20_PLACES["quick"],
        ((0, 1),),
        Training(images=100, held_out=100, epochs=1, batch_size=50, learning_rate=1e-2),
    ),
    "small": Config(
        Zoo("resnet20", FEWER_IMAGES, 2, replace(RECIPE["small"], epochs=4), (("width", 0.5),)),
        tuple(PUBLISHED),
        Places(blocks=(0, 2)),
        ((0, 1),),
        Training(images=2500, held_out=5000, epochs=4, batch_size=50, learning_rate=3e-2),
    ),
    "paper": Config(
        Zoo("resnet20", IMAGES["paper"], 2, PAPER_RECIPE),
        tuple(PUBLISHED),
        Places(),
        BOTH,
        Training(images=None, held_out=None, start="random"),
    ),
}
EARLIER = earlier_sentence(
    "the last one before had four slopes, networks of 36 to 45 % that had trained on 25,000 images for 2 epochs, and "
    "maps in both directions that trained on 1,500 images for 3 epochs and were judged on 2,000; it compared "
    "deviations over layers in points only; its networks had width 0.25. It "
    "left open whether penalties are more constant at slope 1, did not tell the last two layers apart at slope 0.01, "
    "and found them higher than before them at slope 1"
)


@study(
    name="godfrey-leaky-slopes",
    title="Stitching ResNet20s with LeakyReLU, from ReLU to the identity",
    reference="Godfrey et al. 2022, On the symmetries of deep learning models and their internal representations, "
    "supplement D.3, fig. 8 and table 3",
    paper="""
    ResNet20s with LeakyReLU of slope s below 0 have 89 % on CIFAR-10 up to s = 0.1, then 86.6 % at 0.5, 73.0 % at 0.9
    and 41.8 % at 1, where the activation is the identity. G_ReLU stitching is hard to interpret for that decrease; but
    at s = 1, and less so at 0.9, penalties are mostly constant throughout the layers, unlike for small slopes. This is
    most prominent for the final two layers, where the penalty is the lowest for small slopes.
    """,
    presets=PRESETS,
)
def run(config: Config, context: Context) -> Findings:
    """Two networks of each slope, stitched by G_ReLU."""
    paper = PRESETS["paper"]
    slopes = {slope: _measured(config, context, slope) for slope in config.slopes}
    labels, first = config.places.labels(), next(iter(slopes.values()))
    smaller = [*zoo_differences(config.zoo, paper.zoo), LAST_EPOCH]
    if config.slopes != paper.slopes:
        smaller.append(
            f"slopes are {listed([f'{slope:g}' for slope in config.slopes])} (there {len(PUBLISHED)} of them)"
        )
    smaller += stitching_differences(config.training, paper.training, config.pairs, paper.pairs)
    return Findings(
        numbers=numbers_of(slopes),
        tables={"accuracies": _accuracy_table(slopes), "penalties": _penalty_table(slopes, labels)},
        outcome=f"{judge_accuracy(slopes)}\n\n{judge_evenness(slopes)}\n\n{judge_end(slopes)}\n\n"
        f"{interval_sentence(first.found)} {sentence(smaller)} "
        f"{EARLIER if config == PRESETS['small'] else ''}",
        figure=lambda: _figure(slopes, labels),
        caption="(a) G_ReLU stitching penalties by layer, numbered by convolutions, * inside of "
        f"residual blocks, for slopes of LeakyReLU, with 95 % intervals {over_what(first.found)}. (b) Accuracy on all "
        f"test images of the two networks of each slope, here and published.",
    )


def _measured(config: Config, context: Context, slope: float) -> Slope:
    zoo = replace(config.zoo, options=(*config.zoo.options, ("activation", f"leaky_relu:{slope:g}")))
    pairs = chosen_pairs(context, zoo, config.pairs)
    networks = load_networks(context, zoo, {number for pair in pairs for number in pair})
    found = penalties(context, networks, tuple(config.places.labels()), (FAMILY,), pairs, config.training)
    alone = answers(context, networks, None)
    return Slope(tuple(100 * float(one.mean()) for one in alone.values()), 1 / networks.classes, found)


def spread(one: Slope, *, relative: bool = False) -> Interval:
    """The standard deviation of the mean penalties over layers, without the part of it that is noise.

    Noise e of the means over images adds the variance of e over layers to the square; a resample has it twice. Its
    expectation, that of resamples around the means, is taken off. ``relative``: as a share of ``room``, which is taken
    as known.
    """
    values = one.found.lost.mean((-2, -1))[:, 0]
    draws = one.found.draws[:, 0]
    noise = (draws - values[:, None]).var(0, correction=0).mean()
    scale = one.room if relative else 1.0
    value = (values.var(correction=0) - noise).clamp(min=0).sqrt() / scale
    return percentiles(float(value), (draws.var(0, correction=0) - 2 * noise).clamp(min=0).sqrt() / scale)


def spread_difference(one: Slope, other: Slope, *, relative: bool = False) -> Interval:
    """How much more the penalties of ``one`` differ over layers than those of ``other``."""
    first, second = spread(one, relative=relative), spread(other, relative=relative)
    return percentiles(first.value - second.value, first.draws - second.draws)


def end_drop(found: Penalties) -> Interval:
    """The mean penalty of all layers but the last two, less that of the last two."""
    early, late = found.layers[:-2], found.layers[-2:]
    return contrast(found, minus(average(early, FAMILY), average(late, FAMILY)))


def numbers_of(slopes: Mapping[float, Slope]) -> dict[str, Scalar]:
    """By slope: accuracy in percent; the mean penalty, its spread over layers and its drop at the end in points."""
    numbers: dict[str, Scalar] = {}
    for slope, one in slopes.items():
        name = _name(slope)
        numbers[f"{name}_accuracy"] = one.accuracy
        mean = contrast(one.found, average(one.found.layers, FAMILY))
        numbers |= points(f"{name}_mean", mean)
        numbers[f"{name}_share"] = 100 * mean.value / one.room
        numbers |= points(f"{name}_spread", spread(one))
        numbers |= points(f"{name}_relative", spread(one, relative=True))
        numbers |= points(f"{name}_drop", end_drop(one.found))
    least, most = (slopes[slope] for slope in _ends(slopes))
    numbers["held_out"] = slopes[_ends(slopes)[0]].found.lost.shape[-1]
    numbers |= points("spread_difference", spread_difference(least, most))
    return numbers | points("relative_difference", spread_difference(least, most, relative=True))


def _name(slope: float) -> str:
    return f"s_{key_of(f'{slope:g}')}"


def _ends(slopes: Mapping[float, Slope]) -> tuple[float, float]:
    return min(slopes), max(slopes)


def judge_accuracy(slopes: Mapping[float, Slope]) -> str:
    """Whether accuracy falls towards the identity."""
    told_all = ", ".join(f"{{{_name(slope)}_accuracy:.1f}} % at {slope:g}" for slope in slopes)
    least, most = _ends(slopes)
    first, last = slopes[least].accuracies, slopes[most].accuracies
    if min(first) > max(last):
        verdict = (
            f"As in the paper it falls towards the identity: every network of slope {least:g} is better than every one"
        )
        return f"The mean accuracy on all test images is {told_all}. {verdict} of slope {most:g}."
    verdict = (
        f"Unlike in the paper, every network of slope {least:g} is worse than every one of slope {most:g}"
        if max(first) < min(last)
        else "In the paper it falls towards the identity; here the two ends are not told apart"
    )
    return f"The mean accuracy on all test images is {told_all}. {verdict}."


def judge_evenness(slopes: Mapping[float, Slope]) -> str:
    """Whether penalties are more constant over layers at slope 1, beside the accuracy that there is to lose."""
    least, most = _ends(slopes)
    relative, plain = (
        sign(spread_difference(slopes[least], slopes[most], relative=relative)) for relative in (True, False)
    )
    spoken = {
        1: f"As in the paper, penalties are more constant over the layers at slope {most:g} than at {least:g}",
        0: f"That penalties are more constant over the layers at slope {most:g} than at {least:g}, as in the paper, is "
        f"not told apart from the uncertainty",
        -1: f"Unlike in the paper, penalties are less constant over the layers at slope {most:g} than at {least:g}",
    }[plain]
    shares = {1: "they are more constant", 0: "this is not told apart", -1: "they are less constant"}[relative]
    each = "; ".join(
        f"{told(f'{_name(slope)}_relative')} % at {slope:g} ({{{_name(slope)}_spread:.1f}} points around a mean of "
        f"{{{_name(slope)}_mean:.1f}}, which is {{{_name(slope)}_share:.0f}} %)"
        for slope in slopes
    )
    return (
        f"{spoken}: in points their deviation over layers differs by {told('spread_difference')}. As a share of the "
        f"accuracy above chance, which is what there is to lose and falls with the slope, {shares}, by "
        f"{told('relative_difference')} % of it; this measure is ours. The standard deviation of penalties over layers "
        f"is {each}. The noise of images is taken off these deviations; how much networks differ is not known of so "
        f"few."
    )


def judge_end(slopes: Mapping[float, Slope]) -> str:
    """Whether the last two layers have the lowest penalties for small slopes, and not at slope 1."""
    least, most = _ends(slopes)
    drops = {slope: sign(end_drop(slopes[slope].found)) for slope in (least, most)}
    words = {1: "lower than before them", 0: "not told apart from those before them", -1: "higher than before them"}
    verdict = {1: "as in the paper", 0: "lower in the paper", -1: "unlike in the paper"}[drops[least]]
    means = slopes[least].found.lost.mean((-2, -1))[:, 0]
    lowest = int((means[-2:] < means[:-2].min()).sum())
    return (
        f"At slope {least:g} the penalties of the last two layers are in the mean {words[drops[least]]}, {verdict}: "
        f"the mean of the earlier ones is higher by {told(f'{_name(least)}_drop')} points. In the paper both are the "
        f"lowest; here {lowest} of the two is below all earlier ones. At slope {most:g} they are "
        f"{words[drops[most]]} ({told(f'{_name(most)}_drop')}); in the paper mostly as high as the others."
    )


def _accuracy_table(slopes: Mapping[float, Slope]) -> Table:
    rows: list[list[Scalar]] = []
    for slope, one in slopes.items():
        mean = contrast(one.found, average(one.found.layers, FAMILY))
        parts = (mean, spread(one), spread(one, relative=True), end_drop(one.found))
        assert one.found.faint is not None
        known = [one.accuracy, min(one.accuracies), max(one.accuracies), PUBLISHED.get(slope), 100 * one.room]
        rows.append([slope, *known, *(100 * part.value for part in parts), int(one.found.faint.sum())])
    columns = (
        "slope",
        "accuracy, %",
        "worst network",
        "best network",
        "published, %",
        "to lose, points",
        "mean penalty, points",
        "its deviation over layers",
        "deviation, % of what there is to lose",
        "drop at the last two layers",
        "faint units",
    )
    return Table(
        columns,
        rows,
        "Accuracies on all test images, beside table 3 of the paper; the accuracy above chance on those by which maps "
        "are judged; what the penalties do over the layers; and how many units of all maps have a scale of at most "
        "0.001.",
    )


def _penalty_table(slopes: Mapping[float, Slope], labels: Mapping[str, str]) -> Table:
    rows: list[list[Scalar]] = []
    for slope, one in slopes.items():
        for layer in one.found.layers:
            mean = one.found.mean(layer, FAMILY)
            rows.append([slope, labels[layer], layer, 100 * mean.value, 100 * mean.low, 100 * mean.high])
    columns = ("slope", "layer", "name", "penalty, points", "low", "high")
    whose = over_what(next(iter(slopes.values())).found)
    return Table(columns, rows, f"G_ReLU stitching penalties with 95 % intervals {whose}.")


def _figure(slopes: Mapping[float, Slope], labels: Mapping[str, str]) -> "Figure":
    from coset.figures import label_panel, new_figure

    figure = new_figure(8.4, 3.6)
    left, right = figure.subplots(1, 2, width_ratios=(2.2, 1.0))
    _draw_penalties(left, slopes, labels)
    label_panel(left, "a", "$G_{\\mathrm{ReLU}}$ stitching")
    _draw_accuracies(right, slopes)
    label_panel(right, "b", "accuracy")
    return figure


def _draw_penalties(axes: "Axes", slopes: Mapping[float, Slope], labels: Mapping[str, str]) -> None:
    import matplotlib

    layers = next(iter(slopes.values())).found.layers
    colours = matplotlib.colormaps["cividis"](torch.linspace(0, 0.9, len(slopes)).tolist())
    for number, ((slope, one), colour) in enumerate(zip(slopes.items(), colours, strict=True)):
        means = [one.found.mean(layer, FAMILY) for layer in layers]
        values = [100 * mean.value for mean in means]
        bars = [[100 * (mean.value - mean.low) for mean in means], [100 * (mean.high - mean.value) for mean in means]]
        at = [place + 0.08 * (number - (len(slopes) - 1) / 2) for place in range(len(layers))]
        axes.errorbar(at, values, bars, color=colour, marker="osD^v<>"[number % 7], ms=4, lw=0.8, label=f"{slope:g}")
    axes.set_xticks(range(len(layers)), [labels[layer] for layer in layers])
    axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    axes.set_xlabel("layer")
    axes.set_ylabel("penalty, percentage points")
    axes.legend(title="slope", loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _draw_accuracies(axes: "Axes", slopes: Mapping[float, Slope]) -> None:
    from coset.figures import BLUE, GREY

    places = range(len(slopes))
    for place, one in zip(places, slopes.values(), strict=True):
        label = "here" if place == 0 else None
        axes.plot([place] * len(one.accuracies), one.accuracies, "o", color=BLUE, label=label)
    known = [(place, PUBLISHED[slope]) for place, slope in zip(places, slopes, strict=True) if slope in PUBLISHED]
    axes.plot([place for place, _ in known], [value for _, value in known], "x", color=GREY, label="published")
    axes.set_xticks(list(places), [f"{slope:g}" for slope in slopes], rotation=45, ha="right")
    axes.set_ylim(0, 100)
    axes.set_xlabel("slope of LeakyReLU")
    axes.set_ylabel("test accuracy, %")
    axes.legend(loc="lower left")
