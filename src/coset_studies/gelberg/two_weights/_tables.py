"""The tables of the study of the two-weight network."""

from collections.abc import Mapping, Sequence

import torch

from coset.study import Scalar, Table
from coset_studies.gelberg.two_weights._fits import Measured, Sampled
from coset_studies.gelberg.two_weights._network import Moments
from coset_studies.gelberg.two_weights._report import Outcomes, setting
from coset_studies.gelberg.two_weights._scan import (
    ALPHAS,
    PUBLISHED_ERROR,
    PUBLISHED_PLAIN,
    PUBLISHED_SPREAD,
    PUBLISHED_TOTAL,
    distance_to_bounds,
    distance_to_errors,
    orders,
)
from coset_studies.gelberg.two_weights._training import METHODS

NEAREST = 8
"""So many settings are in the table of those nearest to the paper."""


def tables(found: Outcomes) -> dict[str, Table]:
    """All tables."""
    return {
        "errors": _errors(found),
        "bounds": _bounds(found),
        "divergences": _divergences(found),
        "scan": _scan(found),
        "nearest": _nearest(found),
    }


def _each(found: Outcomes) -> list[tuple[str, int, float, Sampled, Measured, Measured]]:
    return [
        (method, index, alpha, found.draws[method, alpha], found.runs[method, alpha], found.optima[method, alpha])
        for method in METHODS
        for index, alpha in enumerate(ALPHAS)
    ]


def _published(table: Mapping[str, Sequence[float]], method: str, index: int) -> float | None:
    return table[method][index] if method in table else None


def _errors(found: Outcomes) -> Table:
    rows: list[Sequence[Scalar]] = [
        (method, alpha, float(draws.error.mean()), float(draws.error.std()), float(run.error.mean()),
         _published(PUBLISHED_ERROR, method, index), _published(PUBLISHED_SPREAD, method, index),
         float(end.error))
        for method, index, alpha, draws, run, end in _each(found)
    ]  # fmt: skip
    test = Moments.of(found.task.test)
    for alpha, grid in found.grids.items():
        up, down = grid.slopes()
        error = float(test.positive * (up - alpha) ** 2 + test.negative * (down - alpha) ** 2) / test.count
        rows.append(("the posterior itself", alpha, None, None, None, None, None, error))
    columns = ("method", "α", "MSE", "deviation", "MSE of all networks", "paper", "paper's deviation", "at the optimum")
    return Table(columns, rows, "Table 2: test MSE of the average output, mean and deviation over seeds.")


def _bounds(found: Outcomes) -> Table:
    rows = [
        (method, alpha, float(run.plain.mean()), float(run.total.mean()), float(draws.plain.mean()),
         float(draws.total.mean()), _published(PUBLISHED_PLAIN, method, index),
         _published(PUBLISHED_TOTAL, method, index), float(end.plain), float(end.total))
        for method, index, alpha, draws, run, end in _each(found)
    ]  # fmt: skip
    columns = ("method", "α", "L_VI", "L^G", "sampled L_VI", "sampled L^K", "paper L_VI", "paper L^G",
               "optimal L_VI", "optimal L^G")  # fmt: skip
    text = "Table 3, in nats, without the constant of the likelihood, means over seeds; the paper's are normalized."
    return Table(columns, rows, text)


def _divergences(found: Outcomes) -> Table:
    rows = [
        (method, alpha, float(run.divergence.mean()), float(run.divergence.std()),
         float(run.symmetrized_divergence.mean()), float(run.symmetrized_divergence.std()), float(end.divergence),
         float(end.symmetrized_divergence), found.grids[alpha].log_evidence)
        for method, _, alpha, _, run, end in _each(found)
    ]  # fmt: skip
    columns = ("method", "α", "KL(q‖p)", "deviation", "KL(q^G‖p)", "deviation of it", "optimal KL(q‖p)",
               "optimal KL(q^G‖p)", "log p(Y)")  # fmt: skip
    return Table(columns, rows, "Beyond the paper: how far q and q^G are from the posterior, in nats, on the grid.")


def _scan(found: Outcomes) -> Table:
    kept, ended, rows = orders(found.scan), orders(found.converged), []
    count = len(found.axes.stds) * len(found.axes.means)
    for i, noise in enumerate(found.axes.noises):
        for j, prior in enumerate(found.axes.priors):
            starts = [
                int(flags[i, j].sum())
                for flags in (kept.error.all(-1), kept.total.all(-1), kept.plain.all(-1), kept.all)
            ]
            optima = [int(flags[i, j].sum()) for flags in (ended.error, ended.total, ended.plain)]
            rows.append((noise, prior, *starts, *optima))
    columns = ("noise", "prior", "MSE", "L^G", "L_VI", "all three", "MSE, optima", "L^G, optima", "L_VI, optima")
    text = (
        f"Of {count} starts, how many have the paper's order of SGM (K = 2) and MFVI at every α; and at how many of "
        f"the {len(ALPHAS)} α the optima have it. Equal values are not in order."
    )
    return Table(columns, rows, text)


def _nearest(found: Outcomes) -> Table:
    errors, kept = distance_to_errors(found.scan), orders(found.scan)
    plain, divisor = distance_to_bounds(found.scan, evidence=False)
    posterior, other = distance_to_bounds(found.scan, evidence=True)
    rows = []
    for flat in errors.flatten().argsort()[:NEAREST]:
        at = torch.unravel_index(flat, errors.shape)
        held = [int(flags[at].sum()) for flags in (kept.error, kept.total, kept.plain)]
        fits = [float(part[at]) for part in (errors, plain, divisor, posterior, other)]
        rows.append((*setting(found.axes, at), *fits, *held))
    columns = ("noise", "prior", "first deviation", "first mean", "to table 2", "to table 3, nats", "1/c",
               "to table 3, −KL", "1/c of it", "MSE", "L^G", "L_VI")  # fmt: skip
    text = "The settings nearest to table 2, how near they are to table 3, and at how many α the orders hold."
    return Table(columns, rows, text)
