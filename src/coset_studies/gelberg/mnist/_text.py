"""What the study of symmetrized VI on MNIST says of its numbers."""

import math
from collections.abc import Mapping

from coset.study import Scalar
from coset_studies.gelberg.mnist._fits import BETTER, PLAIN
from coset_studies.gelberg.mnist._report import Found, key_of, place

NEGLIGIBLE = 1e-12
"""Weights that differ by less are the same in float32 beside any that count."""


FAR = 2.0
"""Points between an accuracy and the published one that rule out its setting."""


def outcome(numbers: Mapping[str, Scalar], found: Found) -> str:
    """The template of the outcome: which sentences hold follows from the numbers."""
    paragraphs = [
        [_SETTING, _PUBLISHED if found.published else _OTHER_DATA],
        [_equal(numbers), _better(numbers)],
        [_WHY, _gradients(numbers)],
        [_NOISE, _meaning(numbers) if found.published else ""],
        [
            _WIDE,
            *(_wide(numbers, found, std) for std in found.courses if std != found.training.std),
            _after(numbers, found),
        ],
    ]
    return "\n\n".join(" ".join(text.strip() for text in each if text) for each in paragraphs)


def caption(found: Found) -> str:
    """What the panels show."""
    return (
        "(a) Test accuracy by hidden units: means over seeds and standard deviations; crosses: the paper. (b) Accuracy "
        "less that of MFVI, in points: of the same seed (dots), and the paper's (crosses, with its ±); grey: MFVI with "
        f"the same initial weights and batches, but other noise. (c) MFVI with {found.width} units: how far the best "
        "exchange of two units is below the identity, −E[Δ] in nats, against steps, for some initial σ. (d) The "
        "largest entry of the gradient of H^K − H(q), K = 20, beside 1 of the entropy: uniform permutations (dashed) "
        "and guided ones (lines); what is below 1e-16 is drawn there."
    )


def _is_same(numbers: Mapping[str, Scalar]) -> bool:
    """Whether symmetrized fits are those of MFVI in all that matters."""
    distance = numbers["uniform_apart"]
    assert isinstance(distance, float)
    return distance < NEGLIGIBLE and numbers["uniform_difference"] == 0


def _equal(numbers: Mapping[str, Scalar]) -> str:
    if numbers["uniform_equal"] == numbers["uniform_fits"]:
        return _ALL_EQUAL
    return _ALMOST_EQUAL if _is_same(numbers) else _SOME_EQUAL


def _better(numbers: Mapping[str, Scalar]) -> str:
    if numbers["better_equal"] == numbers["better_fits"]:
        return _BETTER_EQUAL
    own, noise = numbers["better_rms"], numbers["noise_rms"]
    assert isinstance(own, float)
    assert isinstance(noise, float)
    return f"{_BETTER_APART.strip()} {(_BETTER_WITHIN if own <= noise else _BETTER_BEYOND).strip()}"


def _gradients(numbers: Mapping[str, Scalar]) -> str:
    uniform = _UNIFORM_ZERO if numbers["largest_uniform"] == 0 else _UNIFORM_SOME
    step = numbers["guided_settled"]
    guided = _GUIDED_NEVER if step is None else _GUIDED_NONE if step == 0 else _GUIDED_UNTIL
    saturated = "" if numbers["saturated"] is None else _SATURATED
    return f"{uniform.strip()} {guided.strip()} {saturated.strip()}"


def _meaning(numbers: Mapping[str, Scalar]) -> str:
    spread = _SPREAD_OF_DRAWS if numbers["spread_of_draws"] else _SPREAD_OF_SEEDS
    within = _ALL_WITHIN if numbers["gains_within_noise"] == numbers["gains"] else _SOME_WITHIN
    same = _NOT_FROM if _is_same(numbers) else ""
    return " ".join(text.strip() for text in (_GAINS, spread, within, same))


def _wide(numbers: Mapping[str, Scalar], found: Found, std: float) -> str:
    at, uniform, better = place(std), key_of(found.uniform[-1]), key_of(BETTER)
    same = numbers[f"wide_{at}_{uniform}_apart"] == 0
    seeds, reached = len(found.wide[0].outputs), numbers[f"wide_{at}_plain"]
    assert isinstance(reached, float)
    published = found.published.get(PLAIN, {}).get(found.width)
    is_far = published is not None and abs(reached - published[0]) > FAR
    far = f"That is not the paper's setting, where MFVI reaches {published[0]:.2f} %." if published and is_far else ""
    differs = f"differs by {{wide_{at}_{uniform}_difference:+.2f}} points"
    return f"""From σ = {std:g} I(g; ω) begins at {{start_information_{at}:.2f}} log n! and ends at
    {{end_information_{at}:.2f}} log n!; MFVI reaches {{wide_{at}_plain:.2f}} %. {{last}}
    {"is still MFVI to the bit" if same else differs}; the better estimator differs by
    {{wide_{at}_{better}_difference:+.2f}} points ({seeds} {"seed" if seeds == 1 else "seeds"}). {far}"""


def _after(numbers: Mapping[str, Scalar], found: Found) -> str:
    # A mean over n seeds has 1/√n of the noise of one.
    largest = max(abs(float(sum(each.differences))) / math.sqrt(len(each.differences)) for each in found.wide)
    noise = numbers["largest_noise"]
    assert isinstance(noise, float)
    return _WIDE_WITHIN if largest < 2 * noise else _WIDE_BEYOND


_SETTING = """
Inference as in the paper, {epochs} epochs. Prior N(0, {prior:g}²) and deviations that begin at {std:g} were chosen for
accuracies near its row of MFVI (see the study mnist-posteriors for the scan, and the table scan for more). There are
{seeds} seeds of MFVI and {last}, {few} of the others, of which the better estimator has {better_widths} units;
{samples:,} networks predict (there {paper_samples:,}). A seed fixes initial weights, order of the data and noise;
permutations have a stream of their own.
"""
_PUBLISHED = "On the mean MFVI is at most {largest_gap:.2f} points from the published row."
_OTHER_DATA = "On these data there is nothing published to compare with."
_ALL_EQUAL = """
At equal seeds the symmetrized fits are those of MFVI, to the bit: all {uniform_fits} of {uniform_fits} fits with
uniform permutations, as in the paper, have the same means and deviations (largest difference with {last}:
{last_apart:g}), and so the same accuracies.
"""
_ALMOST_EQUAL = """
At equal seeds the symmetrized fits are those of MFVI: of {uniform_fits} with uniform permutations, as in the paper,
{uniform_equal} have the same means and deviations to the bit, and in the others no mean differs by more than
{uniform_apart:.0e} ({last}: {last_apart:.0e}). All of them have the accuracy of MFVI of their seed.
"""
_SOME_EQUAL = """
At equal seeds {uniform_equal} of {uniform_fits} symmetrized fits with uniform permutations, as in the paper, are those
of MFVI to the bit; the largest difference of a mean is {uniform_apart:.2g} ({last}: {last_apart:.2g}).
"""
_BETTER_EQUAL = "So are all {better_fits} fits with the better estimator."
_BETTER_APART = """
With the better estimator {better_equal} of {better_fits} are; the others end up to {better_apart:.2g} away in some
mean, with accuracies that differ by up to {better_difference:.2f} points (root mean square {better_rms:.2f}).
"""
_BETTER_WITHIN = "Other noise does more ({noise_rms:.2f}, see below)."
_BETTER_BEYOND = "Other noise does less ({noise_rms:.2f}, see below)."
_WHY = """
The reason: what symmetrization adds is −log[(1/K) Σ e^Δ], Δ = log q(g⁻¹·ω) − log q(ω), and every Δ but that of the
identity is far below 0. With {width} units the best exchange of two of them has E[Δ] = {start_exchange:.0f} nats at
initialisation and {end_exchange:.0f} after training (over all widths and seeds between {least_end_exchange:.0f} and
{largest_end_exchange:.0f}; from σ = {narrow_std:g} it ends at {narrow_exchange:.0f}); a permutation at random moves
nearly all units. The term is then the constant log K, and I(g; ω) = log n!.
"""
_UNIFORM_ZERO = """
With 20 uniform permutations its gradient is exactly 0 in float32 at every step looked at, from the first.
"""
_UNIFORM_SOME = """
With 20 uniform permutations the largest entry of its gradient is {largest_uniform:.1g}, where the entropy's is 1.
"""
_GUIDED_NEVER = "With guided ones it does not vanish: {largest_guided:.2g} at most."
_GUIDED_NONE = "With guided ones, too, nothing is above rounding."
_GUIDED_UNTIL = """
With guided ones, which find the exchanges that matter, some draws have entries of up to {largest_guided:.2g} beside the
entropy's 1 (Δ of up to {nearest:.1f} nats), but none of those looked at from step {guided_settled} on, of
{steps_per_epoch} an epoch.
"""
_SATURATED = """
I(g; ω) is at least {least_information:.5f} log n! throughout, and log n! to nine digits from step {saturated} on.
"""
_NOISE = """
What does move accuracies: MFVI from the same initial weights on the same batches, with other noise in the weights,
differs from itself by {least_noise:.2f} to {largest_noise:.2f} points (root mean square over seeds, by width). The
standard deviation over training seeds is {least_seed_std:.2f} to {largest_seed_std:.2f} points, that over sets of
{samples:,} test draws of one posterior {draws_std:.3f}.
"""
_GAINS = "The published differences between {last} and MFVI are {least_gain:.3f} to {largest_gain:.3f} points."
_SPREAD_OF_DRAWS = """
The ± printed beside them, {least_spread:.3f} to {largest_spread:.3f}, is smaller than the spread of training seeds at
every width here, and of the size of that of test draws: it cannot tell runs of training apart.
"""
_SPREAD_OF_SEEDS = "The ± printed beside them is {least_spread:.3f} to {largest_spread:.3f}."
_ALL_WITHIN = "At all {gains} widths the difference is less than twice what other noise does to a mean of 10 runs."
_SOME_WITHIN = """
At {gains_within_noise} of {gains} widths the difference is less than twice what other noise does to a mean of 10 runs.
"""
_NOT_FROM = """
In this setting table 1 cannot show an effect of symmetrization, for there is none to show: its objective has the
gradient of MFVI's. An implementation that draws permutations from the stream of the weights gets other noise with every
K, and differences of this kind.
"""
_WIDE = "Deviations that begin wide let modes overlap."
_WIDE_WITHIN = "None of these mean differences exceeds twice what other noise does in the table above."
_WIDE_BEYOND = "Some of these mean differences exceed twice what other noise does in the table above."
