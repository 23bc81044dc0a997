"""How large the symmetry groups of the papers' architectures are, and how many equivalent modes a mode has."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn

from coset.models import CCT, MLP, MyrtleCNN, ResNet18, ResNet20, example_input
from coset.study import Context, Findings, Table, study
from coset.symmetry import Symmetry, discover

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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

    ``most``: architectures with more weights are left out.
    """

    widths: tuple[int, ...]
    inputs: int
    most: int | None = None


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
        "quick": Config(widths=(1, 4), inputs=4, most=1_600_000),
        "small": Config(widths=(1, 2, 4, 8, 16, 32), inputs=4),
        "paper": Config(widths=(1, 2, 4, 8, 16, 32, 64), inputs=4),
    },
)
def run(config: Config, context: Context) -> Findings:
    """Count, verify f(g·θ) = f(θ) in float64 for each architecture, and sweep the width."""
    sizes: dict[str, Size] = {}
    errors: dict[str, float] = {}
    sweep: list[tuple[str, int, Size]] = []
    with context.progress("architectures", len(ARCHITECTURES) + 2 * len(config.widths)) as bar:
        for label, (_, make) in ARCHITECTURES.items():
            model = _seeded(make, context).eval()
            weights = sum(parameter.numel() for parameter in model.parameters())
            if config.most is not None and weights > config.most:
                continue
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
    numbers = {
        "mlp_log10_order": mlp.log10_order,
        "mlp_log10_closed_form": 3 * math.lgamma(513) / math.log(10),
        "resnet20_frn_log10_permutations": sizes["ResNet20, FRN"].log10_permutations,
        "resnet20_batch_scales": sizes["ResNet20, BatchNorm"].scales,
        "myrtle_scales": sizes["Myrtle CNN"].scales,
        "myrtle_batch_scales": sizes["Myrtle CNN, BatchNorm"].scales,
        "cct_log10_order": sizes["CCT-6/3×1"].log10_order if "CCT-6/3×1" in sizes else None,
        "largest_ratio": max(size.ratio for size in (*sizes.values(), *(size for _, _, size in sweep))),
        "bound_of_100_units": 2 / sizes["MLP 784-100-10"].ratio,
        "largest_error": max(errors.values()),
    }
    return Findings(
        numbers=numbers,
        tables={"orders": _orders(sizes, errors), "widths": _widths(sweep)},
        outcome=_OUTCOME,
        figure=lambda: _figure(sizes, sweep),
        caption="(a) Digits of the number of equivalent weight vectors, by permutations and with signs. (b) The same "
        "against the width, with log|P|/D below (P: permutations): theorem 3.1 says something only above the dashed "
        "line.",
    )


_OUTCOME = """
Every group in the table was discovered from the model itself and verified on a random element of it, permutations,
scales and signs together, in float64: the outputs differ by at most {largest_error:.0e} of their size. The MLP with
three layers of 512 units has 10^{mlp_log10_order:.1f} equivalent weight vectors (10^{mlp_log10_closed_form:.1f} by
512!³), the ResNet20 with FRN 10^{resnet20_frn_log10_permutations:.1f} by permutations alone. (With signs FRN has more
than batch normalisation because its ε stands under an absolute value.)

The continuous part is as Godfrey et al. say: {myrtle_scales} scales for the {myrtle_scales} hidden channels of the
Myrtle CNN, and {myrtle_batch_scales} with batch normalisation. In a residual network each convolution into a stream has
a scale of its own before its norm, but all share the stream's units: {resnet20_batch_scales} scales in ResNet20.

Theorem 3.1 asks for D < log|P|, P the permutations. It holds for none of these networks: log|P|/D is at most
{largest_ratio:.4f}, and for the MLP with 100 hidden units the bound is {bound_of_100_units:.0f}‖ω‖, while no two points
of an orbit are farther apart than 2‖ω‖.
"""


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
    return Table(
        columns, rows, "Sizes of the groups; error: largest relative change of an output under a random element."
    )


def _widths(sweep: list[tuple[str, int, Size]]) -> Table:
    rows = [
        (kind, width, size.weights, size.log10_permutations, size.scales, size.ratio)
        for kind, width, size in sorted(sweep, key=lambda row: row[:2])
    ]
    columns = ("architecture", "width", "weights D", "log₁₀ permutations", "scales", "log|P|/D")
    return Table(columns, rows, "The width swept.")


def _figure(sizes: dict[str, Size], sweep: list[tuple[str, int, Size]]) -> "Figure":
    from coset.figures import new_figure

    figure = new_figure(10.0, 3.9)
    grid = figure.add_gridspec(3, 2, width_ratios=(1.45, 1.0))
    _draw_architectures(figure.add_subplot(grid[:, 0]), sizes)
    upper = figure.add_subplot(grid[:2, 1])
    _draw_widths(upper, figure.add_subplot(grid[2, 1], sharex=upper), sweep)
    return figure


def _draw_architectures(axes: "Axes", sizes: dict[str, Size]) -> None:
    from coset.figures import BLUE, VERMILION, label_panel

    ordered = sorted(sizes.items(), key=lambda item: item[1].log10_permutations)
    for row, (_, size) in enumerate(ordered):
        axes.plot([1, size.log10_permutations], [row, row], color=BLUE, lw=1.0, alpha=0.35)
        axes.plot(
            size.log10_order, row, "o", mfc="none", color=VERMILION, ms=6.5, label="with signs" if row == 0 else None
        )
        axes.plot(size.log10_permutations, row, "o", color=BLUE, ms=4, label="permutations" if row == 0 else None)
    axes.set_yticks(range(len(ordered)), [label for label, _ in ordered])
    axes.set_xscale("log")
    axes.set_xlim(1, 1e5)
    axes.set_xlabel("digits of the number of equivalent weight vectors, log₁₀|G|")
    axes.grid(visible=False, axis="y")
    axes.legend(loc="lower right")
    label_panel(axes, "a", "Equivalent weight vectors of one network")


def _draw_widths(axes: "Axes", below: "Axes", sweep: list[tuple[str, int, Size]]) -> None:
    from coset.figures import BLUE, GREEN, GREY, label_panel

    for kind, colour in zip(dict.fromkeys(kind for kind, _, _ in sweep), (BLUE, GREEN), strict=True):
        widths = [width for name, width, _ in sweep if name == kind]
        found = [size for name, _, size in sweep if name == kind]
        axes.plot(widths, [size.log10_permutations for size in found], "o-", color=colour, label=kind)
        below.plot(widths, [size.ratio for size in found], "o-", color=colour)
    axes.set_yscale("log")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.tick_params(labelbottom=False)
    axes.set_ylabel("log₁₀|G|")
    axes.legend(loc="upper left")
    label_panel(axes, "b", "Wider networks have more of them")
    below.axhline(1, color=GREY, ls=(0, (4, 2)), lw=1.0)
    below.set_yscale("log")
    below.set_ylabel("log|P| / D")
    below.set_xlabel("width")
