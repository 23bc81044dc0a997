"""ResNet20 on CIFAR-100, where the paper's alignment does not reach a barrier of zero."""

from dataclasses import replace

from coset.studies._rossi_pair import PairConfig, pair_findings

from coset.study import Context, Findings, study
from coset.study.images import GENERATED, Images
from coset_studies.rossi._report import NEAR_ZERO, SPLITS, Compared, left_of
from coset_studies.rossi._residual import IMAGES, INFERENCE, MEASURE, NETWORK


@study(
    name="rossi-cifar100",
    title="Barriers between posteriors of ResNet20 on CIFAR-100",
    reference="Rossi et al. 2023, fig. A15 and appendix D",
    paper="""
    On CIFAR-100 the same method does not find a path without a barrier, though the posteriors converge well. That does
    not rule out a better permutation.
    """,
    presets={
        "quick": PairConfig(Images(GENERATED, pool=4), NETWORK["quick"], INFERENCE["quick"], MEASURE["quick"]),
        "small": PairConfig(
            replace(IMAGES["small"], data="cifar100"), NETWORK["small"], INFERENCE["small"], MEASURE["small"]
        ),
        "paper": PairConfig(
            replace(IMAGES["paper"], data="cifar100"), NETWORK["paper"], INFERENCE["paper"], MEASURE["paper"]
        ),
    },
)
def run(config: PairConfig, context: Context) -> Findings:
    """The pair, aligned, and its barriers; the data must be there, as the loader says if they are not."""
    return pair_findings(config, context, judge)


def judge(one: Compared) -> str:
    """The paper's alignment fails here: a barrier is left."""
    left = max(left_of(one, split) for split in SPLITS)
    if left > NEAR_ZERO:
        return "As in the paper, alignment leaves a barrier."
    return "Unlike in the paper, alignment leaves nearly no barrier."
