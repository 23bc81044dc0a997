"""Draws of a flow for predictions: many are carried together, and each is still known by its number."""

from functools import lru_cache

import torch
from torch import Tensor

from coset.flow._flow import Flow
from coset.flow._solvers import integrate
from coset.posterior.prediction.draws import SAMPLES, Draws, root_of
from coset.train.randomness import stream

TOGETHER = 64
"""So many draws are carried together at the most."""


def block_of(number: int) -> range:
    """The draws that are carried with a draw: 0; 1; 2, 3; 4 … 7; and so on, at the most ``TOGETHER``.

    It depends on the number alone, so that the draw does, too, to the bit; and of the first n draws no more than n are
    carried in vain.
    """
    size = min(TOGETHER, 1 << max(0, number.bit_length() - 1))
    first = number // size * size
    return range(first, first + size)


def draws_of_flow(q: Flow, samples: int | None, seed: int | torch.Generator) -> Draws:
    """Draw j begins where the source puts it by a stream of its own, and is carried together with its block."""
    root = root_of(seed)

    # The first and the current block: whoever runs networks looks at draws 0 and 1 before all others.
    @lru_cache(maxsize=3)
    def carried(numbers: range) -> dict[str, Tensor]:
        start = torch.cat([q.source.sample(1, stream("predictive", root, number)) for number in numbers])
        rows = integrate(q.frame.path_space, q.velocity(), start, solver=q.solver, differentiable=False)
        return q.placed(rows)

    def draw(number: int) -> dict[str, Tensor]:
        numbers = block_of(number)
        return {name: tensor[number - numbers.start] for name, tensor in carried(numbers).items()}

    return Draws(samples or SAMPLES, False, draw)
