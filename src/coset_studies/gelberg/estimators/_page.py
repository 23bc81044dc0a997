"""The text of the study of estimators."""

TEXT = """
Each estimate of I(g; ω) = H(q^G) − H(q) and of its gradient takes {budget:g} s of one core. Every estimator is used
with the number K of permutations that serves it best: with fewer permutations it draws more weights.

**Bias, not variance.** K uniform permutations give a lower bound that cannot exceed log K. Where I is larger, the error
is this gap, and no number of draws helps.

**What helps.** Permutations that are drawn row by row along a Sinkhorn-scaled matrix of the weights ω ("sequential")
find the few that count: from 10 units on the error of I is about {worst_information:.0f} times smaller where they help
least. For the gradient the noise of ω is the larger part. The gradient of the bound is taken along ω and in the
densities; the second part is 0 in expectation and pure noise. The path gradient leaves it out, and with it the factor
is about {worst_gradient:.0f} where it is least. It was added after an earlier run without it had not reached the factor
10 for gradients.

The exact sum (permanents) costs more time the more units there are: its factor for the gradient falls from
{comparison[digits, 10][exact-path, gradient]:.0f} at 10 units to {comparison[digits, 20][exact-path, gradient]:.1f} at
20 (digits). The control variate of transpositions and the paper's f(g) do not help here.

**Permutations alone.** At the same draws of ω, against the exact sums at these, from 10 units on the errors of
sequential draws are about {same_worst_information:.0f} times (I) and {same_worst_gradient:.0f} times (gradient) smaller
than those of uniform ones at equal time, where they help least.

With 5 units there are only 120 permutations, and uniform ones try them all.
"""

TABLES = {"comparison": ""}
