"""How far the modes of a mean field are apart while it is trained, and what averaging over them would add."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn

from coset.distribution import MeanField
from coset.posterior.fit import Control, device_stream
from coset.posterior.inference.flat_optimizer import optimization
from coset.posterior.inference.mean_field import Descent, descend, mean_field_of
from coset.posterior.priors import Isotropic
from coset.posterior.problem import Data, Problem, pose
from coset.posterior.symmetrized import SymmetrizedELBO, log_permanent, pair_matrix
from coset.posterior.symmetrized.fitting import Gain
from coset.posterior.symmetrized.units import permuting_class, unit_entries, unit_log_probs, unknowns
from coset.symmetry import Symmetry, discover

PERMUTATIONS = 20
"""K of the gradients."""


@dataclass(frozen=True)
class Training:
    """Mean-field VI as the paper trains: Adam, one draw a step, prior N(0, ``prior``²), deviations from ``std`` on."""

    epochs: int
    batch_size: int
    std: float
    learning_rate: float = 1e-3
    prior: float = 1.0

    @property
    def settings(self) -> dict[str, object]:
        """What methods of inference take."""
        return asdict(self) | {"prior": Isotropic(self.prior)}


@dataclass(frozen=True)
class Moment:
    """A mean field after ``step`` steps.

    ``exchange``: the largest E_q[Δ], Δ = log q(g⁻¹·ω) − log q(ω), of an exchange g of two units, in nats, exactly;
    ``nearest``: the largest Δ of all draws ω ~ q and exchanges. ``information``: I(g; ω)/log n!, by these draws.
    ``uniform``, ``guided``: the largest entry of the gradient of H^K − H(q) in ρ = log σ and in μ/σ over the draws,
    K = 20 permutations drawn uniformly or guided by ω; that of H(q) in ρ is 1.
    """

    step: int
    exchange: float
    nearest: float
    information: float
    uniform: float
    guided: float


def exchanges(matrix: Tensor) -> Tensor:
    """Δ of every exchange of two units, (…, n(n − 1)/2): A_ij + A_ji − A_ii − A_jj with A (…, n, n) of a draw."""
    own = matrix.diagonal(dim1=-2, dim2=-1)
    ratios = matrix + matrix.mT - own[..., :, None] - own[..., None, :]
    n = matrix.shape[-1]
    i, j = torch.triu_indices(n, n, offset=1, device=matrix.device)
    return ratios[..., i, j]


def best_exchange(sym: Symmetry, q: MeanField) -> float:
    """The largest E_q[Δ] of an exchange of two units, in nats."""
    return float(expected_exchanges(sym, q).max())


def expected_exchanges(sym: Symmetry, q: MeanField) -> Tensor:
    """E_q[Δ] = −KL(q ‖ g·q) of every exchange of two units, (n(n − 1)/2,): A_ij of the means, less ½Σ s_i²/s_j²."""
    over = unknowns(q)
    owned = unit_entries(sym, permuting_class(sym), q.mean, over.names).owned.to(over.mean.device)
    variances = over.std[owned].square()
    return exchanges(unit_log_probs(owned, over.mean, over.mean, over.std) - 0.5 * variances @ (1 / variances).mT)


def look(problem: Problem, sym: Symmetry, values: Tensor, step: int, draws: int, seed: int) -> Moment:
    """The moment of a mean field whose means and logarithms of deviations are ``values`` (2, D)."""
    q, deviations = mean_field_of(problem, values), values[1].exp()
    generator = device_stream("course", seed, step, values)
    noise = torch.randn(draws, len(deviations), generator=generator, device=values.device).to(values)
    matrix = pair_matrix(sym, q, problem.layout.views(values[0] + deviations * noise))
    log_order = math.lgamma(matrix.shape[-1] + 1)
    added = log_order + matrix.diagonal(dim1=-2, dim2=-1).sum(-1) - log_permanent(matrix)
    gradients = []
    for proposal in ("uniform", "sequential"):
        gain = Gain(SymmetrizedELBO(sym, PERMUTATIONS, 1, proposal), problem)
        gain.begin(seed, step)
        gradients.append(max(_largest(gain.gradient(values, one, 1), deviations) for one in noise))
    nearest = float(exchanges(matrix).max())
    return Moment(step, best_exchange(sym, q), nearest, float(added.mean()) / log_order, *gradients)


def _largest(gradient: Tensor | None, deviations: Tensor) -> float:
    """The largest entry of a gradient in (μ, log σ), (2, D), once μ is measured in σ; 0 of none."""
    if gradient is None:
        return 0.0
    return float(torch.maximum((gradient[0] * deviations).abs(), gradient[1].abs()).max())


def permutations_of(model: nn.Module, x: Tensor) -> Symmetry:
    """The permutations of a network's hidden units."""
    return discover(model, x[:2]).restrict(scales=False, signs=False)


class Onlooker:
    """A term beside H(q) that adds nothing, and looks at q before each of ``steps``."""

    def __init__(self, problem: Problem, sym: Symmetry, steps: Sequence[int], draws: int, seed: int) -> None:
        self.moments: list[Moment] = []
        self._problem, self._sym, self._draws, self._seed = problem, sym, draws, seed
        self._steps, self._step = frozenset(steps), 0

    def begin(self, seed: int, epoch: int) -> None:
        """Nothing here is random but what ``look`` draws by itself."""

    def gradient(self, values: Tensor, noise: Tensor, sign: int) -> None:
        """None: it is zero."""
        if self._step in self._steps:
            self.look(values)
        self._step += 1

    def look(self, values: Tensor) -> None:
        """Note the moment."""
        self.moments.append(look(self._problem, self._sym, values.detach(), self._step, self._draws, self._seed))

    def mean(self) -> float:
        """Of what it adds."""
        return 0.0


def course(
    model: nn.Module, data: Data, training: Training, steps: Sequence[int], *, draws: int, seed: int, show: bool | None
) -> list[Moment]:
    """Moments before each of ``steps`` and at the end of ``fit_mean_field``, which this is to the bit."""
    problem = pose(model, data, "categorical", Isotropic(training.prior), 1.0)
    sym = permutations_of(problem.model, problem.x)
    onlooker = Onlooker(problem, sym, steps, draws, seed)
    recipe = optimization(training.epochs, training.batch_size, training.learning_rate, "adam", 0.0, "constant", 0)
    found = descend(problem, Descent(recipe, std=training.std), None, Control(seed, show=show), term=onlooker)
    layout, q = problem.layout, found.posterior
    onlooker.look(torch.stack([layout.flatten(q.mean), layout.flatten(q.std).log()]))
    return onlooker.moments
