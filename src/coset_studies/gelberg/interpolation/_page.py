"""The text of the study of mode interpolation."""

TEXT = """
The two exact thresholds are not the same. Up to α = {descent:.4f}σ, descent that starts at one component ends halfway
between the two. There a second minimum appears beside the component and holds the descent from then on. But halfway
stays the better fit up to α = {switch:.4f}σ. At that distance both have a KL of {switch_kl:.3f} nats, and the best
Gaussian jumps: its mean from 0.5 α to {switch_interpolation:.4f} α, its variance along u from
{switch_variance_before:.2f}σ² to {switch_variance_after:.2f}σ². What the paper measures is the first threshold.

Both are numbers times σ, for to replace x by x/σ leaves the KL as it is; and with a full covariance they are the same
in every dimension, for only mean and variance along u differ from those of a component.

Why stochastic descent stops earlier for σ = {sgd_sigma:g}: a rate of {rate:g} at σ acts as {rate:g}/σ² at σ = 1, so
that {steps:,} steps are not enough there. Exact descent that is stopped after the same time changes over at
{sgd_cut_off:.2f}σ, stochastic descent at {sgd_slope:.2f}σ. Adam, at the same rate and in as many steps, is at
{adam_slope:.2f}σ where it is farthest from 5.

Halfway never stops being a local minimum: where the KL is stationary in Σ its Hessian in μ is E[−∇² log p] = Σ⁻¹
(Price's theorem), in the deviation s it is at least 2/s², and the mixed derivatives vanish by symmetry. At α =
{wide:g}σ a descent that starts with the same variance returns to it from up to {basin:.1f}σ beside it.

A mean field interpolates less, for it can widen along u only by widening every coordinate that u has a part in. With u
spread evenly over k coordinates halfway stops being a minimum at {mean_field_2:.2f}σ (k = 2), {mean_field_10:.2f}σ (k =
10) and {mean_field_limit:.2f}σ (k → ∞). With u along one axis a mean field does as the full covariance.

Different from the paper: {samples:,} samples a step (there 5,000); one seed, its noise common to all α and σ; Σ = AAᵀ
with a square A. The paper does not say how it parametrises Σ, nor which dimension its figures show.
"""

TABLES = {
    "thresholds": """
    α at which fits change over from halfway to a component. SGD's time: exact descent that is stopped after as much
    time as the steps of SGD are. SGD, Adam: ± 0.0625σ, half the spacing of α.
    """,
    "mean-field": "Mean fields, exactly: α/σ. With one coordinate halfway is a minimum at every distance.",
}
