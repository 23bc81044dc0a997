"""Baselines that readers of networks have to beat: statistics of weights, and weights as one long vector."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from coset._checks import check_choice, check_count, check_seed
from coset.canonical import canonicalize
from coset.errors import InputError
from coset.metanet._groups import Group, networks
from coset.metanet._summaries import QUANTILES, quantiles
from coset.symmetry import Symmetry
from coset.symmetry.stacks import leading

STATISTICS = ("mean", "deviation", *(f"quantile {share:g}" for share in QUANTILES), "mean absolute", "root mean square")
"""What is taken of the entries of every parameter."""

LOSSES = ("mse", "shares", "cross-entropy")


def weight_statistics(sym: Symmetry, stack: Mapping[str, Tensor], *, canonical: bool = False) -> dict[str, Tensor]:
    """Statistics of the entries of every parameter: its name → (N, len(STATISTICS)), in float64.

    Mean, standard deviation, quantiles (Unterthiner et al. 2020) and norms over the root of the number of entries. They
    are as many for every size of a parameter, and do not change under permutations; under scales and signs they do,
    unless they are taken of ``canonical`` forms.
    """
    stack = canonicalize(sym, stack).params if canonical else stack
    found = {}
    for name, entries in _entries(sym, stack).items():
        ranked = quantiles(entries, QUANTILES)
        mean, deviation = entries.mean(1), entries.std(1, correction=0)
        sizes = entries.abs().mean(1), entries.square().mean(1).sqrt()
        found[name] = torch.cat([torch.stack([mean, deviation], 1), ranked, torch.stack(sizes, 1)], 1)
    return found


Further = Callable[[Symmetry, Mapping[str, Tensor]], Mapping[str, Tensor]]
"""Further features of N networks by name, (N, F)."""


def _features(
    sym: Symmetry, stack: Mapping[str, Tensor], canonical: bool, further: Further | None
) -> dict[str, Tensor]:
    """Statistics of weights, and further features."""
    found = weight_statistics(sym, stack, canonical=canonical)
    return (
        found
        if further is None
        else found | {name: rows.detach().double() for name, rows in further(sym, stack).items()}
    )


@dataclass(frozen=True, eq=False)
class FittedStatistics:
    """Gradient boosting on statistics of the ``parameters`` it was trained with, one model for each output.

    Networks of other architectures are read by the parameters whose names they share; the rest counts as missing.
    """

    loss: str
    parameters: tuple[str, ...]
    models: tuple[Any, ...]
    classes: int = 0
    canonical: bool = False
    further: Further | None = None

    def predict(self, sym: Symmetry, stack: Mapping[str, Tensor]) -> Tensor:
        """What is read of N networks: (N,), (N, outputs), or the probabilities of classes (N, classes).

        Of one network without a leading axis, the same without that axis.
        """
        one = leading(sym, stack) is None
        many = {name: tensor[None] for name, tensor in stack.items()} if one else stack
        columns = _columns(_features(sym, many, self.canonical, self.further), self.parameters)
        if self.loss == "cross-entropy":
            (model,) = self.models
            outputs = torch.zeros(len(columns), self.classes, dtype=torch.float64)
            outputs[:, torch.as_tensor(model.classes_)] = torch.as_tensor(model.predict_proba(columns))
        else:
            outputs = torch.stack([torch.as_tensor(model.predict(columns)) for model in self.models], 1)
            outputs = outputs.clamp(0, 1) if self.loss == "shares" else outputs
            outputs = outputs[:, 0] if len(self.models) == 1 else outputs
        return outputs[0] if one else outputs


def fit_statistics(
    groups: "Group | Sequence[Group]",
    *,
    canonical: bool = False,
    further: Further | None = None,
    loss: str = "mse",
    seed: int = 0,
    rounds: int = 400,
    rate: float = 0.05,
) -> FittedStatistics:
    """Gradient boosting of trees on ``weight_statistics``, by scikit-learn, of networks of one architecture or several.

    ``loss``: "mse", "shares" (targets from 0 to 1, by squared errors, cut to that range) or "cross-entropy" (labels).
    ``canonical``: statistics are those of canonical forms. ``further(sym, stack)`` gives more features, by name
    (N, F), such as outputs.
    ``rounds`` trees at most: boosting ends where a tenth of the networks, drawn by ``seed``, gains nothing from more.
    """
    check_choice("loss", loss, LOSSES)
    check_count("rounds", rounds)
    check_seed(seed)
    given = networks(groups)
    every = [_features(group.sym, group.stack, canonical, further) for group in given]
    parameters = tuple(dict.fromkeys(name for found in every for name in found))
    columns = np.concatenate([_columns(found, parameters) for found in every])
    targets = torch.cat([group.targets.cpu() for group in given])
    make = _booster("Classifier" if loss == "cross-entropy" else "Regressor")
    options = {"max_iter": rounds, "learning_rate": rate, "random_state": seed % 2**32, "min_samples_leaf": 10}
    options |= {"early_stopping": len(targets) >= 50, "n_iter_no_change": 20}
    if loss == "cross-entropy":
        if targets.ndim != 1 or targets.is_floating_point() or int(targets.min()) < 0:
            raise InputError(f"targets are {targets.dtype} of shape {tuple(targets.shape)}; expected labels (N,)")
        if bool((targets == targets[0]).all()):
            raise InputError(f"targets are all {int(targets[0])}; expected labels of two classes or more")
        return FittedStatistics(
            loss, parameters, (make(**options).fit(columns, targets),), int(targets.max()) + 1, canonical, further
        )
    values = targets.double().reshape(len(targets), -1)
    if loss == "shares" and not bool(((values >= 0) & (values <= 1)).all()):
        raise InputError("targets have values that are no shares; expected numbers from 0 to 1")
    models = tuple(make(**options).fit(columns, values[:, number].numpy()) for number in range(values.shape[1]))
    return FittedStatistics(loss, parameters, models, canonical=canonical, further=further)


class FlatReader(nn.Module):
    """A multilayer perceptron on all weights of a network as one vector, each brought to a range near ±1.

    θ → W₂ relu(W₁ x + b₁) + b₂ of x = asinh((θ − m)/s), where m are the medians of calibration and s its interquartile
    ranges, and as many hidden layers as ``hidden`` has widths. With ``canonical``, θ is
    the canonical form (``coset.canonicalize``) first, so that the result is invariant under the group; else it is not.
    It reads one architecture only.
    """

    middle: Tensor
    size: Tensor

    def __init__(
        self,
        sym: Symmetry,
        outputs: int = 1,
        *,
        hidden: Sequence[int] = (256, 64),
        canonical: bool = False,
        dropout: float = 0.0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        for width in (outputs, *hidden):
            check_count("outputs and widths", width)
        self.sym, self.canonical = sym, canonical
        entries = sum(math.prod(sym.parameters[name].shape) for name in _read_names(sym))
        widths = [entries, *hidden]
        with torch.device("cpu"), torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(check_seed(seed))
            parts: list[nn.Module] = []
            for before, after in pairwise(widths):
                parts += [nn.Linear(before, after), nn.ReLU(), nn.Dropout(dropout)]
            self.layers = nn.Sequential(*parts, nn.Linear(widths[-1], outputs))
        self.register_buffer("middle", torch.zeros(entries))
        self.register_buffer("size", torch.ones(entries))

    def read(self, stack: Mapping[str, Tensor], *, sym: Symmetry | None = None) -> Tensor:
        """The vectors of N networks, (N, entries)."""
        own = self.sym if sym is None else sym
        if own != self.sym:
            raise InputError("the networks have another architecture than the reader was made for; expected the same")
        if self.canonical:
            stack = canonicalize(own, stack).params
        flat = torch.cat(list(_entries(own, stack).values()), 1)
        if flat.shape[1] != len(self.middle):
            raise InputError(f"the networks have complex weights, {flat.shape[1]} numbers; expected {len(self.middle)}")
        return flat.to(self.middle)

    def calibrate(self, stack: Mapping[str, Tensor], *, sym: Symmetry | None = None) -> None:
        """Take median and interquartile range of every entry from networks, before training.

        Dead units leave entries of canonical forms that are larger than others by orders of magnitude: a mean and a
        deviation would be those of these entries.
        """
        flat = self.read(stack, sym=sym)
        low, middle, high = quantiles(flat.T, (0.25, 0.5, 0.75)).unbind(1)
        self.middle.copy_(middle)
        # An entry that is the same in most networks tells little, and stays as it is.
        ranges = high - low
        self.size.copy_(torch.where(ranges > 0, ranges, torch.ones_like(ranges)))

    def forward(self, stack: Mapping[str, Tensor] | Tensor, *, sym: Symmetry | None = None) -> Tensor:
        """(N, outputs) of a stack, or of the vectors that ``read`` has made of it; of one network (outputs,)."""
        if isinstance(stack, Tensor):
            flat = stack
        elif leading(self.sym if sym is None else sym, stack) is None:
            result: Tensor = self.forward({name: tensor[None] for name, tensor in stack.items()}, sym=sym)[0]
            return result
        else:
            flat = self.read(stack, sym=sym)
        outputs: Tensor = self.layers(((flat - self.middle) / self.size).asinh())
        return outputs


def _read_names(sym: Symmetry) -> list[str]:
    """Parameters and moving buffers, each tensor once; other buffers, such as a count of batches, are not read."""
    return [
        name
        for name, known in sym.parameters.items()
        if known.tied is None and (known.moves or not known.buffer) and math.prod(known.shape) > 0
    ]


def _entries(sym: Symmetry, stack: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The entries of every parameter, (N, entries), in float64; of complex numbers real and imaginary parts."""
    found = {}
    for name in _read_names(sym):
        tensor = stack[name].detach()
        real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        found[name] = real.double().reshape(len(real), -1)
    return found


def _columns(found: Mapping[str, Tensor], parameters: Sequence[str]) -> NDArray[np.float64]:
    """The features of networks, (N, parameters · statistics); NaN where they lack a parameter."""
    if not any(name in found for name in parameters):
        raise InputError(
            f"the networks have none of the parameters {', '.join(parameters[:4])} …, by whose names they are read"
        )
    like = next(iter(found.values()))
    missing = torch.full_like(like, torch.nan)
    whole: NDArray[np.float64] = torch.cat([found.get(name, missing) for name in parameters], 1).cpu().numpy()
    return whole


def _booster(kind: str) -> Any:
    """scikit-learn's histogram boosting, imported where it is used: it takes a while."""
    try:
        from sklearn import ensemble
    except ImportError as error:
        raise InputError("statistics of weights are read by gradient boosting: pip install scikit-learn") from error
    return getattr(ensemble, f"HistGradientBoosting{kind}")
