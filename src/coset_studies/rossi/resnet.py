"""ResNet20 with FRN on CIFAR-10: the barrier between two mean-field posteriors, with and without alignment."""

from dataclasses import dataclass

from coset.study import Context, Findings, study
from coset.study.images import Images
from coset_studies.rossi._claims import barrier_claims
from coset_studies.rossi._pairs import Inference, Measure, Network
from coset_studies.rossi._report import SHOWN, Case, compare, numbers_of, paths_figure, tables_of
from coset_studies.rossi._residual import IMAGES, INFERENCE, MEASURE, NETWORK, chance, told

TEXT = (
    """
Between the posteriors of two seeds the predictive log-likelihood drops by {pair_naive_train:.3f} nats per train image.
Alignment lowers this to {pair_aligned_train:.3f}: {pair_left:.0f} % are left, where the paper has nearly none. Halfway
{pair_aligned_test_midpoint:.0f} % of the test images are wrong with alignment, {pair_test_error:.0f} % at the ends.

"""
    + chance("{pair_naive_test_midpoint:.0f}")
    + """
What this run can say is that alignment on weights brings two such networks little closer: the cosine of their weights
rises from {posteriors[pair][cosine before]:.2f} to {posteriors[pair][cosine aligned]:.2f}. The networks are a quarter
as wide as the paper's and trained for a hundredth of its epochs; it does not contradict the paper's figure.
"""
    + told("4")
)


@dataclass(frozen=True)
class PairConfig:
    """Two posteriors of ``network`` on ``images`` by ``inference``, and how their barriers are measured."""

    images: Images
    network: Network
    inference: Inference
    measure: Measure


@study(
    name="rossi-resnet",
    title="Barriers between posteriors of ResNet20",
    reference="Rossi et al. 2023, fig. 4 (ResNet20 with FRN on CIFAR-10), appendix C",
    paper="""
    Between two posteriors found by variational inference there is a barrier. After alignment it is nearly zero for
    ResNet20 on CIFAR-10, on train and test images; the barriers on test images are smaller.
    """,
    presets={
        preset: PairConfig(IMAGES[preset], network, INFERENCE[preset], MEASURE[preset])
        for preset, network in NETWORK.items()
    },
    claims=barrier_claims("pair", "", "section 5.1, fig. 4", "section 5.1, fig. 4"),
    text={"small": TEXT},
    tables=SHOWN,
    figure=paths_figure,
    caption="Predictive log-likelihood on the geodesic between two posteriors, as they came and aligned.",
)
def run(config: PairConfig, context: Context) -> Findings:
    """The pair, aligned, and its barriers."""
    return run_pair(config, context)


def run_pair(config: PairConfig, context: Context) -> Findings:
    """Both paths of one pair."""
    found = compare(context, {"pair": Case(config.images, config.network, config.inference)}, config.measure)
    return Findings(numbers_of(found), tables_of(found, "pair"))
