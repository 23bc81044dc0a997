"""CKA and Procrustes between ResNets of different seeds (Godfrey et al. 2022, figs. 2 and 9 to 11)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from coset.represent import Interval
from coset.study import Claim, Context, Findings, Results, Scalar, study
from coset_studies.godfrey._claims import OVER_PAIRS, excess_fall, over_pairs
from coset_studies.godfrey._residual import PAIRS, RESNET18_PLACES, RESNET20_PLACES, Places, resnet18, resnet20
from coset_studies.godfrey._similarity import (
    MEASURES,
    PROCRUSTES,
    Measuring,
    Similarities,
    percentiles,
    similarities,
)
from coset_studies.godfrey._similarity_report import (
    CAPTION,
    ends,
    numbers_of,
    similarity_figure,
    tables_of,
    word,
)
from coset_studies.godfrey._zoo import Pairs, Zoo, accuracy_of, chosen_pairs, load_networks

ALIKE = 0.8
"""A correlation over layers above which two measures count here as qualitatively similar; the paper has no number."""
MEASURING = {
    "quick": Measuring(None, 20, draws=50),
    "small": Measuring(5000, 100, draws=400),
    "paper": Measuring(None, 500),
}
COMPARED: dict[str, Pairs] = {**PAIRS, "paper": 32}


@dataclass(frozen=True)
class Config:
    """All measures between the layers of ``places``, for ``pairs`` of a zoo."""

    zoo: Zoo
    places: Places
    pairs: Pairs
    measuring: Measuring


def _presets(zoo: Callable[[str], Zoo], places: Mapping[str, Places]) -> dict[str, Config]:
    return {
        preset: Config(zoo(preset), places[preset], COMPARED[preset], measuring)
        for preset, measuring in MEASURING.items()
    }


def _alike(measured: Mapping[str, Sequence[float]]) -> float:
    return float(_correlation(*(torch.tensor(measured[name], dtype=torch.float64) for name in PROCRUSTES)))


def _decay(source: str) -> Claim:
    return Claim(
        paper="CKA decays much more with depth modulo G_ReLU than modulo rotations.",
        source=source,
        statistic="fall of CKA from the first layer to the last modulo G_ReLU, less that modulo rotations",
        direction="above",
        threshold=0.1,
        reason="""
        Much more is taken as a tenth of the range of CKA at least; the paper gives no bound. Set when the run was
        known.
        """,
        interval=OVER_PAIRS,
        possible=(-2.0, 2.0),
        estimate=lambda results: over_pairs(results, excess_fall("CKA")),
    )


RESNET20 = (
    _decay("fig. 2"),
    Claim(
        paper="The Procrustes dissimilarities modulo G_ReLU and modulo rotations seem qualitatively quite similar.",
        source="D.3, fig. 9",
        statistic="correlation of the two over the layers",
        direction="above",
        threshold=ALIKE,
        reason="Where a correlation begins to be high is a matter of convention; the paper has no number.",
        interval=OVER_PAIRS,
        possible=(-1.0, 1.0),
        estimate=lambda results: over_pairs(results, _alike),
    ),
)


def _last_inside(results: Results) -> int:
    """The place among the layers of the last one inside of a block."""
    names = list(dict.fromkeys(str(row[0]) for row in results.tables["layers"].rows))
    return max(number for number, name in enumerate(names) if name.endswith("*"))


def _below_the_rest(results: Results) -> Callable[[Mapping[str, Sequence[float]]], float]:
    """By how much both kinds of CKA are lower at the last layer inside of a block than at any other layer."""
    at = _last_inside(results)

    def statistic(measured: Mapping[str, Sequence[float]]) -> float:
        kinds = [measured["G_ReLU CKA"], measured["orthogonal CKA"]]
        return min(min([*values[:at], *values[at + 1 :]]) - values[at] for values in kinds)

    return statistic


def _procrustes_there(results: Results) -> Callable[[Mapping[str, Sequence[float]]], float]:
    at = _last_inside(results)
    return lambda measured: measured["G_ReLU Procrustes"][at] - measured["orthogonal Procrustes"][at]


RESNET18 = (
    _decay("D.3, fig. 11"),
    Claim(
        paper="At the last layer inside of a block both kinds of CKA show extreme dissimilarity.",
        source="D.3, fig. 11",
        statistic="least CKA of the other layers less that of the last layer inside, the smaller of both kinds",
        direction="above",
        threshold=0.0,
        reason="Extreme is taken as: lower than at every other layer.",
        interval=OVER_PAIRS,
        possible=(-1.0, 1.0),
        estimate=lambda results: over_pairs(results, _below_the_rest(results)),
    ),
    Claim(
        paper="Except at that layer, where the Procrustes similarity modulo G_ReLU is high, both kinds are similar.",
        source="D.3, fig. 10",
        statistic="Procrustes at the last layer inside of a block, modulo G_ReLU less modulo rotations",
        direction="above",
        threshold=0.0,
        reason="High is taken as: higher than modulo rotations, although rotations can do more.",
        interval=OVER_PAIRS,
        possible=(-1.0, 1.0),
        estimate=lambda results: over_pairs(results, _procrustes_there(results)),
    ),
)
TEXT = """
From {first} to {last} CKA falls by {g_relu_cka_fall:.2f} modulo G_ReLU and by {orthogonal_cka_fall:.2f} modulo
rotations. It is not a plain decay with depth: inside of residual blocks (marked *) CKA is lower than outside (the
means differ by {g_relu_cka_in:.2f} modulo G_ReLU and by {orthogonal_cka_in:.2f} modulo rotations), and modulo G_ReLU
it rises again in the last stage.

Procrustes similarities show the same of the layers modulo both groups, and fall by about as much:
{g_relu_procrustes_fall:.2f} and {orthogonal_procrustes_fall:.2f}.

By CKA modulo G_ReLU only {g_relu_cka_matched} of {layers} layers have the same layer of the second network as the
most similar one, modulo rotations {orthogonal_cka_matched}.

Three ResNet20s of half the width ({accuracy:.1f} % test accuracy; there 89.9 %) were trained for 8 epochs on images
of 16 × 16 pixels, and all three pairs compared on 5,000 test images (there 32 pairs of 100 networks, all images).
Settings were chosen by the time they take, after one pair of shorter training had been seen.
"""


@study(
    name="godfrey-resnet20-similarity",
    title="Similarity of the layers of ResNet20s modulo G_ReLU and modulo rotations",
    reference="Godfrey et al. 2022, On the symmetries of deep learning models and their internal representations, "
    "fig. 2 (CKA), supplement D.3 with fig. 9 (Procrustes), D.7, D.8",
    paper="""
    Between ResNet20s of different seeds on CIFAR-10, CKA modulo G_ReLU decays much more with depth than CKA modulo
    rotations; dissimilarity is significant in later layers. The Procrustes dissimilarities modulo G_ReLU and modulo
    rotations seem qualitatively quite similar.
    """,
    presets=_presets(resnet20, {**RESNET20_PLACES, "small": Places()}),
    claims=RESNET20,
    text={"small": TEXT},
    tables={},
    figure=similarity_figure,
    caption=f"{CAPTION} Layers are numbered by convolutions, those inside of residual blocks marked *.",
)
def resnet20_similarity(config: Config, context: Context) -> Findings:
    """All measures at all layers, for pairs of the zoo."""
    return _findings(config, context)


@study(
    name="godfrey-resnet18-similarity",
    title="Similarity of the layers of ResNet18s modulo G_ReLU and modulo rotations",
    reference="Godfrey et al. 2022, On the symmetries of deep learning models and their internal representations, "
    "supplement D.3 with figs. 10 (Procrustes) and 11 (CKA), D.7, D.8",
    paper="""
    Between ResNet18s of different seeds on CIFAR-10, CKA modulo G_ReLU decays much more with depth than CKA modulo
    rotations, and at the last layer inside of a block both show extreme dissimilarity. The Procrustes dissimilarities
    modulo G_ReLU and modulo rotations are for the most part qualitatively similar, except at that layer, where the
    similarity modulo G_ReLU is high.
    """,
    presets=_presets(resnet18, RESNET18_PLACES),
    claims=RESNET18,
    text="",
    tables={},
    figure=similarity_figure,
    caption=f"{CAPTION} Layers are numbered by convolutions, those inside of residual blocks marked *.",
)
def resnet18_similarity(config: Config, context: Context) -> Findings:
    """As of ResNet20s; the last layer inside of a block by itself."""
    return _findings(config, context, _at_last_inside)


def _findings(
    config: Config, context: Context, extra: Callable[[Similarities], dict[str, Scalar]] = lambda _: {}
) -> Findings:
    pairs = chosen_pairs(context, config.zoo, config.pairs)
    networks = load_networks(context, config.zoo, (number for pair in pairs for number in pair))
    labels = config.places.labels()
    named = similarities(context, networks, tuple(labels), pairs, config.measuring)
    found = replace(named, layers=tuple(labels.values()))
    numbers = numbers_of(found) | {
        "accuracy": accuracy_of(context, networks),
        "first": f"layer {found.layers[0]}",
        "last": f"layer {found.layers[-1]}",
        **ends("correlation", correlation(found)),
    }
    for measure in MEASURES:
        numbers |= ends(f"{word(measure)}_in", inside_less_outside(found, measure))
    return Findings(numbers | extra(found), tables_of(found))


def correlation(found: Similarities) -> Interval:
    """Of the two Procrustes similarities over layers, in the mean of the pairs, with its interval over images."""
    values = [found.values[measure].mean(0) for measure in PROCRUSTES]
    draws = [found.draws[measure].mean(0).T for measure in PROCRUSTES]
    return percentiles(float(_correlation(*values)), _correlation(*draws))


def _correlation(one: Tensor, other: Tensor) -> Tensor:
    """Pearson's, over the last axis."""
    one, other = (part - part.mean(-1, keepdim=True) for part in (one, other))
    found: Tensor = torch.nn.functional.cosine_similarity(one, other, dim=-1)
    return found


def inside_less_outside(found: Similarities, measure: str) -> Interval:
    """The mean similarity of the layers inside of blocks, less that of the others, with its interval over images."""
    inside = torch.tensor([layer.endswith("*") for layer in found.layers])
    values, draws = found.values[measure].mean(0), found.draws[measure].mean(0)
    return percentiles(
        float(values[inside].mean() - values[~inside].mean()), draws[inside].mean(0) - draws[~inside].mean(0)
    )


def _at_last_inside(found: Similarities) -> dict[str, Scalar]:
    place = max(number for number, layer in enumerate(found.layers) if layer.endswith("*"))
    return {f"last_inside_{word(measure)}": found.mean(measure, place).value for measure in MEASURES}
