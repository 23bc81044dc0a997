"""The text of the study of the two-weight network: a template of numbers, with sentences that follow from them."""

from collections.abc import Mapping, Sequence

from torch import Tensor

from coset.study import Scalar
from coset_studies.gelberg.two_weights._report import Outcomes, optimum_values, run_values
from coset_studies.gelberg.two_weights._scan import ALPHAS, Orders, orders


def series(name: str, form: str) -> str:
    """The template of a number at every α."""
    return ", ".join(f"{{{name}_{index}:{form}}}" for index in range(len(ALPHAS)))


def where(flags: Sequence[bool]) -> str:
    """In words, at which α something holds."""
    chosen = [f"{alpha:g}" for alpha, flag in zip(ALPHAS, flags, strict=True) if flag]
    if len(chosen) in (0, len(ALPHAS)):
        return "at every α" if chosen else "at no α"
    return f"at α = {' and '.join([', '.join(chosen[:-1]), chosen[-1]] if len(chosen) > 1 else chosen)} only"


def outcome(values: Mapping[str, Scalar], found: Outcomes, drawn: float) -> str:
    """The template of the text; which sentences it has follows from the numbers. ``drawn``: the α of the figure."""
    kept, ended = orders(run_values(found)), orders(optimum_values(found))
    return "\n\n".join(
        [_runs_text(kept), _normalisation_text(values), _optima_text(ended, values, drawn), _scan_text(values)]
    )


def _agrees(flags: Tensor) -> str:
    return "as in the paper" if bool(flags.all()) else "unlike the paper, where it is so at every α"


def _runs_text(kept: Orders) -> str:
    error, total, plain = ([bool(flag) for flag in flags] for flags in (kept.error, kept.total, kept.plain))
    return f"""
    One setting in full, chosen after the scan below because it is near table 2 and has most of the orderings:
    variances of noise {{noise:g}} and prior {{prior:g}}, first deviations {{start_std:g}}, first means from N(0,
    {{start_mean:g}}²), {{seeds}} seeds, {{epochs}} epochs. At α = 0.05, 0.1, 0.15, 0.2 the test MSE of the average
    of the networks drawn is {series("error_mfvi", ".3f")} for MFVI (deviations over seeds {
        series("spread_mfvi", ".2f")
    }) and {series("error_sgm", ".3f")} for SGM (K = 2) ({series("spread_sgm", ".2f")}); with the exact ELBO
    of q^G it is {series("error_exact", ".3f")}. SGM (K = 2) is better {where(error)}, {_agrees(kept.error)}.
    KL(q^G‖posterior) is {series("kl_symmetrized_mfvi", ".2f")} nats for MFVI and {
        series("kl_symmetrized_sgm", ".2f")
    } for SGM (K = 2) in the mean (medians {series("median_kl_symmetrized_mfvi", ".2f")} and
    {series("median_kl_symmetrized_sgm", ".2f")}), so that L^G of SGM is higher {where(total)},
    {_agrees(kept.total)}. KL(q‖posterior) is {series("kl_mfvi", ".2f")} and {series("kl_sgm", ".2f")}, so that
    L_VI of SGM is lower {where(plain)}, {_agrees(kept.plain)}.

    Of the log 2 nats that averaging can add, L^G − L_VI = I(g; w), MFVI has {series("information_mfvi", ".0%")}: none
    where q is symmetric itself, between the modes, and all where it is on one of them. L_VI and L^G (closed form and
    quadrature), log p(Y) and KL (both on the grid) satisfy L = log p(Y) − KL to {{gap:.0e}} nats, and the paper's
    estimate of L^G is within {{sampling_gap:.2f}} nats of it in every run. K = 2 draws one permutation a step, and half
    of the time that is the identity, which adds nothing: its objective is L_VI + I/2, halfway from MFVI to the
    symmetrized ELBO.
    """


def _normalisation_text(values: Mapping[str, Scalar]) -> str:
    def too(name: str) -> str:
        return ", too large" if _number(values, f"nearest_{name}_divisor") > _number(values, "largest_divisor") else ""

    nearer = _number(values, "nearest_kl") < _number(values, "nearest_nats")
    better = f"The {'second' if nearer else 'first'} fits better; neither is said in the paper."
    return f"""
    What table 3 normalizes by is not N: I ≤ log 2, so that per data point L^G − L_VI is at most
    {{largest_gain_by_points:.4f}}, but up to {{printed_gain:.3f}} is printed. Whatever divides nats there is at
    most {{largest_divisor:.0f}}, rounding allowed for. Over the scan, c·L with the best c comes within
    {{nearest_nats:.2f}} of the deviation of the 16 printed numbers (a constant: 1) with 1/c =
    {{nearest_nats_divisor:.1f}}{too("nats")}, if L is in nats without the constant of the Gaussian likelihood; and
    within {{nearest_kl:.2f}} with 1/c = {{nearest_kl_divisor:.1f}}{too("kl")}, if L is counted from log p(Y), so
    that it is −KL to the posterior (noise {{nearest_kl_noise:g}}, prior {{nearest_kl_prior:g}}, first deviations
    {{nearest_kl_std:g}}, first means {{nearest_kl_mean:g}}). {better}
    """


def _number(values: Mapping[str, Scalar], name: str) -> float:
    value = values[name]
    assert isinstance(value, int | float), "a number of the findings"
    return float(value)


def _place(share: float) -> str:
    """Where q is, by the share of log 2 that I(g; w) has, and where the paper's fig. 4b has it."""
    return "between the modes, as in fig. 4b" if share < 0.5 else "on the side of one mode, unlike fig. 4b"


def _optima_text(ended: Orders, values: Mapping[str, Scalar], drawn: float) -> str:
    error, total = ([bool(flag) for flag in flags] for flags in (ended.error, ended.total))
    same = "" if all(total) else " (elsewhere both find the same q)"
    run_share = _number(values, "drawn_information")
    ended_share = _number(values, f"optimum_information_mfvi_{ALPHAS.index(drawn)}")
    return f"""
    At the optimum of each objective, at the same setting, MFVI has {series("optimum_information_mfvi", ".0%")} of
    the log 2, SGM (K = 2) {series("optimum_information_sgm", ".0%")} and the exact one
    {series("optimum_information_exact", ".0%")}; KL(q^G‖posterior) is {
        series("optimum_kl_symmetrized_mfvi", ".3f")
    } for MFVI, {series("optimum_kl_symmetrized_sgm", ".3f")} for K = 2 and
    {series("optimum_kl_symmetrized_exact", ".3f")} for the exact one. At α = {{drawn_alpha:g}}, which the figure
    shows, MFVI at its optimum is {_place(ended_share)}; the first run has {{drawn_information:.0%}} of the log 2
    after {{epochs}} epochs and is {_place(run_share)}. L^G of SGM (K = 2) at the optima is higher
    {where(total)}{same}, and its MSE, {series("optimum_error_sgm", ".3f")} against {
        series("optimum_error_mfvi", ".3f")
    }, is lower {where(error)}. That at optima L_VI of SGM is not higher and L^G not lower follows from what
    is maximised; that its MSE is lower does not.
    """


def _scan_text(values: Mapping[str, Scalar]) -> str:
    ordered = (
        """, in {settings_clear} each by more than two standard errors of the differences between runs of one seed
        (nearest to table 2 among the {settings_all}, a factor of e^{nearest_ordered:.2f}: noise
        {nearest_ordered_noise:g}, prior {nearest_ordered_prior:g}, first deviations {nearest_ordered_std:g}, first
        means {nearest_ordered_mean:g})"""
        if values["settings_all"]
        else ""
    )
    return f"""
    The scan: {{settings}} settings of noise, prior and start, each the mean of {{scan_seeds}} seeds. Its axes
    were narrowed in scans before to where agreement was best, so that counts of settings are no rates. SGM (K = 2)
    has the lower MSE at every α in {{settings_error}}, the higher L^G in {{settings_total}}, the lower L_VI in
    {{settings_plain}}, both ELBOs as in the paper in {{settings_bounds}}, and all of it in
    {{settings_all}}{ordered}. Nearest to table 2 (its eight MSEs within a factor of e^{{nearest_errors:.2f}} in the
    root mean square) are noise {{nearest_errors_noise:g}}, prior {{nearest_errors_prior:g}}, first deviations
    {{nearest_errors_std:g}} and first means {{nearest_errors_mean:g}}. MFVI has {series("nearest_error", ".3f")}
    there, and {series("settled_error", ".3f")} if the means begin at N(0, {{smallest_mean:g}}²): {{epochs}} epochs
    of Adam move a weight by about {{travel:g}}, and from farther off runs have not arrived. At the optima, of
    {{pairs}} pairs of noise and prior, the MSE of SGM is lower at every α in {{pairs_error}}, higher at some α in
    {{pairs_worse}}, and all orderings hold at every α in {{pairs_all}}.
    """


def caption(alpha: float, epochs: int, noise: float, prior: float) -> str:
    """Of the figure."""
    return (
        f"Densities over (w₁, w₂) at α = {alpha:g}, noise {noise:g}, prior {prior:g}; crosses: (α, −α) and (−α, α). "
        f"(a) The posterior on the grid. (b, c) The first run after {epochs} epochs: q of MFVI, and q^G of SGM, K = 2. "
        "(f, g) The same at the optimum. (d) KL(q^G‖posterior): each run (dots), their median (discs), and optima "
        "(dashed). (e, h) The scan: how many of the paper's 12 orderings (three, at four α) hold, for the best of the "
        "starts and at the optima."
    )
