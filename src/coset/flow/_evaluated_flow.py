"""``evaluate_flow``: the honest scores of a flow, beside what is cheap, and the likelihood of networks held out."""

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from coset._checks import check_count, check_seed
from coset.distribution import Estimate
from coset.errors import InputError
from coset.flow._comparison import Comparison
from coset.flow._evaluation import Data
from coset.flow._flow import Flow
from coset.flow._frame import Frame, make_frame
from coset.flow._generators import GENERATORS, cheap_samples
from coset.flow._measured_zoo import MeasuredZoo, measure_zoo
from coset.flow._scores import PERMUTATIONS, per_weight, score_against
from coset.flow._solvers import Solver
from coset.symmetry.stacks import Stack
from coset.train.randomness import stream

_WITH_DENSITY = ("noise", "gaussian")

_REACHED = 0.95
"""By default the bar is what so many of the training networks reach."""


def evaluate_flow(
    flow: Flow,
    model: nn.Module,
    networks: Stack,
    data: Data,
    *,
    samples: int = 64,
    bar: float | None = None,
    held_out: Stack | None = None,
    generators: Collection[str] = tuple(GENERATORS),
    solver: Solver | None = None,
    trace: str = "hutchinson",
    probes: int = 1,
    permutations: int = PERMUTATIONS,
    seed: int = 0,
    show: bool | None = None,
    **options: Any,
) -> Comparison:
    """Scores of so many ``samples`` of a flow, and of as many of the cheap ``generators``, on ``data`` (x, y).

    ``networks``: the stack that the flow was fitted to: to these distances are measured, and the cheap generators are
    made from them, in the frame of the flow, but always aligned. ``bar``: as in ``score_against`` (default: what 95 %
    of the networks reach). ``held_out``: networks that it has not seen; with them distributions are compared, and of
    flows that have a density their log-likelihood per weight is found, by ``trace`` and ``probes`` as in
    ``Flow.log_prob``; that of cheap generators which have a density stands beside it where both are densities of the
    same weights: of euclidean flows with ordered units. Other ``options``: those of ``measure_zoo``.
    """
    if not isinstance(flow, Flow):
        raise InputError(f"flow is a {type(flow).__name__}; expected a Flow")
    sym = flow.frame.symmetry
    if sym is None:
        raise InputError("the flow is of points without a symmetry; expected one of networks")
    check_count("samples", samples)
    check_seed(seed)
    options = {"classifier": flow.frame.classifier, **options}
    zoo = measure_zoo(model, sym, networks, data, held_out=held_out, seed=seed, show=show, **options)
    reached = _bar(zoo) if bar is None else bar
    drawn = {"flow": flow.sample(samples, stream("samples of a flow", seed, 0), solver=solver)}
    frame, points = _aligned(flow, networks)
    made = _options(flow, zoo.count)
    cheap = cheap_samples(points, samples, seed=seed, generators=generators, options=made)
    drawn |= {name: frame.weights(stack) for name, stack in cheap.items()}
    likelihoods: dict[str, Estimate] = {}
    if held_out is not None and frame.geometry != "normalized":
        there, size = flow.canonical(held_out), flow.frame.space.size
        with torch.no_grad():
            logs = flow.log_prob(there, solver=solver, trace=trace, probes=probes, seed=seed)
            likelihoods["flow"] = per_weight(logs, size)
            if frame.geometry == "euclidean" and flow.frame.order != "given":
                rows = frame.back(there)
                own, volume = frame.space.points(rows), frame.log_volume(rows)
                for name in (one for one in _WITH_DENSITY if one in generators):
                    found = GENERATORS[name](points, **made[name]).log_prob(own).double() + volume
                    likelihoods[name] = per_weight(found, size)
    return Comparison(
        {
            name: score_against(
                zoo, stack, bar=reached, permutations=permutations, log_likelihood=likelihoods.get(name), show=show
            )
            for name, stack in drawn.items()
        }
    )


def _bar(zoo: MeasuredZoo) -> float:
    """What 95 % of the training networks reach."""
    found = zoo.evaluation
    return float(found.measures.quantile(1 - _REACHED if found.measure == "accuracy" else _REACHED))


def _aligned(flow: Flow, networks: Stack) -> tuple[Frame, dict[str, Tensor]]:
    """The coordinates of the networks in the frame of the flow; aligned to the first where it leaves units in place."""
    frame = flow.frame
    if frame.order != "given":
        return frame, frame.space.points(frame.rows(networks))
    own, rows = make_frame(
        frame.symmetry,
        networks,
        geometry=frame.geometry,
        order="aligned",
        classifier=frame.classifier,
        reference=None,
        space=None,
    )
    return own, own.space.points(rows)


def _options(flow: Flow, count: int) -> dict[str, Mapping[str, Any]]:
    """Of the cheap generators: coordinates vary; soups are of half the networks at most, so that they differ."""
    names = {"names": flow.random_names}
    return {"noise": names, "gaussian": names, "principal": names, "soup": {"count": max(2, min(16, count // 2))}}
