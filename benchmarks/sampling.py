"""Effective draws per second of coset's samplers, beside NumPyro's and BlackJAX's where they are installed."""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks import sampling_peers as peers
from benchmarks.measure import Ratio, ratio
from benchmarks.sampling_peers import Drawn
from coset._show.tables import text_table
from coset.data import load
from coset.models import MLP
from coset.posterior import Fit, NoiseParameter, fit_hmc, fit_mclmc
from coset.posterior.inference.acceleration import compiled, recorded
from coset.posterior.inference.chains import joint_density, starts
from coset.posterior.problem import Problem, pose

THIN = 40


@dataclass(frozen=True)
class Setting:
    """A network of tanh units with a learned noise on the yacht data, and how many chains see it."""

    widths: tuple[int, ...]
    chains: int

    def __str__(self) -> str:
        return f"{'-'.join(map(str, self.widths))}, {self.chains} chains"


@dataclass(frozen=True)
class Row:
    """What a sampler did: effective draws in all, of the median prediction and of the log-posterior, and its times."""

    sampler: str
    predictions: float
    least: float
    log_posterior: float
    drawn: Drawn
    moments: tuple[Tensor, Tensor]
    """Mean and deviation of the predictions."""

    @property
    def rate(self) -> float:
        """Effective draws of predictions per second of sampling."""
        return self.predictions / self.drawn.sampling


def run(small: bool) -> list[Ratio]:
    """All samplers on 6-50-1 at 1, 4, 16 and 64 chains, and on 6-16-16-1 at 4."""
    if small:
        settings = [Setting((6, 8, 1), 2)]
    else:
        settings = [*(Setting((6, 50, 1), chains) for chains in (1, 4, 16, 64)), Setting((6, 16, 16, 1), 4)]
    found = _gradients(small)
    for setting in settings:
        rows = compare(setting, small)
        _show(setting, rows)
        found += _ratios(setting, rows)
    return found


def _gradients(small: bool) -> list[Ratio]:
    """Log-density and gradient of 4 chains of 6-50-1, recorded and compiled, against ``vmap`` and autograd."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(277, 6, generator=generator)
    problem = pose(NoiseParameter(MLP(6, [50], 1, activation="tanh")), (x, x[:, :1].sin()), "learned-noise", 1.0)
    target = joint_density(problem)
    states = problem.start + 0.1 * torch.randn(4, problem.layout.size, generator=generator)
    inputs = (states, *target.data)
    calls, repeat = (5, 2) if small else (200, 9)

    def times(function: Callable[..., object]) -> Callable[[], object]:
        return lambda: [function(*inputs) for _ in range(calls)]

    found = []
    with torch.no_grad():
        graph = recorded(target.function, inputs)
        ways = {"recorded": (graph, 0.7)} | ({} if small else {"compiled": (compiled(graph, inputs), 0.35)})
        for way, (function, bound) in ways.items():
            what = f"sampling, {calls} gradients of 4 chains of 6-50-1, {way}"
            found.append(ratio(what, times(function), "as written", times(target.function), bound=bound, repeat=repeat))
    return found


def compare(setting: Setting, small: bool = False, only: Sequence[str] = ()) -> list[Row]:
    """Every sampler that can run, from the same starts; ``only``: some of them by name."""
    data = load("uci/yacht") if not small else None
    generator = torch.Generator().manual_seed(0)
    x = data.train.x if data else torch.randn(40, 6, generator=generator)
    y = data.train.y if data else x[:, :1].sin()
    test = data.test.x if data else torch.randn(9, 6, generator=generator)
    model = NoiseParameter(MLP(setting.widths[0], list(setting.widths[1:-1]), 1, activation="tanh"))
    problem = pose(model, (x, y), "learned-noise", 1.0)
    begin = starts(problem, None, "initial", setting.chains, 0)
    samplers: dict[str, Callable[[], Drawn]] = {
        "fit_hmc": lambda: _hmc(model, problem, begin, small),
        "fit_mclmc": lambda: _mclmc(model, problem, begin, small, False),
        "fit_mclmc, adjusted": lambda: _mclmc(model, problem, begin, small, True),
    }
    if reason := peers.missing():
        print(f"peers skipped: {reason}", file=sys.stderr)
    else:
        density = peers.log_density(setting.widths, x.numpy(), y.numpy())
        warmup, draws = (20, 10) if small else (400, 200)
        steps, kept, thin = (200, 10, 2) if small else (10_000, 1000, THIN)
        first = begin.numpy()
        samplers |= {
            "NumPyro NUTS": lambda: peers.numpyro_nuts(density, first, warmup, draws, 0),
            "BlackJAX NUTS": lambda: peers.blackjax_nuts(density, first, warmup, draws, 0),
            "BlackJAX MCLMC": lambda: peers.blackjax_mclmc(density, first, steps, kept, thin, 0),
        }
    chosen = {name: sampler for name, sampler in samplers.items() if not only or name in only}
    return [_row(name, sampler(), problem, test) for name, sampler in chosen.items()]


def _hmc(model: nn.Module, problem: Problem, begin: Tensor, small: bool) -> Drawn:
    warmup, draws = (20, 10) if small else (400, 200)
    return _measured(fit_hmc, model, problem, begin, small, {"warmup": warmup, "draws": draws})


def _mclmc(model: nn.Module, problem: Problem, begin: Tensor, small: bool, adjusted: bool) -> Drawn:
    if adjusted:
        plan = {"warmup": 20, "draws": 10} if small else {"warmup": 400, "draws": 200}
    else:
        plan = {"warmup": 200, "draws": 10, "thin": 2} if small else {"warmup": 10_000, "draws": 1000, "thin": THIN}
    return _measured(fit_mclmc, model, problem, begin, small, {**plan, "adjusted": adjusted, "mass": "diagonal"})


def _measured(
    method: Callable[..., Fit], model: nn.Module, problem: Problem, begin: Tensor, small: bool, settings: dict
) -> Drawn:
    """A first short run compiles; of the second the seconds of warm-up and sampling are told apart by the trace."""
    common = {
        "chains": len(begin), "start": problem.layout.named(begin), "likelihood": "learned-noise", "prior": 1.0,
        "compile": not small, "show": False,
    }  # fmt: skip
    data = (problem.x, problem.y)
    since = time.perf_counter()
    method(model, data, **common, **settings | {"warmup": 20, "draws": 1})
    compilation = time.perf_counter() - since
    fit = method(model, data, **common, **settings)
    print(*fit.notes, file=sys.stderr)
    sampling = [record for record in fit.trace if not record["burn_in"]]
    seconds = sum(record["seconds"] for record in sampling)
    warm = sum(record["seconds"] for record in fit.trace) - seconds
    steps = settings["draws"] * settings.get("thin", 1)
    if "leapfrog_steps" in sampling[0]:
        steps *= sum(record["leapfrog_steps"] for record in sampling) / len(sampling)
    states = problem.layout.flatten(fit.posterior.params)
    return Drawn(states.numpy(), warm, seconds, compilation, steps * len(begin))


def _row(name: str, drawn: Drawn, problem: Problem, test: Tensor) -> Row:
    from arviz_stats.base import array_stats

    states = torch.from_numpy(np.array(drawn.draws))
    flat = states.flatten(0, 1).to(problem.start)
    many = torch.vmap(problem.outputs, (0, None))
    with torch.no_grad():
        values = torch.cat([many(part, test)[..., 0] for part in torch.split(flat, 500)])
        joints = torch.cat([problem.log_joints(part, problem.x, problem.y)[0] for part in torch.split(flat, 500)])
    lead = states.shape[:2]
    predictions = array_stats.ess(values.reshape(*lead, -1).double().numpy().transpose(2, 0, 1), method="bulk")
    log_posterior = array_stats.ess(joints.reshape(1, *lead).double().numpy(), method="bulk")
    moments = values.double().mean(0), values.double().std(0)
    return Row(name, float(np.median(predictions)), float(predictions.min()), float(log_posterior[0]), drawn, moments)


def _show(setting: Setting, rows: Sequence[Row]) -> None:
    reference = next((row for row in rows if row.sampler == "NumPyro NUTS"), rows[0])
    mean, std = reference.moments
    cells = [
        (
            row.sampler,
            f"{row.rate:.3g}",
            f"{row.least / row.drawn.sampling:.3g}",
            f"{row.log_posterior / row.drawn.sampling:.3g}",
            f"{row.drawn.gradients / row.drawn.sampling:,.0f}",
            f"{1e6 * row.predictions / row.drawn.gradients:.3g}",
            f"{row.drawn.warmup:.1f}",
            f"{row.drawn.sampling:.1f}",
            f"{row.drawn.compilation:.1f}",
            f"{float(((row.moments[0] - mean) / std).abs().median()):.2f}",
        )
        for row in rows
    ]
    names = ("", "predictions/s", "least/s", "log p/s", "gradients/s", "per 10⁶ gradients", "warm-up s", "sampling s",
             "compiling s", f"from {reference.sampler}")  # fmt: skip
    title = f"\n{setting}: effective draws per second; the mean's distance in deviations, median over points"
    print(f"{title}\n{text_table(names, cells, right=range(1, len(names)))}", file=sys.stderr)


WANTED = (("fit_hmc", "NumPyro NUTS", 1.0), ("fit_mclmc", "BlackJAX MCLMC", 2.0))


def _ratios(setting: Setting, rows: Sequence[Row]) -> list[Ratio]:
    """Seconds per effective draw of predictions against the peer's."""
    by_name = {row.sampler: row for row in rows}
    found = []
    for mine, theirs, bound in WANTED:
        if mine in by_name and theirs in by_name:
            own, other = by_name[mine], by_name[theirs]
            ratio = other.rate / own.rate
            wanted = 1.0 if setting.chains >= 16 else bound
            found.append(Ratio(f"sampling, {mine}, {setting}", theirs, 1e3 / own.rate, ratio, (ratio, ratio), wanted))
    return found
