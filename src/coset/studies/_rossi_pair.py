"""One pair of residual networks, naive against aligned: the body of the studies of figs. 4 and A15."""

from collections.abc import Callable
from dataclasses import dataclass

from coset.studies.rossi.pairs import Inference, Measure, Network
from coset.studies.rossi.report import (
    Case,
    Compared,
    barrier_table,
    compare,
    ends_table,
    numbers_of,
    paths_figure,
    setting,
    settled,
    verdict,
)
from coset.study import Context, Findings
from coset.study.images import Images


@dataclass(frozen=True)
class PairConfig:
    """Two posteriors of ``network`` on ``images`` by ``inference``, and how their barriers are measured."""

    images: Images
    network: Network
    inference: Inference
    measure: Measure


OUTCOME = """
Between the posteriors of two seeds the predictive log-likelihood drops by {pair_naive_train:.3f} nats per train point
and {pair_naive_test:.3f} per test point. With the second posterior aligned to the first it drops by
{pair_aligned_train:.3f} and {pair_aligned_test:.3f}: {pair_left:.0f} % of the train barrier are left. The test error is
{pair_test_error:.1f} % at the ends, {pair_naive_test_midpoint:.1f} % halfway and {pair_aligned_test_midpoint:.1f} %
halfway with alignment.
"""


def pair_findings(config: PairConfig, context: Context, judge: Callable[[Compared], str] = verdict) -> Findings:
    """Both paths of the pair; ``judge`` says whether what came out agrees with the paper."""
    case = Case(config.images, config.network, config.inference)
    found = compare(context, {"pair": case}, config.measure)
    one = found["pair"]
    smaller = setting(config.images, config.inference, [config.network], config.measure)
    outcome = f"{OUTCOME}\n{judge(one)}\n\n{smaller} {settled(found)}"
    return Findings(
        numbers=numbers_of(found),
        tables={"barriers": barrier_table(found, "pair"), "posteriors": ends_table(found, "pair")},
        outcome=outcome,
        figure=lambda: paths_figure(found),
        caption="Predictive log-likelihood on the geodesic between two posteriors, as they came and aligned.",
    )
