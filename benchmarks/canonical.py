"""Canonical forms of many networks in one call, against a copy of their weights and a loop over them."""

import torch

from benchmarks.measure import Ratio, ratio
from coset.canonical import canonicalize
from coset.models import MLP
from coset.symmetry import discover
from coset.symmetry.stacks import network_of


def run(small: bool) -> list[Ratio]:
    """1,000 networks 784-10-10; of the loop fifty are timed, and counted for all."""
    count, looped = (40, 4) if small else (1000, 50)
    model = MLP(784, [10], 10).eval()
    sym = discover(model, torch.zeros(2, 784))
    generator = torch.Generator().manual_seed(0)
    stack = {name: torch.randn(count, *t.shape, generator=generator) for name, t in model.state_dict().items()}
    label = f"canonicalize, {count} networks: MLP 784-10-10"
    copies = ratio(
        label,
        lambda: canonicalize(sym, stack, classifier=True),
        "copies in float64",
        lambda: {name: tensor.double() for name, tensor in stack.items()},
        bound=50,
        repeat=2 if small else 5,
    )
    timed = ratio(
        label,
        lambda: canonicalize(sym, stack, classifier=True),
        f"one by one, {looped} networks times {count // looped}",
        lambda: [canonicalize(sym, network_of(stack, number), classifier=True) for number in range(looped)],
        bound=0.5,
        repeat=2 if small else 5,
    )
    times = count / looped
    low, high = timed.spread
    whole = Ratio(
        timed.what, timed.reference, timed.milliseconds, timed.ratio / times, (low / times, high / times), 0.5
    )
    return [copies, whole]
