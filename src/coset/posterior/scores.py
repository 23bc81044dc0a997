"""Scores of predictions: of probabilities of labels, and of distributions of real targets.

Each is a mean over the points, logarithms in nats; ``score`` gives all that a predictive allows.
"""

import math

import torch
from torch import Tensor

from coset._show.progress import progress
from coset._show.tables import text_table
from coset._values import Frozen
from coset.errors import InputError
from coset.posterior._calibration import BINS, check_labels, ece
from coset.posterior.prediction.results import ClassPredictive, Predictive, RealPredictive, TargetLikelihood

ENTRIES = 2**22
"""Pairs of components × targets held at once."""


def crps_values(means: Tensor, stds: Tensor, y: Tensor, *, show: bool | None = None) -> Tensor:
    """E|Y − y| − ½ E|Y − Y'|, Y, Y' ~ (1/M) Σ_j N(m_j, s_j²): ``means``, ``stds`` (M, …) and ``y`` (…) → (…).

    With A(m, s) = E|N(m, s²)|: (1/M) Σ_j A(y − m_j, s_j) − (1/2M²) Σ_jk A(m_j − m_k, √(s_j² + s_k²)). In the units of
    y, 0 at best; for a single point |m − y|. The M² pairs are taken for some targets at a time.
    """
    if not means.shape == stds.shape or means.shape[1:] != y.shape or len(means) == 0 or y.numel() == 0:
        raise InputError(
            f"means, stds and y have shapes {tuple(means.shape)}, {tuple(stds.shape)} and {tuple(y.shape)}; expected "
            f"(M, …) twice and (…), none of them empty"
        )
    count = len(means)
    flat = [part.double().reshape(count, -1) for part in (means, stds)]
    target = y.double().reshape(-1)
    first, second = torch.triu_indices(count, count, offset=1, device=means.device)
    step = max(1, ENTRIES // max(count, len(first)))
    values = torch.empty_like(target)
    with progress("CRPS", len(target), show=show) as bar:
        for start in range(0, len(target), step):
            m, s = (part[:, start : start + step] for part in flat)
            away = expected_absolute(target[start : start + step] - m, s).mean(0)
            # Of the M² ordered pairs, those of a component with itself give 2s/√π.
            apart = 2 * expected_absolute(m[first] - m[second], torch.hypot(s[first], s[second])).sum(0)
            apart = (apart + 2 / math.sqrt(math.pi) * s.sum(0)) / count**2
            values[start : start + step] = away - apart / 2
            bar.advance(m.shape[1])
    return values.reshape(y.shape)


def expected_absolute(mean: Tensor, std: Tensor) -> Tensor:
    """E|N(m, s²)| = m (2Φ(m/s) − 1) + 2 s φ(m/s); |m| where s = 0."""
    scaled = mean / (std * math.sqrt(2))
    smooth = mean * torch.erf(scaled) + math.sqrt(2 / math.pi) * std * torch.exp(-scaled.square())
    return torch.where(std > 0, smooth, mean.abs())


_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)

NAMES = {
    "nll": "negative log-likelihood",
    "nll_error": "  Monte Carlo error of it",
    "accuracy": "accuracy",
    "brier": "Brier score",
    "ece": "calibration error, equal width",
    "ece_mass": "calibration error, equal mass",
    "entropy": "entropy",
    "expected_entropy": "  of a single network",
    "mutual_information": "  mutual information",
    "rmse": "root mean square error",
    "crps": "CRPS",
    "std": "predictive deviation",
    "noise_std": "  of the noise",
    "model_std": "  of the networks",
}
"""Every score there is, and how it is called in print."""


class Scores(Frozen[str, float]):
    """Scores by name; printed as a table."""

    __slots__ = ()

    def __str__(self) -> str:
        rows = [[NAMES[name], f"{100 * x:.2f} %" if name == "accuracy" else f"{x:.4f}"] for name, x in self.items()]
        return text_table(["score", "mean"], rows, right=[1])


def score(
    predictive: Predictive,
    y: Tensor | None = None,
    *,
    bins: int = BINS,
    scale: float | Tensor = 1.0,
    show: bool | None = None,
) -> Scores:
    """All scores of a predictive on targets ``y``, by default those it was made with.

    Labels: nll, accuracy, brier, ece with ``bins`` of equal width and of equal mass, and means over the points of
    entropy, expected_entropy and mutual_information. Real targets: nll, rmse, crps, and root mean squares of std,
    noise_std and model_std; ``scale``: by what the targets were divided before (a number, or one for each), so that
    scores are in their original units. nll_error is there if the predictive was made with these targets; crps if it
    kept its mixture, and then nll for any targets.
    """
    if y is None:
        if predictive.likelihood is None:
            raise InputError("y is not given, and the predictive was made without targets; expected one of the two")
        y = predictive.likelihood.targets
    if isinstance(predictive, ClassPredictive):
        if not isinstance(scale, float | int) or scale != 1:
            raise InputError("scale is given for labels; expected it for real targets only")
        return _class_scores(predictive, _labels(y), bins)
    if isinstance(predictive, RealPredictive):
        return _real_scores(predictive, y, scale, show)
    raise InputError(f"predictive is a {type(predictive).__name__}; expected what predictive(…) returned")


def nll(log_probabilities: Tensor, y: Tensor) -> float:
    """−(1/N) Σ_i log p(y_i): ``log_probabilities`` (N, C), labels (N,)."""
    check_labels(log_probabilities.exp(), y)
    return -float(log_probabilities.double().gather(1, y.long().unsqueeze(1)).mean())


def accuracy(probabilities: Tensor, y: Tensor) -> float:
    """The share of points whose most probable label is theirs; of equal ones the first."""
    check_labels(probabilities, y)
    return float((probabilities.argmax(1) == y).double().mean())


def brier(probabilities: Tensor, y: Tensor) -> float:
    """(1/N) Σ_i Σ_c (p_ic − 1[y_i = c])², from 0 to 2 (Brier 1950); for two classes twice the one-sided form."""
    check_labels(probabilities, y)
    hits = torch.zeros_like(probabilities, dtype=torch.float64).scatter_(1, y.long().unsqueeze(1), 1.0)
    return float((probabilities.double() - hits).square().sum(1).mean())


def rmse(mean: Tensor, y: Tensor) -> float:
    """√ of the mean over points and targets of (mean − y)²; both (N, D)."""
    if mean.shape != y.shape or mean.numel() == 0:
        raise InputError(f"mean has shape {tuple(mean.shape)} and y {tuple(y.shape)}; expected the same, not empty")
    return float((mean.double() - y.double()).square().mean().sqrt())


def crps(means: Tensor, stds: Tensor, y: Tensor, *, show: bool | None = None) -> float:
    """The mean over points and targets of ``crps_values``: mixtures of M Gaussians (M, N, D), targets (N, D)."""
    return float(crps_values(means, stds, y, show=show).mean())


def mixture_nll(means: Tensor, stds: Tensor, y: Tensor) -> float:
    """−(1/N) Σ_i log (1/M) Σ_j Π_d N(y_id; m_jid, s_jid²): mixtures (M, N, D), targets (N, D)."""
    if means.shape != stds.shape or means.shape[1:] != y.shape or means.ndim != 3 or 0 in means.shape:
        raise InputError(
            f"means, stds and y have shapes {tuple(means.shape)}, {tuple(stds.shape)} and {tuple(y.shape)}; expected "
            f"(M, N, D) twice and (N, D), none of them empty"
        )
    means, stds = means.double(), stds.double()
    logs = (-0.5 * ((y.double() - means) / stds).square() - stds.log() - _HALF_LOG_2PI).sum(-1)
    return -float((logs.logsumexp(0) - math.log(len(means))).mean())


def _class_scores(predictive: ClassPredictive, y: Tensor, bins: int) -> Scores:
    probabilities = predictive.probabilities
    y = y.to(probabilities.device) if isinstance(y, Tensor) else y
    found = {"nll": nll(predictive.log_probabilities, y)}
    if (known := _known(predictive, y)) is not None:
        found["nll_error"] = known.mean_error
    return Scores(
        {
            **found,
            "accuracy": accuracy(probabilities, y),
            "brier": brier(probabilities, y),
            "ece": ece(probabilities, y, bins),
            "ece_mass": ece(probabilities, y, bins, "mass"),
            "entropy": float(predictive.entropy.mean()),
            "expected_entropy": float(predictive.expected_entropy.mean()),
            "mutual_information": float(predictive.mutual_information.mean()),
        }
    )


def _real_scores(predictive: RealPredictive, y: Tensor, scale: float | Tensor, show: bool | None) -> Scores:
    mean = predictive.mean
    target = _real_targets(y, mean)
    units = _units(scale, mean)
    # A density of y·scale is that of y divided by the scale.
    shift = float(units.log().sum())
    known, means, stds = _known(predictive, target), predictive.member_means, predictive.member_stds
    found: dict[str, float] = {}
    if known is not None:
        found |= {"nll": shift - known.mean, "nll_error": known.mean_error}
    elif means is not None and stds is not None:
        found["nll"] = shift + mixture_nll(means, stds, target)
    found["rmse"] = rmse(mean * units, target * units)
    if means is not None and stds is not None:
        found["crps"] = crps(means * units, stds * units, target * units, show=show)
    for name in ("std", "noise_std", "model_std"):
        found[name] = float((getattr(predictive, name) * units).square().mean().sqrt())
    return Scores(found)


def _known(predictive: Predictive, y: Tensor) -> TargetLikelihood | None:
    """The log-likelihood of these targets, if the predictive was made with them."""
    likelihood = predictive.likelihood
    return likelihood if likelihood is not None and torch.equal(likelihood.targets, y) else None


def _labels(y: Tensor) -> Tensor:
    """Labels (N,), from those or from (N, 1), and from 0 and 1 as real numbers: as the likelihoods take them."""
    if isinstance(y, Tensor) and y.ndim == 2 and y.shape[1] == 1:
        y = y.squeeze(1)
    whole = (
        isinstance(y, Tensor) and not y.is_complex() and (not y.is_floating_point() or bool((y * (1 - y) == 0).all()))
    )
    return y.long() if whole else y


def _real_targets(y: Tensor, mean: Tensor) -> Tensor:
    if isinstance(y, Tensor) and y.ndim == 1 and mean.shape[1] == 1:
        y = y.unsqueeze(1)
    if not isinstance(y, Tensor) or y.shape != mean.shape or not bool(y.isfinite().all()):
        found = tuple(y.shape) if isinstance(y, Tensor) else type(y).__name__
        raise InputError(f"y is {found}; expected finite targets {tuple(mean.shape)}, as predicted")
    return y.to(mean)


def _units(scale: float | Tensor, mean: Tensor) -> Tensor:
    """One scale for each target, (D,)."""
    units = torch.as_tensor(scale, dtype=mean.dtype, device=mean.device)
    if units.ndim > 1 or units.numel() not in (1, mean.shape[1]) or not bool(((units > 0) & units.isfinite()).all()):
        raise InputError(f"scale is {scale!r}; expected a number > 0, or one for each of the {mean.shape[1]} targets")
    return units.expand(mean.shape[1])
