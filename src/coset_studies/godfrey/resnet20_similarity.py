"""CKA and Procrustes between ResNet20s of different seeds (Godfrey et al. 2022, figs. 2 and 9)."""

from coset.study import Context, Findings, study
from coset_studies.godfrey._residual import PAIRS, RESNET20_PLACES, Places, resnet20
from coset_studies.godfrey._setting import earlier_sentence
from coset_studies.godfrey._similarity import Measuring
from coset_studies.godfrey._zoo import Pairs
from coset_studies.godfrey.residual_similarity import SimilarityConfig, similarity_findings

MEASURING = {
    "quick": Measuring(None, 20, draws=50),
    "small": Measuring(5000, 100, draws=400),
    "paper": Measuring(None, 500),
}
PLACES = {**RESNET20_PLACES, "small": Places()}
FIGURE_PAIRS: dict[str, Pairs] = {**PAIRS, "paper": 32}
PRESETS = {
    preset: SimilarityConfig(resnet20(preset), PLACES[preset], FIGURE_PAIRS[preset], measuring)
    for preset, measuring in MEASURING.items()
}
EARLIER = earlier_sentence("the last one before had one pair of networks of 6 epochs, and 2,000 images")


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
    presets=PRESETS,
)
def run(config: SimilarityConfig, context: Context) -> Findings:
    """All measures at all layers, for pairs of the zoo."""
    earlier = EARLIER if config == PRESETS["small"] else ""
    return similarity_findings(config, PRESETS["paper"], context, earlier=earlier)
