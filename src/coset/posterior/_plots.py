"""Pictures of predictions and of chains."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from coset._checks import check_count
from coset.distribution.contract import require
from coset.distribution.samples import Samples
from coset.errors import InputError
from coset.posterior.fit import Fit
from coset.posterior.prediction.results import RealPredictive

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCALARS = 4
"""So many weights are shown, spread over all of them, where nothing else is asked for."""


def plot_predictive(
    predicted: RealPredictive,
    x: Tensor,
    *,
    data: tuple[Tensor, Tensor] | None = None,
    target: int = 0,
    levels: Sequence[float] = (0.5, 0.9),
) -> "Figure":
    """Mean and central intervals of a regression against inputs ``x`` (N,) or (N, 1), with the points of ``data``."""
    require(predicted, RealPredictive, "predicted", "what predictive gives for a regression")
    along = _one_input("x", x)
    if len(along) != len(predicted.mean):
        raise InputError(f"x has {len(along)} points; expected the {len(predicted.mean)} that were predicted at")
    if not 0 <= target < predicted.mean.shape[1]:
        raise InputError(f"target is {target}; expected a whole number below {predicted.mean.shape[1]}")
    # matplotlib takes long to import, and only this needs it.
    from coset.figures import BLUE, INK, new_figure, styled

    order = along.argsort()
    places = along[order].numpy()
    with styled():
        figure = new_figure(4.2, 3.0)
        axes = figure.subplots()
        for level in sorted(levels, reverse=True):
            low, high = (side[order, target].cpu().numpy() for side in predicted.interval(level))
            axes.fill_between(places, low, high, color=BLUE, alpha=0.2, lw=0, label=f"{100 * level:g} %")
        axes.plot(places, predicted.mean[order, target].cpu().numpy(), color=BLUE, label="mean")
        if data is not None:
            inputs, targets = data
            values = targets.detach().cpu().reshape(len(targets), -1)[:, target]
            axes.plot(_one_input("data[0]", inputs).numpy(), values.numpy(), "o", color=INK, ms=2.5, label="data")
        axes.set_xlabel("x")
        axes.set_ylabel("y")
        axes.legend()
    return figure


def plot_trace(samples: Samples | Fit[Samples], names: Sequence[str] | None = None) -> "Figure":
    """Every draw of single weights, a line for each chain; ``names`` as in ``layers.0.weight[2, 0]``."""
    values = _scalars(samples, names)
    from coset.figures import PALETTE, new_figure, styled

    with styled():
        figure = new_figure(5.0, 1.2 * len(values) + 0.5)
        panels = np.atleast_1d(figure.subplots(len(values), 1, sharex=True))
        for axes, (name, chains) in zip(panels, values.items(), strict=True):
            for number, chain in enumerate(chains.numpy()):
                axes.plot(chain, color=PALETTE[number % len(PALETTE)], lw=0.7)
            axes.set_title(name, loc="left")
        panels[-1].set_xlabel("draw")
    return figure


def plot_ranks(samples: Samples | Fit[Samples], names: Sequence[str] | None = None, *, bins: int = 20) -> "Figure":
    """How the ranks of each chain's draws among all draws are spread (Vehtari et al. 2021): flat where chains agree."""
    check_count("bins", bins)
    values = _scalars(samples, names)
    from coset.figures import GREY, PALETTE, new_figure, styled

    with styled():
        figure = new_figure(5.0, 1.2 * len(values) + 0.5)
        panels = np.atleast_1d(figure.subplots(len(values), 1, sharex=True))
        for axes, (name, chains) in zip(panels, values.items(), strict=True):
            ranks = chains.flatten().argsort().argsort().reshape(chains.shape).numpy()
            edges = np.linspace(0, chains.numel(), bins + 1)
            for number, own in enumerate(ranks):
                counts = np.histogram(own, edges)[0]
                axes.stairs(counts, edges, color=PALETTE[number % len(PALETTE)])
            axes.axhline(chains.shape[1] / bins, color=GREY, lw=0.8, ls=":")
            axes.set_title(name, loc="left")
        panels[-1].set_xlabel("rank")
    return figure


def _scalars(samples: Samples | Fit[Samples], names: Sequence[str] | None) -> Mapping[str, Tensor]:
    """Single weights by name, each (chains, draws)."""
    found = samples.posterior if isinstance(samples, Fit) else samples
    require(found, Samples, "samples", "Samples, or a Fit that has found them")
    columns = scalars(found)
    if names is None:
        every = list(columns)
        names = [every[k] for k in np.linspace(0, len(every) - 1, min(SCALARS, len(every))).astype(int)]
    for name in names:
        if name not in columns:
            raise InputError(f"names has '{name}', which is no weight; expected some as in '{next(iter(columns))}'")
    return {name: columns[name].double().cpu() for name in names}


def scalars(samples: Samples) -> dict[str, Tensor]:
    """Every single weight by its name and place, (chains, draws), tied ones once."""
    found: dict[str, Tensor] = {}
    for name in samples.random_names:
        tensor = samples.params[name].detach()
        flat = tensor.flatten(2) if tensor.ndim > 2 else tensor.unsqueeze(2)
        for place in range(flat.shape[2]):
            at = np.unravel_index(place, tensor.shape[2:]) if tensor.ndim > 2 else ()
            found[f"{name}[{', '.join(str(int(k)) for k in at)}]" if at else name] = flat[..., place]
    return found


def _one_input(name: str, x: Tensor) -> Tensor:
    if not isinstance(x, Tensor) or x.ndim > 2 or x.reshape(len(x), -1).shape[1] != 1:
        found = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
        raise InputError(f"{name} is {found}; expected a tensor (N,) or (N, 1) of one input")
    return torch.as_tensor(x).detach().cpu().reshape(-1)
