"""The posteriors of table 1 of Gelberg et al. 2024 from the store, their scores, and how far two are apart."""

import hashlib
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from coset.data import Dataset
from coset.distribution import MeanField
from coset.distribution.density import vector
from coset.posterior import Fit, predictive, score
from coset.posterior.scores import accuracy
from coset.study import Context
from coset.study.posteriors import inferred, network_of
from coset.symmetry import Symmetry
from coset_studies.gelberg.mnist._course import Moment, Training, course, permutations_of

SCHEMA = 1
"""Of what is stored here: to be raised where the same configuration comes to give other numbers."""
PLAIN, BETTER, OTHER_NOISE = "MFVI", "better estimator", "MFVI, other noise"
PIXELS = {"flatten": True, "normalize": False}
SCORES = ("accuracy", "nll", "ece")


def settings_of(name: str, width: int, exact_units: int) -> tuple[str, dict[str, Any]]:
    """The method of inference behind a row of the table, and what is its own among the settings.

    ``BETTER`` sums over all permutations of at most ``exact_units`` units, and guides 20 draws beyond. ``OTHER_NOISE``
    has the initial weights and the batches of MFVI, but every draw of the weights is a new one, none mirrors another.
    """
    if name == PLAIN:
        return "mean-field", {}
    if name == OTHER_NOISE:
        return "mean-field", {"antithetic": False}
    if name == BETTER:
        exact = width <= exact_units
        return "symmetrized", {"K": 1, "proposal": "exact"} if exact else {"K": 20, "proposal": "sequential"}
    return "symmetrized", {"K": int(name.removeprefix("K = ")), "proposal": "uniform"}


def options_of(dataset: Dataset, width: int) -> dict[str, Any]:
    """Those of the network with one hidden layer."""
    return {"in_features": math.prod(dataset.shape), "widths": [width], "out_features": dataset.outputs}


def posterior_of(
    context: Context, data: str, training: Training, name: str, width: int, seed: int, exact_units: int
) -> Fit[MeanField]:
    """The posterior of one row, width and seed; all rows of a seed share initial weights, batches and noise."""
    method, own = settings_of(name, width, exact_units)
    return inferred(
        context,
        method=method,
        model="mlp",
        data=data,
        seed=seed,
        settings=training.settings | own,
        options=options_of(context.data(data, **PIXELS), width),
        data_options=PIXELS,
    )


def scores_of(
    context: Context, data: str, q: MeanField, width: int, samples: int, repeat: int = 0
) -> Mapping[str, float]:
    """Accuracy (%), NLL and ECE of the mean probabilities of ``samples`` networks; equal posteriors are scored once."""
    dataset = context.data(data, **PIXELS)
    options = options_of(dataset, width)
    config = {
        "kind": "scores of a predictive",
        "schema": SCHEMA,
        "posterior": digest(q),
        "options": options,
        "fingerprint": dataset.fingerprint,
        "samples": samples,
        "repeat": repeat,
    }

    def make() -> Mapping[str, Tensor]:
        model = network_of("mlp", options, seed=0).to(context.device)
        x, y = dataset.test.x.to(context.device), dataset.test.y.to(context.device)
        found = score(predictive(model, q, x, samples=samples, seed=repeat, show=context.show), y)
        return {"scores": torch.tensor([found[name] for name in SCORES], dtype=torch.float64)}

    values = context.store.get_or_make(config, make).params["scores"].tolist()
    return dict(zip(SCORES, values, strict=True)) | {"accuracy": 100 * values[0]}


def course_of(
    context: Context, data: str, training: Training, width: int, steps: tuple[int, ...], draws: int
) -> list[Moment]:
    """The course of MFVI from the first seed, made or found in the store."""
    dataset = context.data(data, **PIXELS)
    options = options_of(dataset, width)
    config = {
        "kind": "course of mean-field VI",
        "schema": SCHEMA,
        "options": options,
        "fingerprint": dataset.fingerprint,
        "settings": {name: value if isinstance(value, int | float) else repr(value) for name, value in
                     training.settings.items()},
        "steps": steps,
        "draws": draws,
    }  # fmt: skip

    def make() -> tuple[Mapping[str, Tensor], Mapping[str, object]]:
        model = network_of("mlp", options, seed=0).to(context.device)
        found = course(model, dataset.train, training, steps, draws=draws, seed=0, show=context.show)
        return {}, {"moments": [vars(moment) for moment in found]}

    return [Moment(**moment) for moment in context.store.get_or_make(config, make).info["moments"]]


def mean_outputs(q: MeanField, x: Tensor) -> Tensor:
    """E_q[f(x)] (N, C) of a network with one hidden layer of ReLU, exactly: what an average of outputs tends to.

    Under a mean field the unit's input h is N(m, s²) and independent of what follows; E[max(h, 0)] = mΦ(m/s) + sφ(m/s).
    """
    mean, std = ({name: tensor.double() for name, tensor in part.items()} for part in (q.mean, q.std))
    x = x.double()
    m = x @ mean["layers.0.weight"].mT + mean["layers.0.bias"]
    s = (x.square() @ std["layers.0.weight"].square().mT + std["layers.0.bias"].square()).sqrt()
    density = (-0.5 * (m / s).square()).exp() / math.sqrt(2 * math.pi)
    hidden: Tensor = m * torch.special.ndtr(m / s) + s * density
    return hidden @ mean["layers.1.weight"].mT + mean["layers.1.bias"]


def outputs_accuracy(context: Context, data: str, q: MeanField) -> float:
    """Test accuracy of E_q[f], %."""
    test = context.data(data, **PIXELS).test
    return 100 * accuracy(torch.softmax(mean_outputs(q, test.x), 1), test.y)


def symmetry_of(context: Context, data: str, width: int) -> Symmetry:
    """The permutations of the hidden units."""
    dataset = context.data(data, **PIXELS)
    return permutations_of(network_of("mlp", options_of(dataset, width), seed=0), dataset.train.x)


def apart(one: MeanField, other: MeanField) -> tuple[float, float]:
    """The largest difference of two means, and of the logarithms of two deviations."""
    names = tuple(one.mean)
    parts = [[vector(part, names, one.mean).double() for part in (q.mean, q.std)] for q in (one, other)]
    (mean, std), (mean_there, std_there) = parts
    return float((mean - mean_there).abs().max()), float((std.log() - std_there.log()).abs().max())


def digest(q: MeanField) -> str:
    """SHA-256 (hex) of names, means and deviations."""
    found = hashlib.sha256()
    for part in (q.mean, q.std):
        for name, tensor in part.items():
            found.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
            found.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()
