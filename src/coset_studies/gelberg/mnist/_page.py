"""The text of the study of symmetrized VI on MNIST."""

TEXT = """
**The fits are the same.** At equal seeds {uniform_equal} of {uniform_fits} fits with uniform permutations have the
means and deviations of MFVI to the bit; in the others no mean differs by more than {uniform_apart:.0e}. With
permutations that are drawn by the weights ({better_fits} fits) means differ by up to {better_apart:.2f} and accuracies
by up to {better_difference:.2f} points (root mean square {better_rms:.2f}).

**Why.** What averaging adds to the objective is −log[(1/K) Σ e^Δ] with Δ = log q(g⁻¹·ω) − log q(ω), and every Δ but
that of the identity is far below 0. With {width} units the best exchange of two of them has E[Δ] = {start_exchange:.0f}
nats at initialisation and {end_exchange:.0f} after training; a permutation at random moves nearly all units. What is
added is then the constant log K, and its gradient is 0 in float32 at every step that was looked at. Permutations drawn
by the weights find the exchanges that matter, but from step {guided_settled} on (of {steps_per_epoch} an epoch) no draw
that was looked at had any.

**What table 1 may show instead.** MFVI from the same initial weights on the same batches, with other noise in the
weights, differs from itself by {least_noise:.2f} to {largest_noise:.2f} points (root mean square over seeds, by width).
The published differences are {least_gain:.3f} to {largest_gain:.3f} points, at all {gains} widths less than twice what
other noise does to a mean of 10 runs. An implementation that draws permutations from the stream of the weights gets
other noise with every K. Here permutations have a stream of their own.

**Modes that overlap.** From an initial σ of 0.5 modes overlap (I(g; ω) begins at {start_information_0_5:.2f} log n!),
but MFVI reaches only {wide_0_5_plain:.1f} %, and with K = 20 its accuracy is the same.

**Settings.** As in the paper, but for {seeds} seeds (there 10). Prior N(0, {prior:g}²) and initial deviations of
{std:g} are not printed there; they were chosen for accuracies near its row of MFVI (at most {largest_gap:.2f} points
off, see the study mnist-posteriors).
"""

TABLES = {
    "accuracy": """
    Means over seeds, predictions by mean probabilities of 1,000 networks; ±: standard deviation over seeds. The better
    estimator sums over all permutations up to 10 units, and draws 20 by the weights beyond. Mean outputs: accuracy of
    E_q[f], exactly.
    """,
    "same-seed": """
    Against MFVI of the same seed: fits that are the same to the bit, the largest differences of posterior means and of
    log σ, the mean difference of accuracies with its standard deviation over seeds (of mean outputs for other noise),
    and the largest E_q[Δ] of an exchange of two units after training.
    """,
}
