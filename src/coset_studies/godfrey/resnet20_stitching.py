"""Stitching ResNet20s inside and outside of residual blocks (Godfrey et al. 2022, fig. 6)."""

from coset.study import Context, Findings, study
from coset_studies.godfrey._residual import PAIRS, RESNET20_PLACES, resnet20
from coset_studies.godfrey._setting import earlier_sentence
from coset_studies.godfrey._stitching import Training
from coset_studies.godfrey._zoo import Pairs
from coset_studies.godfrey.residual_stitching import StitchingConfig, stitching_findings

TRAINING = {
    "quick": Training(images=100, held_out=100, epochs=1, batch_size=50, learning_rate=1e-2),
    "small": Training(images=2500, held_out=5000, epochs=4, batch_size=50, learning_rate=3e-2),
    "paper": Training(images=None, held_out=None, start="random"),
}
AT_RANDOM = {"quick": ("3",), "small": ("7", "13", "19"), "paper": ()}
"""Behind which layers G_ReLU also begins at random."""
STITCHED: dict[str, Pairs] = {**PAIRS, "small": ((0, 1), (1, 2), (2, 0), (1, 0), (2, 1), (0, 2))}
PRESETS = {
    preset: StitchingConfig(resnet20(preset), RESNET20_PLACES[preset], STITCHED[preset], training, AT_RANDOM[preset])
    for preset, training in TRAINING.items()
}
EARLIER = earlier_sentence(
    "the last one before had two networks of 6 epochs, stitched in both directions by maps that trained on "
    "1,500 images for 3 epochs and were judged on 2,000; then the first three of these pairs were seen, before the "
    "other directions were added. With those three G_ReLU was not told apart from rank 1 inside of blocks "
    "(-2.4 [-5.3, 0.5]), nor rank 1 inside from outside, and rank 1 was beaten at 3 of 7 layers outside; the six are "
    "three pairs in both directions, which is less than six of their own"
)


@study(
    name="godfrey-resnet20-stitching",
    title="Stitching ResNet20s inside and outside of residual blocks",
    reference="Godfrey et al. 2022, On the symmetries of deep learning models and their internal representations, "
    "supplement D.3, fig. 6; why it fails inside of blocks: E.9.2",
    paper="""
    ResNet20s of different seeds (89.9 ± 0.2 % on CIFAR-10) are stitched at every layer. Layers inside of residual
    blocks incur higher penalties, even with full 1×1 convolutions. Outside of blocks G_ReLU consistently beats rank 1,
    and sometimes rank 2; inside it is the worst of all families. There the shortcut carries the units of the network
    below past the map, so that even the right map is not enough.
    """,
    presets=PRESETS,
)
def run(config: StitchingConfig, context: Context) -> Findings:
    """All families at all layers, for pairs of the zoo."""
    earlier = EARLIER if config == PRESETS["small"] else ""
    return stitching_findings(config, PRESETS["paper"], context, earlier=earlier)
