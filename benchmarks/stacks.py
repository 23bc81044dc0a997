"""Many small networks aligned in one call, against a loop over ``align``."""

import torch
from torch import Tensor

from benchmarks.measure import Ratio, ratio
from coset.alignment import align, align_stack
from coset.models import MLP
from coset.symmetry import discover
from coset.symmetry.stacks import network_of

BOUND = 1 / 20
NO_WORSE = 1 + 1e-6
"""The mean objective of the loop over ours: rounding only."""


def run(small: bool) -> list[Ratio]:
    """Pairs of random networks: 784-10-10, and the same with another hidden layer."""
    count, looped = (40, 4) if small else (1000, 50)
    return [row for widths in ([10], [10, 10]) for row in _pairs(widths, count, looped, 2 if small else 5)]


def _pairs(widths: list[int], count: int, looped: int, repeat: int) -> list[Ratio]:
    """All pairs at once; of the loop ``looped`` pairs are timed, and counted for all."""
    model = MLP(784, widths, 10).eval()
    sym = discover(model, torch.zeros(2, 784))
    generator = torch.Generator().manual_seed(0)
    a, b = (_networks(model, count, generator) for _ in range(2))
    pairs = [(network_of(a, number), network_of(b, number)) for number in range(looped)]
    label = f"align_stack, {count} pairs: MLP {'-'.join(map(str, (784, *widths, 10)))}"
    timed = ratio(
        label,
        lambda: align_stack(sym, a, b, show=False),
        f"loop over align, {looped} pairs times {count // looped}",
        lambda: [align(sym, *pair, show=False) for pair in pairs],
        bound=BOUND,
        repeat=repeat,
    )
    times = count / looped
    low, high = timed.spread
    alone = sum(align(sym, *pair, show=False).objective for pair in pairs) / looped
    together = float(align_stack(sym, a, b, show=False).objectives[:looped].mean())
    share = alone / together
    return [
        Ratio(timed.what, timed.reference, timed.milliseconds, timed.ratio / times, (low / times, high / times), BOUND),
        Ratio(f"{label}: objective of the loop", f"ours, {together:.4f}", 0.0, share, (share, share), NO_WORSE),
    ]


def _networks(model: MLP, count: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Weights as at the start of training: U(−1/√fan-in, 1/√fan-in)."""
    found = {}
    for name, tensor in model.state_dict().items():
        bound = model.state_dict()[name.replace("bias", "weight")].shape[1] ** -0.5
        found[name] = bound * (2 * torch.rand(count, *tensor.shape, generator=generator) - 1)
    return found
