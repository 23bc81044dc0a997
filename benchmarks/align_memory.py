"""The peak memory of one alignment, as a process of its own: ``python -m benchmarks.align_memory NAME… [--small]``.

Of several names one line each, one after the other; where figures matter, a name has a process for itself. Of models
whose stream turns, alignment over the whole group, and the time of permutations alone beside it.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.quantisation import Characters
from coset.alignment import align
from coset.models import CCT, MLP, ResNet20, example_input
from coset.symmetry import Symmetry, discover

MODELS: dict[str, Callable[[bool], nn.Module]] = {
    "ResNet20 ×8": lambda small: ResNet20(width=1 if small else 8),
    "transformer, 12 layers of 768": lambda small: (
        CCT(dim=16, heads=2, depth=1, image_size=8) if small else CCT(dim=768, heads=12, depth=12, mlp_ratio=4)
    ),
    "turning stream, 12 layers of 768": lambda small: (
        Characters(12, d=8, heads=2, layers=1) if small else Characters(512, d=768, heads=12, layers=12)
    ),
}
WHOLE = "turning stream, 12 layers of 768"
"""The model that is aligned over the whole group."""

MEASURABLE = Path("/proc/self/clear_refs").exists()
NOISE = 0.5
"""Of the second network, in deviations of each parameter of the first."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.align_memory")
    parser.add_argument("names", nargs="+", choices=MODELS, metavar="NAME")
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    # What is loaded and set up once is no part of an alignment.
    width = 40 if options.small else 400
    _aligned(MLP(width, [width] * 2, 10), torch.zeros(2, width))
    for name in options.names:
        model = MODELS[name](options.small)
        whole = name == WHOLE
        x = torch.zeros(2, 8, dtype=torch.long) if whole else example_input(model)
        print(json.dumps(_aligned(model, x, whole=whole)))


def _aligned(model: nn.Module, x: Tensor, *, whole: bool = False) -> dict[str, float]:
    """Align a network with a permuted and noisy copy of itself; bytes and seconds.

    ``whole``: over the whole group, and the seconds of permutations alone.
    """
    sym = discover(model.eval(), x, verify=False)
    sym = sym if whole else sym.monomial
    reference = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    other = _permuted(sym.monomial, reference)
    since = time.perf_counter()
    if whole:
        align(sym, reference, other, continuous=False)
    permutations = time.perf_counter() - since
    before, since = start_of_peak(), time.perf_counter()
    result = align(sym, reference, other)
    seconds = time.perf_counter() - since
    return {
        "extra": current_peak() - before,
        "parameters": sum(tensor.numel() * tensor.element_size() for tensor in reference.values()),
        "count": sum(tensor.numel() for tensor in reference.values()),
        "seconds": seconds,
        "permutations": permutations,
        "scores": result.seconds.get("scores", 0.0),
        "assignment": result.seconds.get("assignment", 0.0),
    }


def _permuted(sym: Symmetry, params: dict[str, Tensor]) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    finite = sym.restrict(scales=False)
    noisy = {}
    for name, tensor in params.items():
        noisy[name] = tensor
        if tensor.is_floating_point():
            deviation = NOISE * float(tensor.std(unbiased=False))
            noisy[name] = tensor + deviation * torch.randn(tensor.shape, generator=generator)
    return finite.act(finite.random(generator), noisy)


def start_of_peak() -> int:
    """Let the system forget the highest memory so far (Linux); the memory in use now."""
    Path("/proc/self/clear_refs").write_text("5")
    return _bytes("VmRSS")


def current_peak() -> int:
    """The most memory in use since ``start_of_peak``."""
    return _bytes("VmHWM")


def _bytes(what: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith(f"{what}:")))


if __name__ == "__main__":
    main()
