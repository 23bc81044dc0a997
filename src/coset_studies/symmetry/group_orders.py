"""How large the symmetry groups of the papers' architectures are, and how many equivalent modes a mode has."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from coset.models import CCT, MLP, MyrtleCNN, ResNet18, ResNet20, example_input
from coset.study import Context, Findings, Scalar, Table, study
from coset.symmetry import Symmetry, discover
from coset_studies.symmetry._orders_page import CAPTION, CLAIMS, TABLES, TEXT, draw

# label -> (where it is used, model)
ARCHITECTURES: dict[str, tuple[str, Callable[[], nn.Module]]] = {
    "MLP 784-5-10": ("Gelberg, table 1", lambda: MLP(784, [5], 10)),
    "MLP 784-10-10": ("Gelberg, table 1; Erdogan, MNIST", lambda: MLP(784, [10], 10)),
    "MLP 784-20-10": ("Gelberg, table 1", lambda: MLP(784, [20], 10)),
    "MLP 784-30-10": ("Gelberg, table 1", lambda: MLP(784, [30], 10)),
    "MLP 784-100-10": ("a wider one, for theorem 3.1", lambda: MLP(784, [100], 10)),
    "MLP 30-16-16-2": ("Erdogan, breast cancer", lambda: MLP(30, [16, 16], 2)),
    "MLP 784-512-512-512-10": ("Rossi, table 2", lambda: MLP(784, [512, 512, 512], 10)),
    "ResNet20, FRN": ("Rossi, table 3", lambda: ResNet20(norm="frn")),
    "ResNet20, LayerNorm": ("Rossi, fig. 11", lambda: ResNet20(norm="layer")),
    "ResNet20, BatchNorm": ("Godfrey, D.1", lambda: ResNet20(norm="batch")),
    "ResNet18, BatchNorm": ("Godfrey, D.1", lambda: ResNet18(norm="batch")),
    "Myrtle CNN": ("Godfrey, 3.3", lambda: MyrtleCNN(norm="none")),
    "Myrtle CNN, BatchNorm": ("Godfrey, D.1", MyrtleCNN),
    "Myrtle CNN, 512 wide": ("Godfrey, D.8", lambda: MyrtleCNN(constant=True)),
    "CCT-6/3×1": ("Godfrey, D.4", CCT),
}


@dataclass(frozen=True)
class Config:
    """``widths`` of the sweep of MLPs and ResNet20s; ``inputs`` on which each group is verified.

    ``left_out``: architectures that are not looked at.
    """

    widths: tuple[int, ...]
    inputs: int
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class Size:
    """The size of an architecture's group beside its number of weights D."""

    weights: int
    log10_permutations: float
    log10_order: float
    scales: int

    @property
    def ratio(self) -> float:
        """log|P| / D, natural logarithm of the number of permutations: Gelberg's theorem 3.1 says something if > 1."""
        return self.log10_permutations * math.log(10) / self.weights


_LARGE = (
    "ResNet20, FRN", "ResNet20, LayerNorm", "ResNet18, BatchNorm", "Myrtle CNN", "Myrtle CNN, BatchNorm",
    "Myrtle CNN, 512 wide", "CCT-6/3×1",
)  # fmt: skip
"""What takes longest."""


@study(
    name="group-orders",
    title="How many equivalent modes a network has",
    reference="Gelberg et al. 2024, section 2 and theorem 3.1; Rossi et al. 2023, tables 2-3; Godfrey et al. 2022, "
    "section 3, D.1 and E.9; Erdogan 2025, Geometric flow models over neural network weights",
    paper="""
    Gelberg et al. count |G| = d₁!⋯d_{L−1}! weight vectors equivalent to a given one for an MLP with hidden widths d_i,
    and bound the distance to the nearest of them by 2R with R = D/log|G|·‖ω‖, where D is the number of weights.
    Godfrey et al. describe the continuous part: one positive scale for every ReLU unit, a second one where batch
    normalisation stands before it, and one shared set of units for every residual stream.
    """,
    presets={
        "quick": Config(widths=(1,), inputs=4, left_out=_LARGE),
        "small": Config(widths=(1, 2, 4, 8, 16, 32), inputs=4),
        "paper": Config(widths=(1, 2, 4, 8, 16, 32, 64), inputs=4),
    },
    claims=CLAIMS,
    text={"paper": TEXT},
    tables=TABLES,
    figure=draw,
    caption=CAPTION,
)
def run(config: Config, context: Context) -> Findings:
    """Count, verify f(g·θ) = f(θ) in float64 for each architecture, and sweep the width."""
    sizes: dict[str, Size] = {}
    errors: dict[str, float] = {}
    sweep: list[tuple[str, int, Size]] = []
    with context.progress("architectures", len(ARCHITECTURES) + 2 * len(config.widths)) as bar:
        for label, (_, make) in ARCHITECTURES.items():
            if label in config.left_out:
                continue
            model = _seeded(make, context).eval()
            sizes[label], errors[label] = _measured(model, config.inputs, context)
            bar.advance(note=label)
        for width in config.widths:
            for kind, make in _swept(width).items():
                # Sizes need shapes only: no memory for the weights of wide networks.
                with torch.device("meta"):
                    model = make().eval()
                sym = discover(model, example_input(model, 2), verify=False)
                sweep.append((kind, width, _size(model, sym)))
                bar.advance(note=f"{kind} ×{width}")
    mlp = sizes["MLP 784-512-512-512-10"]
    numbers: dict[str, Scalar] = {
        "mlp_log10_order": mlp.log10_order,
        "mlp_log10_closed_form": 3 * math.lgamma(513) / math.log(10),
        "resnet20_frn_log10_permutations": _of(sizes, "ResNet20, FRN", "log10_permutations"),
        "resnet20_batch_scales": _of(sizes, "ResNet20, BatchNorm", "scales"),
        "myrtle_scales": _of(sizes, "Myrtle CNN", "scales"),
        "myrtle_batch_scales": _of(sizes, "Myrtle CNN, BatchNorm", "scales"),
        "cct_log10_order": _of(sizes, "CCT-6/3×1", "log10_order"),
        "largest_ratio": max(size.ratio for size in (*sizes.values(), *(size for _, _, size in sweep))),
        "bound_of_100_units": 2 / sizes["MLP 784-100-10"].ratio,
        "largest_error": max(errors.values()),
    }
    return Findings(numbers, {"orders": _orders(sizes, errors), "widths": _widths(sweep)})


def _of(sizes: dict[str, Size], label: str, name: str) -> Scalar:
    """A size of one architecture, None where it is left out."""
    found: Scalar = getattr(sizes[label], name) if label in sizes else None
    return found


def _seeded(make: Callable[[], nn.Module], context: Context) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(context.seed)
        return make()


def _measured(model: nn.Module, inputs: int, context: Context) -> tuple[Size, float]:
    """The size of a model's group, and the error of an element of it."""
    # Verified on other elements and other weights than discovery would.
    sym = discover(model, example_input(model, 2, seed=context.seed), verify=False)
    return _size(model, sym), _verify(model, sym, inputs, context)


def _swept(width: int) -> dict[str, Callable[[], nn.Module]]:
    return {
        "MLP, three layers of 32×width": lambda: MLP(784, [32 * width] * 3, 10),
        "ResNet20, FRN": lambda: ResNet20(width=width, norm="frn"),
    }


def _size(model: nn.Module, sym: Symmetry) -> Size:
    weights = sum(parameter.numel() for parameter in model.parameters())
    ten = math.log(10)
    return Size(weights, sym.log_permutations / ten, sym.log_order / ten, sym.scale_dimension)


def _verify(model: nn.Module, sym: Symmetry, inputs: int, context: Context) -> float:
    """max |f(g·θ) − f(θ)| / max |f(θ)| in float64, batch statistics moved off their initial values."""
    generator = context.generator("verify")
    model = model.double().eval().to(context.device)
    params = {
        name: tensor + 0.1 * torch.rand(tensor.shape, generator=generator, dtype=torch.float64).to(context.device)
        if tensor.is_floating_point()
        else tensor
        for name, tensor in model.state_dict().items()
    }
    x = example_input(model, inputs, seed=context.seed)
    with torch.no_grad():
        before = torch.func.functional_call(model, params, (x,))
        after = torch.func.functional_call(model, sym.act(sym.random(generator), params), (x,))
    return float((after - before).abs().max() / before.abs().max())


def _orders(sizes: dict[str, Size], errors: dict[str, float]) -> Table:
    rows = [
        (
            label,
            ARCHITECTURES[label][0],
            size.weights,
            size.log10_permutations,
            size.log10_order,
            size.scales,
            size.ratio,
            errors[label],
        )
        for label, size in sizes.items()
    ]
    columns = (
        "architecture",
        "from",
        "weights D",
        "log₁₀ permutations",
        "log₁₀ with signs",
        "scales",
        "log|P|/D",
        "error",
    )
    return Table(columns, rows)


def _widths(sweep: list[tuple[str, int, Size]]) -> Table:
    rows = [
        (kind, width, size.weights, size.log10_permutations, size.scales, size.ratio)
        for kind, width, size in sorted(sweep, key=lambda row: row[:2])
    ]
    columns = ("architecture", "width", "weights D", "log₁₀ permutations", "scales", "log|P|/D")
    return Table(columns, rows)
