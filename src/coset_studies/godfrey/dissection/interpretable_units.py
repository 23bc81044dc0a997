"""Interpretable units in rotated bases, with and without an activation (Godfrey et al. 2022, figs. 3, 18 and 19)."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from coset.study import Claim, Context, Estimate, Findings, Results, Scalar, study
from coset.study.estimates import least
from coset.study.images import Images
from coset.train import Recipe
from coset_studies.godfrey._claims import SIGN
from coset_studies.godfrey._residual import PAPER_RECIPE
from coset_studies.godfrey._zoo import Zoo, accuracy_of
from coset_studies.godfrey.dissection._measured import Found, Pictures, Subject, Turning, examined
from coset_studies.godfrey.dissection._report import (
    Curve,
    Mean,
    concepts_table,
    curve,
    curves_table,
    difference,
    figure_of,
    layers_table,
    mean_of,
)

AFTER, BEFORE = "plain, after ReLU", "plain, before ReLU"
WITH, WITH_INSIDE = "ReLU on outputs: outputs", "ReLU on outputs: inside blocks"
WITHOUT, WITHOUT_INSIDE = "none on outputs: outputs", "none on outputs: inside blocks"


@dataclass(frozen=True)
class Config:
    """``plain`` networks, dissected behind and before the activations of the ``plain_layers`` (pairs of names);
    ``residual`` networks with and without an activation on the outputs of their blocks, None for none.
    """

    plain: Zoo
    plain_layers: tuple[tuple[str, str], ...]
    residual: Zoo | None
    pictures: Pictures
    turning: Turning

    def subjects(self) -> dict[str, Subject]:
        """What is dissected, by a key for numbers."""
        behind, before = (tuple(names) for names in zip(*self.plain_layers, strict=True))
        anchored = self.plain.recipe is None
        found = {"plain": Subject(self.plain, ((AFTER, behind), (BEFORE, before)), anchored)}
        if self.residual is None:
            return found
        options: dict[str, Any] = dict(self.residual.options)
        # The last block of every stage.
        blocks = tuple(f"stages.{stage}.{options['blocks'] - 1}" for stage in range(len(options["stages"])))
        inner = tuple(f"{block}.activation1" for block in blocks)
        for key, outputs, inside, final in (
            ("with", WITH, WITH_INSIDE, True),
            ("without", WITHOUT, WITHOUT_INSIDE, False),
        ):
            zoo = replace(self.residual, options=(*self.residual.options, ("final_activation", final)))
            found[key] = Subject(zoo, ((outputs, blocks), (inside, inner)), anchored=False)
        return found


def _tiny10(*numbers: int) -> tuple[tuple[str, str], ...]:
    return tuple((f"relu{number}", f"bn{number}") for number in numbers)


_TRAINED = Recipe(
    epochs=6,
    batch_size=100,
    optimizer="adam",
    learning_rate=1e-2,
    schedule="cosine",
    augmentation="shift-flip",
    shift=1,
)
_BRIEF = Recipe(epochs=2, batch_size=50, optimizer="adam", learning_rate=1e-2, schedule="cosine")
_DIGITS = Images("digits", train=100, test=100)
_SMALL = (("stages", (4,)), ("blocks", 1), ("in_channels", 1))
PRESETS = {
    "quick": Config(
        Zoo("resnet", _DIGITS, 2, _BRIEF, _SMALL),
        (("stem.activation", "stem.norm"),),
        Zoo("resnet", _DIGITS, 2, _BRIEF, _SMALL),
        Pictures(40, 40, batch_size=40),
        Turning((0.0, 1.0), 2),
    ),
    "small": Config(
        Zoo("tiny10", Images("cifar10", train=1000, test=1000), 4, None),
        _tiny10(1, 3, 5, 6, 7),
        Zoo(
            "resnet",
            Images("cifar10", train=6000, test=1000, pool=2),
            4,
            _TRAINED,
            (("stages", (16, 32, 64)), ("blocks", 1)),
        ),
        Pictures(500, 500),
        Turning((0.0, 0.2, 0.4, 0.6, 0.8, 1.0), 4),
    ),
    "paper": Config(
        Zoo("tiny10", Images("cifar10"), 4, None),
        _tiny10(1, 2, 3, 4, 5, 6, 7),
        Zoo("resnet", Images("cifar10"), 5, PAPER_RECIPE, (("stages", (16, 32, 64)), ("blocks", 3))),
        Pictures(10_000, 10_000),
        Turning((0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0), 10),
    ),
}


_ESTIMATE = re.compile(r"(?P<value>\S+) \[(?P<low>\S+), (?P<high>\S+)\]")


def _told(results: Results, name: str) -> Estimate | None:
    """A change that the run told as "value [low, high]"; None where there is no interval."""
    found = _ESTIMATE.fullmatch(str(results.numbers.get(name)))
    if found is None:
        return None
    value, low, high = (float(found[part]) for part in ("value", "low", "high"))
    # The value has one digit, its ends have more.
    return Estimate(value, min(low, value), max(high, value))


def _sign(paper: str, source: str, statistic: str, direction: str, *names: str) -> Claim:
    return Claim(
        paper=paper,
        source=source,
        statistic=statistic,
        direction=direction,
        threshold=0.0,
        reason=SIGN,
        interval="Intervals are of 95 %, Student's or Welch's over networks.",
        possible=(-200.0, 200.0),
        estimate=lambda results: least([_told(results, name) for name in names]),
    )


_FALL = "The share of interpretable units falls as the basis is rotated away from that of the activations."
_CHANGE = "change of the share from the units to a full rotation, points"
CLAIMS = (
    _sign(_FALL, "section 6, fig. 3", f"{_CHANGE}, behind the ReLUs of plain networks", "below", "after_change"),
    _sign(_FALL, "section 6, fig. 3", f"{_CHANGE}, outputs of blocks with a ReLU", "below", "with_change"),
    _sign(
        "Without a ReLU on the outputs this is not so.",
        "section 6, fig. 3",
        "this change with a ReLU on the outputs less that without",
        "below",
        "outputs_difference",
    ),
    _sign(
        "Inside of residual blocks the share tends to rise away from the basis of activations, in both ResNets.",
        "F, figs. 18 and 19",
        f"{_CHANGE}, inside of blocks, the smaller of both kinds of networks",
        "above",
        "with_inside_change",
        "without_inside_change",
    ),
)
TEXT = """
Behind the ReLUs of plain networks {after_units:.0f} % of the units are interpretable and {after_rotated:.0f} % after
a full rotation. Before the same ReLUs the share is the same at both ends ({before_units:.0f} and {before_rotated:.0f}
%). Compared within each network, with the same rotations, the two changes differ by {plain_difference}
points: the basis of activations is special only behind them.

The residual networks say little. They have {with_accuracy:.0f} and {without_accuracy:.0f} % test accuracy, the plain
ones {plain_accuracy:.0f} %, and in the mean at most five of their {with_count} units are interpretable. On outputs
with a ReLU the share falls; with and without one are not told apart; inside of blocks no rise is seen.

ImageNet, ResNet-50, ConvNeXt and the concepts of Broden are not at hand. The plain networks are four of Tiny10 that
others trained on CIFAR-10, the residual ones four of either kind with one block a stage, trained for 6 epochs on
6,000 images of 16 × 16 pixels. Concepts are the classes of 500 test images, shapes and textures on 500 generated
ones, and names of colours on both. A map covers half a percent of the pixels, so that common colours cannot reach the
IoU that makes a unit interpretable.

An earlier run of this preset took unions over all images and compared behind with before as separate groups, and told
neither fall nor difference; unions and comparison were changed after it.
"""


@study(
    name="godfrey-dissection",
    title="Interpretable units and rotations of the basis",
    reference="Godfrey et al. 2022, figs. 3, 18 and 19, section 6 and F",
    paper="""
    Network dissection counts the units of a layer that detect a named concept. In a ResNet-50 the share of such units
    falls as the basis is rotated away from that of the activations. Without a ReLU on the outputs of residual blocks
    this is not so, nor in a ConvNeXt, which has none there and where it even rises. Inside of the residual blocks
    of both ResNets it tends to rise away from the basis of activations, which the authors call surprising.
    """,
    presets=PRESETS,
    claims=CLAIMS,
    text={"small": TEXT},
    tables={},
    figure=figure_of,
    caption="""
    (a), (b) Units with a concept in the basis Q^t, means over networks and rotations, with 95 % intervals over
    networks; scales differ. (c) to (f) Different concepts among the units of a layer, by category.
    """,
)
def run(config: Config, context: Context) -> Findings:
    """Every network at every layer, in every basis."""
    everything: dict[str, Mapping[str, tuple[Found, ...]]] = {}
    numbers: dict[str, Scalar] = {}
    for key, subject in config.subjects().items():
        found, networks = examined(context, subject, config.pictures, config.turning)
        everything |= found
        numbers[f"{key}_accuracy"] = accuracy_of(context, networks)
    powers = config.turning.powers
    curves = {label: curve(layers, powers) for label, layers in everything.items()}
    numbers |= _numbers(curves)
    numbers["threshold_error"] = 100 * max(one.error for ls in everything.values() for e in ls.values() for one in e)
    tables = {
        "powers": curves_table(curves),
        "layers": layers_table(everything, powers),
        "concepts": concepts_table(everything),
    }
    return Findings(numbers, tables)


_KEYS = {
    "after": AFTER,
    "before": BEFORE,
    "with": WITH,
    "without": WITHOUT,
    "with_inside": WITH_INSIDE,
    "without_inside": WITHOUT_INSIDE,
}


def _contrasts(curves: Mapping[str, Curve]) -> dict[str, Mean]:
    """The differences of changes: within each plain network, and between residual networks of either kind."""
    found = {"plain": mean_of(curves[AFTER].change - curves[BEFORE].change)}
    if WITH in curves:
        found["outputs"] = difference(curves[WITH].change, curves[WITHOUT].change)
    return found


def _numbers(curves: Mapping[str, Curve]) -> dict[str, Scalar]:
    numbers: dict[str, Scalar] = {}
    for key, label in _KEYS.items():
        if label not in curves:
            continue
        item = curves[label]
        ends = [float(item.percent[:, place].mean()) for place in (0, -1)]
        numbers |= {f"{key}_units": ends[0], f"{key}_rotated": ends[1]}
        numbers[f"{key}_change"] = str(mean_of(item.change))
        numbers[f"{key}_count"] = item.units
        concepts = [sum(each[:, place].mean() for each in item.unique.values()) for place in (0, -1)]
        numbers |= {f"{key}_concepts": float(concepts[0]), f"{key}_concepts_rotated": float(concepts[1])}
    return numbers | {f"{name}_difference": str(found) for name, found in _contrasts(curves).items()}
