"""A renormalised network, and the affine maps of single units that make it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from coset._values import freeze
from coset.alignment._result import Params
from coset.alignment.merging.layer_statistics import BatchNorm, Layer
from coset.errors import InputError
from coset.running.moments import Moments


@dataclass(frozen=True, eq=False)
class Renormalized:
    """A network after renormalisation: ``params``, a state dict of the same names, shapes and types.

    ``corrected``: the weights of layers whose units have a new deviation and a new mean; ``rescaled``: of those with a
    new deviation only; ``refreshed``: the running statistics of batch norms that are new; ``skipped``: weight or
    running statistic → why it was left as it was. ``factors``: parameter → what it was multiplied by, in a shape that
    broadcasts: the deviations of a posterior change by the same factors.
    """

    params: Params
    corrected: tuple[str, ...] = ()
    rescaled: tuple[str, ...] = ()
    refreshed: tuple[str, ...] = ()
    skipped: Mapping[str, str] = field(default_factory=dict)
    factors: Params = field(default_factory=dict)

    def __post_init__(self) -> None:
        freeze(self, "params", "skipped", "factors")

    def __repr__(self) -> str:
        return (
            f"Renormalized({len(self.corrected)} layers corrected, {len(self.rescaled)} rescaled, "
            f"{len(self.refreshed)} statistics refreshed, {len(self.skipped)} skipped)"
        )


@dataclass(frozen=True)
class Correction:
    """y → factor·y + shift for every unit of a layer, both (C,) in float64; no ``shift`` is None."""

    factor: Tensor
    shift: Tensor | None

    def __call__(self, outputs: Tensor, channel: int) -> Tensor:
        """The corrected outputs."""
        shape = [-1, *[1] * (-1 - channel)]
        result = outputs * self.factor.reshape(shape).to(outputs)
        return result if self.shift is None else result + self.shift.reshape(shape).to(outputs)


def correction(found: Moments, mean: Tensor | None, deviation: Tensor, dtype: torch.dtype) -> Correction:
    """The map that gives units of moments ``found`` the wanted deviation and, unless None, the wanted mean.

    Units that are constant, up to rounding in ``dtype``, stay as they are.
    """
    own = found.deviation
    dead = own <= 16 * torch.finfo(dtype).eps * found.mean.abs()
    factor = torch.where(dead, torch.ones_like(own), deviation / torch.where(dead, torch.ones_like(own), own))
    if mean is None:
        return Correction(factor, None)
    return Correction(factor, torch.where(dead, torch.zeros_like(own), mean - factor * found.mean))


def folded(
    params: Params, corrections: Sequence[tuple[Layer, Correction]]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """W → c·W and b → c·b + s, unit by unit; the new parameters, and the factors of those that changed."""
    result, factors = dict(params), dict[str, Tensor]()
    for layer, change in corrections:
        changes: list[tuple[str, Tensor, Tensor | None]] = [
            (layer.weight, layer.along_weight(change.factor, params[layer.weight]), None)
        ]
        if layer.bias is not None:
            changes.append((layer.bias, change.factor, change.shift))
        for name, factor, shift in changes:
            wide = params[name].detach().to(torch.float64) * factor.to(params[name].device)
            wide = wide if shift is None else wide + shift.to(wide)
            result[name] = wide.to(params[name].dtype)
            factors[name] = factor
            if not bool(torch.isfinite(result[name]).all()):
                raise InputError(
                    f"'{name}' is not finite after renormalisation in {result[name].dtype}: the statistics of its "
                    f"outputs are not, or too large"
                )
    return result, factors


def refreshed(params: Params, statistics: Mapping[str, Moments], norms: Sequence[BatchNorm]) -> dict[str, Tensor]:
    """The running means and variances from measured moments; the variance is that of training, over n − 1."""
    result = dict(params)
    for norm in norms:
        found = statistics[norm.variance]
        for name, values in ((norm.mean, found.mean), (norm.variance, found.squares / max(found.count - 1, 1))):
            if not bool(torch.isfinite(values).all()):
                raise InputError(f"the statistics for '{name}' are not finite on these data")
            result[name] = values.to(params[name])
    return result
