"""ResNet20 on CIFAR-100, where the paper's alignment does not reach a barrier of zero."""

import math
from dataclasses import replace

from coset.study import Claim, Context, Findings, study
from coset.study.estimates import least, ratio
from coset.study.images import GENERATED, Images
from coset_studies.rossi._claims import INTERVAL, NEAR_ZERO, SPLITS, barrier
from coset_studies.rossi._report import SHOWN, paths_figure
from coset_studies.rossi._residual import IMAGES, INFERENCE, MEASURE, NETWORK
from coset_studies.rossi.resnet import PairConfig, run_pair


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
    claims=[
        Claim(
            paper="The same method does not find a path without a barrier on CIFAR-100.",
            source="appendix D, fig. A15",
            statistic="aligned barrier as a share of the naive one, the smaller of train and test",
            direction="above",
            threshold=NEAR_ZERO,
            reason="The share below which the other studies of this paper count the aligned barrier as nearly none.",
            interval=INTERVAL,
            possible=(0.0, math.inf),
            estimate=lambda results: least(
                [
                    ratio(barrier(results, "pair", "aligned", split), barrier(results, "pair", "naive", split))
                    for split in SPLITS
                ]
            ),
        )
    ],
    text="""
    With the second posterior aligned to the first {pair_left:.0f} % of the train barrier are left:
    {pair_aligned_train:.3f} of {pair_naive_train:.3f} nats. The test error is {pair_test_error:.1f} % at the ends,
    {pair_naive_test_midpoint:.1f} % halfway and {pair_aligned_test_midpoint:.1f} % halfway with alignment.
    """,
    tables=SHOWN,
    figure=paths_figure,
    caption="Predictive log-likelihood on the geodesic between two posteriors, as they came and aligned.",
)
def run(config: PairConfig, context: Context) -> Findings:
    """The pair, aligned, and its barriers; the data must be there, as the loader says if they are not."""
    return run_pair(config, context)
