"""The text of the study of nearest equivalent modes, and the captions that depend on its settings."""

from coset_studies.gelberg.modes._found import PRIOR, START_STD
from coset_studies.gelberg.modes._posteriors import Sampling

TEXT = """
**Networks.** The nearest equivalent mode is at {trained_first_1:.2f}‖ω‖ for {width_first_1} units and at
{trained_last_1:.3f}‖ω‖ for {width_last_1}; over the widths the distance falls like n^{slope_trained_1:.2f} after
training and like n^({slope_start_1:.2f}) before. Two of n units are a small part of ω, which is enough to explain it:
the distance is never larger than 2/√(n − 1). The bound of theorem 3.1 does not: with one hidden layer between these
inputs and outputs it is below the trivial 2‖ω‖ from about 10^{digits:.0f} units on.

Close is relative to ‖ω‖. Halfway to the nearest mode, where two units are replaced by their mean, the training loss
rises by {rise_first_1:.2g} nats at {width_first_1} units and by {rise_last_1:.1g} at {width_last_1}.

**Posteriors.** Whether VI interpolates depends on the distance in deviations of the posterior. Between two equal
Gaussians a mean field does below {mean_field:.2f}σ and a full covariance below {full:.2f}σ (see the study
gelberg-interpolation). With the paper's settings (“constant”) the likeliest exchange of two units is at
{sigmas_60000_constant_5:.0f}σ for 5 units, {sigmas_60000_constant_20:.0f}σ for 20 and {sigmas_60000_constant_100:.1f}σ
for 100: only there is it within reach.

The answer at 20 units depends on the settings: “annealed” inference has the higher ELBO ({elbo_60000_annealed_20:.2f}
against {elbo_60000_constant_20:.2f} nats per point), its likeliest exchange is at {sigmas_60000_annealed_20:.1f}σ, and
halfway the ELBO is {gain_60000_annealed_20:.0f} nats higher. None of these fits has converged: at 100 units the best
ELBO (“longer”) still rose by {late_60000_longer_100:.3f} nats per point in the last quarter of its epochs. With fewer
training points modes are closer, in deviations, at every width.

Where the ELBO is higher halfway, the expected loss changes by less than 0.003 nats per point: interpolating two units
does not harm the fit there.
"""

NETWORK_CAPTION = "Distances and bounds over ‖ω‖, ± over seeds. Loss halfway: its rise in training at (ω + g·ω)/2."
TABLES = {"networks": NETWORK_CAPTION, "posteriors": ""}
"""What the page shows; the caption of the second names the settings of a run."""


def posterior_caption(how: Sampling) -> str:
    """What the columns of the table of posteriors are."""
    return f"""One hidden layer, means over seeds; prior N(0, {PRIOR:g}²), deviations of {START_STD:g} at the start,
    Adam. ELBO: per training point, of {how.draws} draws on at most {how.images:,} training images; late rise: of the
    ELBO as inference saw it, in the last quarter of its epochs. ‖g·μ − μ‖/‖μ‖: the nearest mode of the mean μ. The rest
    is of the exchange with the largest Δ = log q(g·μ) − log q(μ) = −½(distance, σ)². All σ are q's own: they are what
    these settings have made of them, and know no correlations between weights. I(g; ω): exact permanents."""
