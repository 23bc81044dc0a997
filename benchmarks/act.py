"""The action of an element against copying the same parameters."""

import torch
from torch import Tensor

from benchmarks.measure import Ratio, ratio
from coset.models import CCT, MLP, ResNet18, example_input
from coset.symmetry import Symmetry, discover

PERMUTATIONS, WITH_SCALES = 3.5, 6.0


def run(small: bool) -> list[Ratio]:
    """Permutations alone, and with scales: ResNet18, an MLP and a transformer of 100 million parameters."""
    repeat = 3 if small else 15
    resnet = ResNet18(stages=(8,) if small else (64, 128, 256, 512))
    width = 64 if small else 4060
    mlp = MLP(width, [width] * 6, 10)
    cct = CCT(dim=32, heads=4, depth=1, image_size=8) if small else CCT(dim=1440, heads=12, depth=6)
    results = []
    for model in (resnet, mlp, cct):
        params = dict(model.state_dict())
        count = sum(tensor.numel() for tensor in params.values())
        label = f"{type(model).__name__}, {count / 1e6:.1f}M"
        results += _ratios(label, discover(model.eval(), example_input(model), verify=False).monomial, params, repeat)
        del model, params
    return results


def _ratios(label: str, sym: Symmetry, params: dict[str, Tensor], repeat: int) -> list[Ratio]:
    generator = torch.Generator().manual_seed(0)
    g = sym.random(generator)
    permuted = sym.element(permutations=g.permutations)

    def copy() -> object:
        return {name: tensor.clone() for name, tensor in params.items()}

    return [
        ratio(
            f"act, permutations: {label}",
            lambda: sym.act(permuted, params),
            "clone",
            copy,
            bound=PERMUTATIONS,
            repeat=repeat,
        ),
        ratio(
            f"act, with scales: {label}", lambda: sym.act(g, params), "clone", copy, bound=WITH_SCALES, repeat=repeat
        ),
    ]
