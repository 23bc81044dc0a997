"""CKA and Procrustes between ResNet18s of different seeds (Godfrey et al. 2022, figs. 10 and 11)."""

from coset.study import Context, Findings, Scalar, study
from coset_studies.godfrey._residual import RESNET18_PLACES, resnet18
from coset_studies.godfrey._similarity import MEASURES, Similarities
from coset_studies.godfrey._similarity_report import word
from coset_studies.godfrey.residual_similarity import SimilarityConfig, similarity_findings
from coset_studies.godfrey.resnet20_similarity import FIGURE_PAIRS, MEASURING

PRESETS = {
    preset: SimilarityConfig(resnet18(preset), RESNET18_PLACES[preset], FIGURE_PAIRS[preset], measuring)
    for preset, measuring in MEASURING.items()
}


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
    presets=PRESETS,
)
def run(config: SimilarityConfig, context: Context) -> Findings:
    """All measures at all layers, for pairs of the zoo."""
    return similarity_findings(config, PRESETS["paper"], context, judge_last)


def judge_last(found: Similarities) -> tuple[str, dict[str, Scalar]]:
    """Which measures are lowest at the last layer inside of a block; and how it compares there."""
    place = max(number for number, layer in enumerate(found.layers) if layer.endswith("*"))
    lowest, numbers = [], dict[str, Scalar]()
    for measure in MEASURES:
        here = found.mean(measure, place)
        rest = [found.mean(measure, number) for number in range(len(found.layers)) if number != place]
        numbers |= {f"last_inside_{word(measure)}": here.value}
        if here.high < min(one.low for one in rest):
            lowest.append(measure)
    named = (
        f"lower than at any other layer by {', '.join(lowest)}" if lowest else "by no measure lower than at all others"
    )
    values = ", ".join(f"{{last_inside_{word(measure)}:.3f}} by {measure}" for measure in MEASURES)
    return (
        f"At the last layer inside of a block similarity is {named} ({values}); in the paper it is extremely low by "
        f"both kinds of CKA.",
        numbers,
    )
