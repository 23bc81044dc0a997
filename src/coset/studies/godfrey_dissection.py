"""Interpretable units in rotated bases, with and without an activation (Godfrey et al. 2022, figs. 3, 18 and 19)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from coset.studies import Context, Findings, Scalar, study
from coset.studies._godfrey_dissection_report import (
    Curve,
    concepts_table,
    curve,
    curves_table,
    difference,
    estimate,
    figure_of,
    layers_table,
)
from coset.studies._godfrey_dissections import Found, Pictures, Subject, Turning, examined
from coset.studies._godfrey_residual import PAPER_RECIPE
from coset.studies._godfrey_zoo import Zoo, accuracy_of
from coset.studies._rossi_images import Images
from coset.train import Recipe

AFTER, BEFORE = "plain, after ReLU", "plain, before ReLU"
WITH, WITH_INSIDE = "ReLU on outputs: outputs", "ReLU on outputs: inside blocks"
WITHOUT, WITHOUT_INSIDE = "none on outputs: outputs", "none on outputs: inside blocks"


@dataclass(frozen=True)
class Config:
    """``plain`` networks, dissected behind and before the activations of the ``plain_layers`` (pairs of names);
    ``residual`` networks with and without an activation on the outputs of their blocks.
    """

    plain: Zoo
    plain_layers: tuple[tuple[str, str], ...]
    residual: Zoo
    pictures: Pictures
    turning: Turning

    @property
    def blocks(self) -> tuple[str, ...]:
        """The last block of every stage of the residual networks."""
        options: dict[str, Any] = dict(self.residual.options)
        return tuple(f"stages.{stage}.{options['blocks'] - 1}" for stage in range(len(options["stages"])))


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
_BRIEF = Recipe(epochs=3, batch_size=50, optimizer="adam", learning_rate=1e-2, schedule="cosine")
_DIGITS = Images("digits", train=300, test=100)
_SMALL = (("stages", (4, 8)), ("blocks", 1), ("in_channels", 1))
PRESETS = {
    "quick": Config(
        Zoo("resnet", _DIGITS, 2, _BRIEF, _SMALL),
        (("stem.activation", "stem.norm"), ("stages.1.0.activation1", "stages.1.0.norm1")),
        Zoo("resnet", _DIGITS, 2, _BRIEF, _SMALL),
        Pictures(60, 60, batch_size=60),
        Turning((0.0, 0.5, 1.0), 2),
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
    this is not so, nor in a ConvNeXt, which has none there: the share even rises. Inside of the residual blocks
    of both ResNets it tends to rise away from the basis of activations, which the authors call surprising.
    """,
    presets=PRESETS,
)
def run(config: Config, context: Context) -> Findings:
    """Every network at every layer, in every basis."""
    plain = Subject(
        config.plain,
        ((AFTER, tuple(after for after, _ in config.plain_layers)), (BEFORE, tuple(b for _, b in config.plain_layers))),
        anchored=config.plain.recipe is None,
    )
    found, networks = examined(context, plain, config.pictures, config.turning)
    everything: dict[str, Mapping[str, tuple[Found, ...]]] = dict(found)
    numbers: dict[str, Scalar] = {"plain_accuracy": accuracy_of(context, networks)}
    for key, outputs, inside, final in (("with", WITH, WITH_INSIDE, True), ("without", WITHOUT, WITHOUT_INSIDE, False)):
        zoo = replace(config.residual, options=(*config.residual.options, ("final_activation", final)))
        places = ((outputs, config.blocks), (inside, tuple(f"{block}.activation1" for block in config.blocks)))
        found, networks = examined(context, Subject(zoo, places, anchored=False), config.pictures, config.turning)
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
        outcome=f"{_OUTCOME}\n\n{_judged(curves)}\n\n{_setting(config)}",
        figure=lambda: figure_of(
            curves,
            (
                ("plain networks", (AFTER, BEFORE)),
                ("residual networks", (WITH, WITHOUT, WITH_INSIDE, WITHOUT_INSIDE)),
            ),
            (AFTER, BEFORE, WITH, WITHOUT),
        ),
        caption="(a), (b) Units with a concept in the basis Q^t, means over networks and rotations, with 95 % "
        "intervals over networks. (c)-(f) Different concepts among the units of a layer, by category.",
    )


_KEYS = {
    "after": AFTER,
    "before": BEFORE,
    "with": WITH,
    "without": WITHOUT,
    "with_inside": WITH_INSIDE,
    "without_inside": WITHOUT_INSIDE,
}


def _numbers(curves: Mapping[str, Curve]) -> dict[str, Scalar]:
    numbers: dict[str, Scalar] = {}
    for key, label in _KEYS.items():
        item = curves[label]
        numbers |= {
            f"{key}_units": float(item.percent[:, 0].mean()),
            f"{key}_rotated": float(item.percent[:, -1].mean()),
        }
        numbers[f"{key}_change"] = str(estimate(item.change))
        numbers[f"{key}_count"] = item.units
        concepts = [sum(each[:, place].mean() for each in item.unique.values()) for place in (0, -1)]
        numbers |= {f"{key}_concepts": float(concepts[0]), f"{key}_concepts_rotated": float(concepts[1])}
    for name, one, other in (("plain", AFTER, BEFORE), ("outputs", WITH, WITHOUT)):
        numbers[f"{name}_difference"] = str(difference(curves[one].change, curves[other].change))
    return numbers


_OUTCOME = """
Behind the ReLUs of the plain networks {after_units:.1f} % of the units are interpretable, and {after_rotated:.1f} % in
bases that are rotated at random, a change of {after_change} points (95 % over networks); before the same ReLUs
{before_units:.1f} and {before_rotated:.1f} %, a change of {before_change}. On the outputs of residual blocks with a
ReLU it is {with_units:.1f} and {with_rotated:.1f} % ({with_change}), without one {without_units:.1f} and
{without_rotated:.1f} % ({without_change}); inside of the blocks, behind their first ReLU, {with_inside_units:.1f} and
{with_inside_rotated:.1f} % ({with_inside_change}) in the networks with, {without_inside_units:.1f} and
{without_inside_rotated:.1f} % ({without_inside_change}) in those without a ReLU on the outputs.

Different concepts of a layer: {after_concepts:.1f} in the units and {after_concepts_rotated:.1f} rotated behind the
ReLUs of the plain networks, {with_concepts:.1f} and {with_concepts_rotated:.1f} on residual outputs with a ReLU,
{without_concepts:.1f} and {without_concepts_rotated:.1f} without. The networks have {plain_accuracy:.1f} (plain),
{with_accuracy:.1f} and {without_accuracy:.1f} % test accuracy (residual, with and without the ReLU).
"""


def _judged(curves: Mapping[str, Curve]) -> str:
    """Each finding of the paper, and whether it came out here; intervals over networks decide."""
    told = [
        _fall("behind the ReLUs of the plain networks", curves[AFTER]),
        _fall("on residual outputs with a ReLU", curves[WITH]),
        _no_fall("on residual outputs without a ReLU", curves[WITHOUT]),
        _rise("inside of residual blocks, with a ReLU on the outputs", curves[WITH_INSIDE]),
        _rise("inside of residual blocks, without one", curves[WITHOUT_INSIDE]),
        _contrast("outputs", "on residual outputs with a ReLU", "without one", curves[WITH], curves[WITHOUT]),
        _contrast("plain", "behind the ReLUs of the plain networks", "before them", curves[AFTER], curves[BEFORE]),
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


def _contrast(key: str, one: str, other: str, first: Curve, second: Curve) -> str:
    sign = difference(first.change, second.change).sign
    how = {-1: "lower", 0: "not told apart from that", 1: "higher"}[sign]
    end = f"than {other}" if sign else other
    return f"The change {one} is {how} {end} (difference {{{key}_difference}} points)."


def _setting(config: Config) -> str:
    """In what this is not the paper's experiment."""
    pictures, turning, residual = config.pictures, config.turning, config.residual
    options: dict[str, Any] = dict(residual.options)
    recipe = residual.recipe
    assert recipe is not None
    train = "all" if residual.images.train is None else f"{residual.images.train:,}"
    pooled = f", averaged in squares of {residual.images.pool}×{residual.images.pool} pixels" * (
        residual.images.pool > 1
    )
    stages = "-".join(map(str, options["stages"]))
    published = " trained by others" * (config.plain.recipe is None)
    return f"""
    What is different here: the paper dissects a ResNet-50 and a ConvNeXt, trained on ImageNet, with the concepts of
    Broden, none of which is at hand. The plain networks are {config.plain.networks} of {config.plain.model}{published},
    the residual ones {residual.networks} of either kind, with {stages} channels and {options["blocks"]} block(s) a
    stage, trained on {train} images of {residual.images.data}{pooled} for {recipe.epochs} epochs. Concepts are the
    classes of {pictures.natural:,} test images, nine shapes and textures on {pictures.generated:,} generated images,
    and eleven names of colours on both; there are no parts or scenes, and no objects within images. A map covers 0.5 %
    of the pixels, so that common colours cannot reach an IoU of 0.04 (table of concepts). There are
    {turning.rotations} rotations for each network. Thresholds are off by at most {{threshold_error:.3f}} % of a unit's
    activations. Maps of networks without padding lie at the centres of receptive fields, others are stretched over the
    image. In the basis of units a ReLU does not change which activations are the largest: behind and before it the same
    units are interpretable, but for interpolation and for thresholds at 0, and only rotations tell the two apart.
    """
