"""What the study of nearest equivalent modes says of its numbers: templates, and which sentences hold."""

import itertools
from collections.abc import Sequence

from coset_studies.gelberg.modes._found import (
    PRIOR,
    START_STD,
    Case,
    Networks,
    Posteriors,
    answer,
    compared,
    error,
    exponents,
    mean,
    of_depth,
    of_runs,
    shortfall,
    thresholds,
)
from coset_studies.gelberg.modes._posteriors import Sampling

DEPTHS = {1: "one hidden layer", 2: "two hidden layers"}
HARM = 0.01
"""A difference of the expected loss or of the ELBO, in nats per point, that counts as a worse fit."""
ANSWERS = {"higher": "higher", "lower": "lower", "neither": "the same within its error"}
NETWORK_CAPTION = "Distances and bounds over ‖ω‖, ± over seeds. Loss halfway: its rise in training at (ω + g·ω)/2."


def figure_caption() -> str:
    """What both panels show."""
    low, high = thresholds()
    return (
        "(a) Distance to the nearest equivalent mode, mean and standard deviation over seeds, and the bounds for one "
        "hidden layer; grey: 2, which no distance exceeds. (b) The likeliest exchange of two units under mean-field "
        "posteriors, in their deviations, by training points and settings of the inference (rate and schedule, epochs; "
        f"bars: over seeds where there are several). Shaded: from {low:.2f}σ to {high:.2f}σ, the thresholds below "
        "which a mean field and a full covariance fit two equal Gaussians best from halfway."
    )


def posterior_caption(how: Sampling) -> str:
    """What the columns of the table of posteriors are."""
    return f"""One hidden layer, means over seeds; prior N(0, {PRIOR:g}²), deviations of {START_STD:g} at the start,
    Adam. ELBO: per training point, of {how.draws} draws on at most {how.images:,} training images; late rise: of the
    ELBO as inference saw it, in the last quarter of its epochs. ‖g·μ − μ‖/‖μ‖: the nearest mode of the mean μ. The rest
    is of the exchange with the largest Δ = log q(g·μ) − log q(μ) = −½(distance, σ)². All σ are q's own: they are what
    these settings have made of them, and know no correlations between weights. I(g; ω): exact permanents."""


def theorem(networks: Networks) -> str:
    """Whether the bounds hold, whether distances fall, whether the theorem says so, and what lies between modes."""
    every = [one for found in networks.values() for one in found]
    holds = all(max(one["start"], one["trained"]) <= min(one["pair"], one["volume"]) for one in every)
    falls = all(slope < 0 for depth in DEPTHS for slope in exponents(of_depth(networks, depth), "trained"))
    empty = all(one["volume"] > 2 for one in every)
    return f"""{"As" if holds and falls else "Unlike what"} the theorem says, the nearest equivalent mode of wide
    networks is {"close" if falls else "not closer"}: with one hidden layer it is at {{trained_first_1:.2f}}‖ω‖ for
    {{width_first_1}} units and at {{trained_last_1:.3f}}‖ω‖ for {{width_last_1}}, a decay like
    n^({{slope_trained_1:.2f}} ± {{spread_trained_1:.2f}}) after training, n^({{slope_start_1:.2f}} ±
    {{spread_start_1:.2f}}) before; with two (the best exchange, an upper bound) n^({{slope_trained_2:.2f}} ±
    {{spread_trained_2:.2f}}). {"All distances lie below both bounds." if holds else "Some distance exceeds a bound."}

    {"But the theorem does not tell: its bound" if empty else "The theorem's bound"} 2D/log|G| is at least
    {{least_volume:.0f}} here, and 2 always holds. With one hidden layer between these inputs and outputs it says
    something from about 10^{{digits:.0f}} units on. That two of n units are a small part of ω is enough: 2/√(n − 1) is
    at most a factor of {{slack_1:.2f}} too large at initialisation, where units are nearly orthogonal.

    Close is relative to ‖ω‖. Halfway to the nearest mode, where each of two units is their mean, the training loss
    rises by {{rise_first_1:.2g}} nats at {{width_first_1}} units and by {{rise_last_1:.1g}} at {{width_last_1}}, with
    two hidden layers by {{rise_first_2:.2g}} and {{rise_last_2:.1g}} ({{width_last_2}} units)."""


def judge(posteriors: Posteriors) -> str:
    """How far apart modes are in deviations, what VI would gain and lose halfway, and what hangs on its settings."""
    parts = [_distances(posteriors), _halfway(posteriors)]
    for points in dict.fromkeys(points for points, _ in compared(posteriors)):
        groups = {width: cases for (own, width), cases in compared(posteriors).items() if own == points}
        parts += [_dependence(posteriors, points, groups), _convergence(posteriors, groups)]
    return "\n\n".join(parts)


def _reached(posteriors: Posteriors) -> list[Case]:
    return [case for case, found in posteriors.items() if mean(found, "sigmas") < thresholds()[1]]


def _distances(posteriors: Posteriors) -> str:
    """The distance of every case, and where it is below the threshold of a full covariance."""
    text = """Whether VI interpolates depends on the distance in deviations of the posterior: between two equal
    Gaussians it does below {mean_field:.2f}σ (a mean field) to {full:.2f}σ (a full covariance)."""
    reached = _reached(posteriors)
    for (points, run), cases in of_runs(posteriors).items():
        listed = ", ".join(f"{case.field('sigmas', '.3g')}σ ({case.width} units)" for case in cases)
        near = [str(case.width) for case in cases if case in reached]
        where = f"within reach at {', '.join(near)}" if near else "never within reach"
        origin = ", as the paper has" if run.of_paper else ""
        text += f""" With {points:,} training points and “{run.name}” inference ({run.told}{origin}) the likeliest
        exchange is at {listed}: {where}."""
    return text


def _halfway(posteriors: Posteriors) -> str:
    """Where modes are within reach: whether the ELBO is higher between them, and whether the fit suffers there."""
    reached = _reached(posteriors)
    if not reached:
        return "Within reach is none: there is nothing to interpolate."
    gaining = [answer(posteriors[case]) == "higher" for case in reached]
    where = "everywhere there" if all(gaining) else "in some of these cases" if any(gaining) else "nowhere"
    ends = [of(reached, key=lambda case: mean(posteriors[case], "gain")) for of in (min, max)]
    gains = " to ".join(f"{_gain(posteriors, case)} ({_named(case)})" for case in dict.fromkeys(ends))
    worst = max(reached, key=lambda case: mean(posteriors[case], "rise"))
    fit = "suffers" if mean(posteriors[worst], "rise") > HARM else "hardly suffers"
    return f"""Where it is within reach, the mean field halfway, with the moments of both modes, has an ELBO that
    differs by {gains}: VI would gain by interpolating {where}. Its expected loss is higher by at most
    {worst.field("rise", ".1g")} nats per point: the fit {fit}."""


def _dependence(posteriors: Posteriors, points: int, groups: dict[int, list[Case]]) -> str:
    """Whether the answer is another with other settings, at which widths, and what it is where all agree."""
    answers = {width: {answer(posteriors[case]) for case in cases} for width, cases in groups.items()}
    differing = [width for width in groups if {"higher", "lower"} <= answers[width]]
    verdict = f"depends on the settings at {_listed(differing)} units" if differing else "never turns with the settings"
    details = [
        f"at {width} units by " + ", ".join(f"{_gain(posteriors, case)} (“{case.run.name}”)" for case in cases)
        for width, cases in groups.items()
    ]
    agreed = [f"{ANSWERS[next(iter(found))]} at {width}" for width, found in answers.items() if len(found) == 1]
    undecided = [width for width, found in answers.items() if len(found) > 1 and width not in differing]
    return (
        f"With {points:,} training points the answer {verdict}: halfway the ELBO differs {'; '.join(details)}."
        + (f" With all settings it is {_listed(agreed)} units." if agreed else "")
        + (f" At {_listed(undecided)} units some draws leave it open." if undecided else "")
    )


def _convergence(posteriors: Posteriors, groups: dict[int, list[Case]]) -> str:
    """ELBOs of the settings, which fall short of the highest, whether that still rises, and whether σ follow it."""
    details = [
        ", ".join(f"{case.field('elbo', '.3f')} (“{case.run.name}”)" for case in cases) + f" at {width} units"
        for width, cases in groups.items()
    ]
    text = f"How far inference has come its ELBO tells, per point {'; '.join(details)}."
    every = [case for cases in groups.values() for case in cases]
    short: list[str] = []
    for run in dict.fromkeys(case.run for case in every):
        worst = max((case for case in every if case.run == run), key=lambda case: shortfall(posteriors, case))
        if shortfall(posteriors, worst) > HARM:
            short.append(f"“{run.name}” by up to {worst.field('short', '.2f')} nats ({worst.width} units)")
    text += f" Short of the highest {'is' if len(short) == 1 else 'are'} {_listed(short)}." if short else (
        f" All settings agree within {HARM:g} nats."
    )  # fmt: skip
    best = [min(cases, key=lambda case: shortfall(posteriors, case)) for cases in groups.values()]
    last = max(best, key=lambda case: mean(posteriors[case], "late"))
    rising = mean(posteriors[last], "late") > HARM
    text += f""" The highest itself rose by {"" if rising else "only "}{last.field("late", ".2g")} nats per point at
    {last.width} units in the last quarter of its epochs (“{last.run.name}”){": not even it has converged" * rising}."""
    following = [width for width, cases in groups.items() if _nearer(posteriors, cases)]
    if len(following) == len(groups):
        return f"{text} The higher the ELBO, the nearer the likeliest exchange, at all widths."
    where = f"only at {_listed(following)} units" if following else "at no width"
    return f"{text} That the exchange is the nearer the higher the ELBO, holds {where}."


def _nearer(posteriors: Posteriors, cases: Sequence[Case]) -> bool:
    """Whether the distance falls as the ELBO rises, from settings to settings."""
    ordered = sorted(cases, key=lambda case: mean(posteriors[case], "elbo"))
    sigmas = [mean(posteriors[case], "sigmas") for case in ordered]
    return all(before > after for before, after in itertools.pairwise(sigmas))


def _gain(posteriors: Posteriors, case: Case) -> str:
    """The ELBO gained halfway and its error; large ones without decimals."""
    large = abs(mean(posteriors[case], "gain")) >= 100 or error(posteriors[case]) >= 9.5
    formats = ("+,.0f", ",.0f") if large else ("+.2g", ".1g")
    return " ± ".join(map(case.field, ("gain", "error"), formats)) + " nats"


def _named(case: Case) -> str:
    return f"{case.points:,} points, {case.width} units, “{case.run.name}”"


def _listed(items: Sequence[object]) -> str:
    """“a, b and c”."""
    words = [str(item) for item in items]
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
