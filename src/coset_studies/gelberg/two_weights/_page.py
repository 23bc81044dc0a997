"""The text of the study of the two-weight network."""

TEXT = """
The paper prints neither the variances of noise and prior nor where training starts. One setting is shown in full: noise
{noise:g}, prior {prior:g}, first deviations {start_std:g}, first means from N(0, {start_mean:g}²), {seeds} seeds,
{epochs} epochs. It was chosen after the scan below, because it is near table 2 and has most of the paper's orders.

**After 10 epochs** runs of one method differ far more than methods do, as in the paper's table 2, whose deviations over
seeds (0.15 to 0.22) are larger than its means. The reason is that 10 epochs of Adam move a weight by about {travel:g}:
runs that start farther off have not arrived. At α = 0.2 MFVI has {information_mfvi_3:.0%} of the log 2 nats that
averaging can add, which means that it lies on one mode, not between them.

**At the optima** of each objective the paper's picture is there. MFVI lies between the modes at every α. SGM (K = 2) is
on one mode at α = 0.2 and beats MFVI clearly; at α = 0.05 both find the same q. K = 2 draws one permutation a step, and
half of the time that is the identity: its objective is L_VI + I/2, halfway from MFVI to the exact symmetrized ELBO,
which does better still. That L^G of SGM is not lower at optima follows from what is maximised; that its MSE is lower
does not.

**The scan** has {settings} settings of noise, prior and start, {scan_seeds} seeds each. In {settings_all} of them SGM
has the lower MSE, the higher L^G and the lower L_VI at every α; in {settings_clear} each by more than two standard
errors of the differences between runs of one seed. Its axes were narrowed to where agreement was best, so that these
counts are no rates. Nearest to table 2 (its eight MSEs within a factor of e^{nearest_errors:.2f}) are noise
{nearest_errors_noise:g}, prior {nearest_errors_prior:g}, first deviations {nearest_errors_std:g} and first means
{nearest_errors_mean:g}. At the optima, of {pairs} pairs of noise and prior, the MSE of SGM is lower at every α in
{pairs_error} and higher at some α in {pairs_worse}.

**What table 3 is normalised by** is not the number of points. The gain L^G − L_VI is at most log 2 nats,
{largest_gain_by_points:.4f} per point, and up to {printed_gain:.3f} is printed; what divides nats there is at most
{largest_divisor:.0f}.

Checks: ELBOs (closed form and quadrature) and log p(Y) less the KL (both on the grid) agree to {gap:.0e} nats. The
paper's estimate of L^G is within {sampling_gap:.2f} nats of the exact one in every run.
"""

TABLES = {
    "errors": "Table 2: test MSE of the average output, mean and deviation over seeds.",
    "bounds": "Table 3, in nats, without the constant of the likelihood, means over seeds; the paper's are normalized.",
    "nearest": "The settings nearest to table 2, how near they are to table 3, and at how many α the orders hold.",
}
