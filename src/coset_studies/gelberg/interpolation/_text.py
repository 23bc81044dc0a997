"""What the study of mode interpolation says of its numbers."""

from collections.abc import Mapping, Sequence

from coset.study import Scalar


def outcome(numbers: Mapping[str, Scalar]) -> str:
    """The template of the outcome: which sentences hold follows from the numbers."""
    unit = "" if numbers["unit_sgd"] is None else _UNIT
    same = _SAME if numbers["same_in_all_dimensions"] else _NOT_SAME
    sgd = _NEAR_SGD if numbers["sgd_near"] else _NONE_SGD if numbers["sgd_slope"] is None else _FAR_SGD
    adam = _NEAR_ADAM if numbers["adam_near"] else _NONE_ADAM if numbers["adam_slope"] is None else _FAR_ADAM
    paragraphs = ([_EXACT], [_METHOD, unit, same], [sgd, adam], [_ESTIMATE], [_MEAN_FIELD])
    return "\n\n".join(" ".join(text.strip() for text in paragraph) for paragraph in paragraphs)


def caption(dimensions: Sequence[int], sizes: str) -> str:
    """What the panels show; ``sizes`` are those of the descents."""
    return (
        "(a-d) The mixture (grey) in one dimension, σ = 1, the Gaussian that exact descent ends at (blue), and the one "
        f"halfway (orange, where descent does not end there). (e-g) σ = 1: exact (line) and SGD ({sizes}; marks) in "
        f"{', '.join(str(dimension) for dimension in dimensions)} dimensions; orange: the fit halfway. Vertical lines: "
        "the exact thresholds of descent (dashed) and of the best fit (dotted). (h, i) The same for each σ, in one "
        "dimension: exact (line), SGD (circles) and Adam (crosses); triangles: the paper's α*. (j) A mean field whose "
        "u is spread over k coordinates, σ = 1: exact (lines) and SGD (marks), which near a threshold has not finished."
    )


_EXACT = """
Exactly, by quadrature: to replace x by x/σ leaves the KL as it is, so every threshold is a number times σ, and with a
full covariance only mean and variance along u matter, so it is the same in every dimension. Descent from N(0, σ²I) ends
halfway between the components for α below {descent:.4f}σ. There a second minimum appears, beside the component (the
Hessian becomes singular at {fold:.4f}σ), and holds the descent from then on. It is not yet the best: halfway is better
up to α = {switch:.4f}σ. There both have a KL of {switch_kl:.3f} nats, and the best Gaussian jumps: ‖μ‖/α from 0.5 to
{switch_interpolation:.4f}, the variance along u from {switch_variance_before:.2f}σ² to {switch_variance_after:.2f}σ².
What the paper measures is the first threshold, at which a descent is held, not the one at which the optimum changes.

Halfway never stops being a local minimum. Where the KL is stationary in Σ, its Hessian in μ is E[−∇² log p] = Σ⁻¹, by
Price's theorem; in the deviation s it is at least 2/s², since E[z² sech²(cz)] ≤ E[sech²(cz)]; and the mixed derivatives
vanish by symmetry. In numbers, the least eigenvalue of the Hessian (σ = 1) is at least {midpoint_stiffness:.2f}/α² from
α = 1 to {far:g}. Only its basin becomes narrow beside α: at α = {wide:g}σ a descent that starts with the same variance
returns to it from up to {basin:.1f}σ beside it.
"""
_METHOD = """
By the paper's method: {samples:,} fresh samples (there 5,000) for each of {steps:,} steps (3,000) of learning rate
{rate:g} (0.01); Σ = AAᵀ with a square A; one seed, its noise common to all α and σ.
"""
_UNIT = """
For σ = 1 stochastic gradient descent changes over at α = {unit_sgd:.2f} ± {half_spacing:.2f} (the error is half the
spacing of α). Further than {away:g} from the exact threshold its ‖μ‖/α differs from the exact limit by at most
{unit_gap:.3f}.
"""
_SAME = """
The thresholds in {dimensions} dimensions are the same, to the spacing of α.
"""
_NOT_SAME = """
The thresholds in {dimensions} dimensions are not all the same, though exactly they are.
"""
_NEAR_SGD = """
As in the paper, the threshold of stochastic gradient descent is about 5σ for every σ; the furthest from it is
{sgd_slope:.2f}σ, at σ = {sgd_sigma:g}.
"""
_FAR_SGD = """
Unlike in the paper, the threshold of stochastic gradient descent is not about 5σ for every σ: at σ = {sgd_sigma:g} it
is {sgd_slope:.2f}σ. The reason is time, not the objective: a rate of {rate:g} at σ acts as one of {rate:g}/σ² at σ = 1,
so that {steps:,} steps are a time of {sgd_time:g} there. Exact descent cut off after this time seems to change over at
{sgd_cut_off:.2f}σ.
"""
_NONE_SGD = """
At σ = {sgd_sigma:g} stochastic gradient descent showed no threshold.
"""
_NEAR_ADAM = """
With Adam in place of plain descent, at the same rate and in as many steps, it is about 5σ for every σ, as in the paper;
the furthest from it is {adam_slope:.2f}σ, at σ = {adam_sigma:g}.
"""
_FAR_ADAM = """
With Adam in place of plain descent it is not about 5σ for every σ: {adam_slope:.2f}σ at σ = {adam_sigma:g}.
"""
_NONE_ADAM = """
With Adam in place of plain descent no threshold was seen at σ = {adam_sigma:g}.
"""
_ESTIMATE = """
The {estimates:,} estimates of the KL of the fits by eq. 8, each from {samples:,} fresh samples, are off by at most
{estimate_gap:.3f} nats from the quadrature. Their samples are common to all α and σ, so that they err together.
"""
_MEAN_FIELD = """
Beyond the paper: a mean field interpolates less. It can widen along u only by widening every coordinate that u has a
part in. With u spread evenly over k coordinates halfway stops being a minimum at {mean_field_2:.2f}σ for k = 2,
{mean_field_10:.2f}σ for k = 10 and {mean_field_limit:.2f}σ for k → ∞, and from there on the end of the descent moves to
a component continuously, without a jump. With u along one axis a mean field does as the full covariance.
"""
