"""Interpretable units in rotated bases, with and without an activation (Godfrey et al. 2022, figs. 3, 18 and 19)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from coset.represent.dissection import LEAST_IOU, SHARE
from coset.study import Context, Findings, Scalar, study
from coset.study.images import Images
from coset.train import Recipe
from coset_studies.godfrey._residual import PAPER_RECIPE
from coset_studies.godfrey._zoo import Zoo, accuracy_of
from coset_studies.godfrey.dissection._measured import Found, Pictures, Subject, Turning, examined
from coset_studies.godfrey.dissection._report import (
    Curve,
    Estimate,
    concepts_table,
    curve,
    curves_table,
    difference,
    estimate,
    figure_of,
    layers_table,
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
    return Findings(
        numbers=numbers,
        tables={
            "powers": curves_table(curves),
            "layers": layers_table(everything, powers),
            "concepts": concepts_table(everything),
        },
        outcome="\n\n".join(
            [
                _PLAIN,
                *([] if config.residual is None else [_RESIDUAL]),
                _judged(curves),
                _setting(config),
                *_weakness(numbers),
            ]
        ),
        figure=lambda: figure_of(curves, _panels(curves), [label for label in _BARS if label in curves]),
        caption=_caption(curves),
    )


_BARS = (AFTER, BEFORE, WITH, WITHOUT)


def _panels(curves: Mapping[str, Curve]) -> list[tuple[str, list[str]]]:
    groups = {
        "plain networks": (AFTER, BEFORE),
        "residual networks": (WITH, WITHOUT, WITH_INSIDE, WITHOUT_INSIDE),
    }
    chosen = [(title, [label for label in labels if label in curves]) for title, labels in groups.items()]
    return [(title, labels) for title, labels in chosen if labels]


def _caption(curves: Mapping[str, Curve]) -> str:
    letters = "abcdef"
    lines = len(_panels(curves))
    bars = sum(label in curves for label in _BARS)
    return (
        f"{', '.join(f'({letter})' for letter in letters[:lines])} Units with a concept in the basis Q^t, means over "
        f"networks and rotations, with 95 % intervals over networks; scales differ. "
        f"({letters[lines]})-({letters[lines + bars - 1]}) Different concepts among the units of a layer, by category."
    )


_KEYS = {
    "after": AFTER,
    "before": BEFORE,
    "with": WITH,
    "without": WITHOUT,
    "with_inside": WITH_INSIDE,
    "without_inside": WITHOUT_INSIDE,
}


def _contrasts(curves: Mapping[str, Curve]) -> dict[str, Estimate]:
    """The differences of changes: within each plain network, and between residual networks of either kind."""
    found = {"plain": estimate(curves[AFTER].change - curves[BEFORE].change)}
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
        numbers[f"{key}_change"] = str(estimate(item.change))
        numbers[f"{key}_count"] = item.units
        concepts = [sum(each[:, place].mean() for each in item.unique.values()) for place in (0, -1)]
        numbers |= {f"{key}_concepts": float(concepts[0]), f"{key}_concepts_rotated": float(concepts[1])}
    return numbers | {f"{name}_difference": str(found) for name, found in _contrasts(curves).items()}


_PLAIN = """
Behind the ReLUs of the plain networks, which have {plain_accuracy:.1f} % test accuracy, {after_units:.1f} % of the
units are interpretable, and {after_rotated:.1f} % in bases that are rotated at random, a change of {after_change}
points (95 % over networks); before the same ReLUs {before_units:.1f} and {before_rotated:.1f} %, a change of
{before_change}. A layer has {after_concepts:.1f} different concepts in the units and {after_concepts_rotated:.1f}
rotated behind the ReLUs, {before_concepts:.1f} and {before_concepts_rotated:.1f} before them.
"""

_RESIDUAL = """
On the outputs of residual blocks with a ReLU {with_units:.1f} % of the {with_count} units of a network are
interpretable, and {with_rotated:.1f} % rotated ({with_change}); without one {without_units:.1f} and
{without_rotated:.1f} % ({without_change}). Inside of the blocks, behind their first ReLU, it is {with_inside_units:.1f}
and {with_inside_rotated:.1f} % ({with_inside_change}) in the networks with, {without_inside_units:.1f} and
{without_inside_rotated:.1f} % ({without_inside_change}) in those without a ReLU on the outputs. Different concepts of
an output: {with_concepts:.1f} in the units and {with_concepts_rotated:.1f} rotated with a ReLU, {without_concepts:.1f}
and {without_concepts_rotated:.1f} without. Test accuracies are {with_accuracy:.1f} and {without_accuracy:.1f} %.
"""


def _judged(curves: Mapping[str, Curve]) -> str:
    """Each finding of the paper, and whether it came out here; intervals over networks decide."""
    contrasts = _contrasts(curves)
    told = [
        _fall("behind the ReLUs of the plain networks", curves[AFTER]),
        _contrast("plain", "behind the ReLUs of the plain networks", "before them", contrasts["plain"]),
        PAIRED.strip(),
    ]
    if WITH in curves:
        told += [
            _fall("on residual outputs with a ReLU", curves[WITH]),
            _no_fall("on residual outputs without a ReLU", curves[WITHOUT]),
            _rise("inside of residual blocks, with a ReLU on the outputs", curves[WITH_INSIDE]),
            _rise("inside of residual blocks, without one", curves[WITHOUT_INSIDE]),
            _contrast("outputs", "on residual outputs with a ReLU", "without one", contrasts["outputs"]),
        ]
    return " ".join(told)


_DIRECTION = {-1: "falls", 0: "changes by no more than networks differ", 1: "rises"}


def _fall(where: str, item: Curve) -> str:
    sign = estimate(item.change).sign
    judged = {-1: "as in the paper", 0: "where it falls in the paper", 1: "unlike in the paper"}
    return f"Away from the basis of units the share {_DIRECTION[sign]} {where}, {judged[sign]}."


def _no_fall(where: str, item: Curve) -> str:
    sign = estimate(item.change).sign
    judged = {-1: "unlike in the paper", 0: "and no fall is seen, as in the paper", 1: "as in the paper's ConvNeXt"}
    return f"It {_DIRECTION[sign]} {where}, {judged[sign]}."


def _rise(where: str, item: Curve) -> str:
    sign = estimate(item.change).sign
    judged = {-1: "unlike in the paper", 0: "where it tends to rise in the paper", 1: "as in the paper"}
    return f"It {_DIRECTION[sign]} {where}, {judged[sign]}."


PAIRED = """
This is compared within each network, with the same rotations. An earlier run of the preset small, with unions over all
images, had a fall of -6.9 [-14.9, 1.2] points behind the ReLUs, no larger than what networks differ by; and a first
comparison of behind with before, as separate groups, had not told them apart. Unions and comparison were changed after
it.
"""


def _contrast(key: str, one: str, other: str, found: Estimate) -> str:
    how = {-1: "lower", 0: "not told apart from that", 1: "higher"}[found.sign]
    end = f"than {other}" if found.sign else other
    return f"The change {one} is {how} {end} (difference {{{key}_difference}} points)."


def _setting(config: Config) -> str:
    """In what this is not the paper's experiment."""
    pictures, turning = config.pictures, config.turning
    published = " trained by others" * (config.plain.recipe is None)
    return f"""
    What is different here: the paper dissects a ResNet-50 and a ConvNeXt, trained on ImageNet, with the concepts of
    Broden, none of which is at hand. The plain networks are {config.plain.networks} of
    {config.plain.model}{published}; {_residual_setting(config.residual)}. Concepts are the classes of
    {pictures.natural:,} test images, nine shapes and textures on {pictures.generated:,} generated images, and eleven
    names of colours on both; there are no parts or scenes, and no objects within images. Intersections and unions are
    summed over the images that are annotated for a concept's category, thresholds are those of all. A map covers
    {100 * SHARE:g} % of the pixels, so that common colours cannot reach an IoU of {LEAST_IOU:g} (table of concepts).
    There are {turning.rotations} rotations for each network. Thresholds are off by at most {{threshold_error:.3f}} % of
    a unit's activations. Maps of networks without padding lie at the centres of receptive fields, others are stretched
    over the image. In the basis of units a ReLU does not change which activations are the largest: behind and before it
    the same units are interpretable, but for interpolation and for thresholds at 0, and only rotations tell the two
    apart.
    """


_WEAK = 10.0
"""Residual networks are called weak if so many points of accuracy are between them and the plain ones."""


def _weakness(numbers: Mapping[str, Scalar]) -> list[str]:
    """A sentence where residual networks are much weaker than the plain ones, of which their numbers are read."""
    found = [numbers.get(f"{key}_accuracy") for key in ("plain", "with", "without")]
    plain, *residual = (float(value) for value in found if isinstance(value, float))
    if not residual or plain - max(residual) <= _WEAK:
        return []
    return [
        f"The residual networks are weak, {plain - max(residual):.1f} points or more below the plain ones in test "
        f"accuracy: what their units show may change with more training. Where about one unit of a network is "
        f"interpretable, a fall or rise can hardly be seen, and Student's intervals reach below 0."
    ]


def _residual_setting(zoo: Zoo | None) -> str:
    if zoo is None:
        return (
            "residual networks, with and without a ReLU on the outputs of blocks, are left to the preset paper, for "
            "want of time"
        )
    options: dict[str, Any] = dict(zoo.options)
    assert zoo.recipe is not None
    train = "all" if zoo.images.train is None else f"{zoo.images.train:,}"
    pool = zoo.images.pool
    pooled = f", averaged in squares of {pool}×{pool} pixels," if pool > 1 else ""
    return (
        f"the residual ones {zoo.networks} of either kind, with {'-'.join(map(str, options['stages']))} channels and "
        f"{options['blocks']} blocks a stage, trained on {train} images of {zoo.images.data}{pooled} for "
        f"{zoo.recipe.epochs} epochs"
    )
