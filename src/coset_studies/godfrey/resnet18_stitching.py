"""Stitching ResNet18s inside and outside of residual blocks (Godfrey et al. 2022, fig. 7)."""

from coset.study import Context, Findings, Scalar, study
from coset_studies.godfrey._contrasts import average, contrast, minus, points, sign, told
from coset_studies.godfrey._residual import PAIRS, RESNET18_PLACES, Places, resnet18
from coset_studies.godfrey._stitching import Penalties
from coset_studies.godfrey.residual_stitching import StitchingConfig, stitching_findings
from coset_studies.godfrey.resnet20_stitching import TRAINING

AT_RANDOM = {"quick": ("3",), "small": ("5", "9", "13"), "paper": ()}
PRESETS = {
    preset: StitchingConfig(resnet18(preset), RESNET18_PLACES[preset], PAIRS[preset], training, AT_RANDOM[preset])
    for preset, training in TRAINING.items()
}


@study(
    name="godfrey-resnet18-stitching",
    title="Stitching ResNet18s inside and outside of residual blocks",
    reference="Godfrey et al. 2022, On the symmetries of deep learning models and their internal representations, "
    "supplement D.3, fig. 7",
    paper="""
    ResNet18s, wider than ResNet20s (92.9 ± 0.2 % on CIFAR-10), are stitched at every layer. Layers inside of residual
    blocks incur higher penalties, even with full 1×1 convolutions. Penalties are generally lower than for ResNet20,
    except at the last layer inside of a block, where the stitched networks do no better than chance; the authors have
    no satisfactory explanation for it.
    """,
    presets=PRESETS,
)
def run(config: StitchingConfig, context: Context) -> Findings:
    """All families at all layers, for pairs of the zoo."""
    return stitching_findings(config, PRESETS["paper"], context, judge_last)


def judge_last(found: Penalties, places: Places) -> tuple[str, dict[str, Scalar]]:
    """Whether full maps cost more at the last layer inside of a block than at the others inside; and its numbers."""
    last, others = places.inside[-1], places.inside[:-1]
    one = contrast(found, minus(average([last], "full"), average(others, "full")))
    spoken = {
        1: "As in the paper, full maps cost more at the last layer inside of a block than at the others inside",
        0: "Full maps are not told apart at the last layer inside of a block and at the others inside; there "
        "they cost more",
        -1: "Unlike in the paper, full maps cost less at the last layer inside of a block than at the others inside",
    }[sign(one)]
    return f"{spoken}: by {told('last_inside')} points.", points("last_inside", one)
