"""The network ReLU(w₁x) + ReLU(w₂x) on data α|x|: its errors, ELBO and information in closed form or by quadrature.

Gelberg et al. 2024, section 5. For x > 0 the output is a·x with a = ReLU(w₁) + ReLU(w₂), for x < 0 it is b·|x| with
b = ReLU(−w₁) + ReLU(−w₂). All that the data say is therefore in P = Σ_{x>0} x² and M = Σ_{x<0} x²:
Σ (f(x) − α|x|)² = P(a − α)² + M(b − α)². Everything is in nats; weights, means and deviations are (…, 2).
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.special import ndtr

_LOG_2PI = math.log(2 * math.pi)


class TwoWeights(nn.Module):
    """f(x) = ReLU(w₁x) + ReLU(w₂x): inputs (…, 1); the output layer is frozen at ones."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(1, 2, bias=False)
        self.output = nn.Linear(2, 1, bias=False)
        nn.init.ones_(self.output.weight)
        self.output.weight.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.output(torch.relu(self.hidden(x)))
        return outputs


@dataclass(frozen=True)
class Moments:
    """P = Σ x² over inputs x > 0 and M over x < 0, of ``count`` inputs; tensors that broadcast to (…)."""

    positive: Tensor
    negative: Tensor
    count: int

    @staticmethod
    def of(x: Tensor) -> "Moments":
        """Of inputs (…, N), summed over the last axis."""
        squares = x.square()
        return Moments((squares * (x > 0)).sum(-1), (squares * (x < 0)).sum(-1), x.shape[-1])


@dataclass(frozen=True)
class Variances:
    """p(y|x, w) = N(y; f(x), noise), p(w) = N(0, prior·I): tensors that broadcast to (…)."""

    noise: Tensor
    prior: Tensor


def squared_error(weights: Tensor, alpha: Tensor, data: Moments) -> Tensor:
    """Σ (f(x) − α|x|)² = P(a − α)² + M(b − α)², (…)."""
    up, down = torch.relu(weights).sum(-1), torch.relu(-weights).sum(-1)
    return data.positive * (up - alpha).square() + data.negative * (down - alpha).square()


def expected_slopes(mean: Tensor, std: Tensor) -> tuple[Tensor, Tensor]:
    """E_q[a], E_q[b], each (…): the network that is the average of all of q's, as it predicts."""
    return _rectified(mean, std)[0].sum(-1), _rectified(-mean, std)[0].sum(-1)


def expected_squared_error(mean: Tensor, std: Tensor, alpha: Tensor, data: Moments) -> Tensor:
    """E_q[Σ (f(x) − α|x|)²], (…); E[a²] = Σ E[ReLU(w_i)²] + 2 E[ReLU(w₁)]E[ReLU(w₂)]."""

    def side(mean: Tensor) -> Tensor:
        first, second = _rectified(mean, std)
        return second.sum(-1) + 2 * first.prod(-1) - 2 * alpha * first.sum(-1) + alpha**2

    return data.positive * side(mean) + data.negative * side(-mean)


def prediction_error(mean: Tensor, std: Tensor, alpha: Tensor, test: Moments) -> Tensor:
    """The mean squared error on ``test`` of the average of all networks of q, (…)."""
    up, down = expected_slopes(mean, std)
    return (test.positive * (up - alpha).square() + test.negative * (down - alpha).square()) / test.count


def constant(data: Moments, variances: Variances) -> Tensor:
    """−(N/2) log 2π·noise: what the likelihood's normalisation adds to every log p(Y|w)."""
    return -0.5 * data.count * (_LOG_2PI + variances.noise.log())


def elbo(mean: Tensor, std: Tensor, alpha: Tensor, data: Moments, variances: Variances) -> Tensor:
    """L_VI = E_q[log p(Y|w)] − KL[q‖prior] in closed form, (…), without ``constant``."""
    ratio = std.square() / variances.prior[..., None]
    divergence = 0.5 * (ratio + mean.square() / variances.prior[..., None] - 1 - ratio.log()).sum(-1)
    return -expected_squared_error(mean, std, alpha, data) / (2 * variances.noise) - divergence


def log_ratio(weights: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """log q(w₂, w₁) − log q(w₁, w₂), (…): 0 where q does not mind the exchange."""
    plain = ((weights - mean) / std).square()
    return 0.5 * (plain - ((weights.flip(-1) - mean) / std).square()).sum(-1)


def information(mean: Tensor, std: Tensor, *, step: float = 0.2, reach: float = 8.0) -> Tensor:
    """I(g; w) = E_q[−log ½(1 + q(gw)/q(w))] in [0, log 2], (…): H(q^G) − H(q), by the trapezoidal rule around q.

    Where the deviations differ by a factor of 2, steps of 0.2, 0.3 and 0.4 are off by 1e-14, 3e-7 and 4e-6; by a factor
    of 3, by 2e-10, 6e-7 and 2e-5. Differentiable.
    """
    half = round(reach / step)
    line = torch.arange(-half, half + 1, dtype=mean.dtype, device=mean.device) * step
    weight = (-0.5 * line.square()).exp()
    weight = weight / weight.sum()
    # log q(w₂, w₁) − log q(w₁, w₂) is a function of w₁ and one of w₂.
    points = mean[..., None] + std[..., None] * line
    own = line.square() - ((points - mean.flip(-1)[..., None]) / std.flip(-1)[..., None]).square()
    ratio = 0.5 * (own[..., 0, :, None] + own[..., 1, None, :])
    gain = math.log(2) - torch.nn.functional.softplus(ratio)
    return torch.einsum("...ij,i,j->...", gain, weight, weight)


def _rectified(mean: Tensor, std: Tensor) -> tuple[Tensor, Tensor]:
    """E[ReLU(w)] = mΦ(m/s) + sφ(m/s) and E[ReLU(w)²] = (m² + s²)Φ(m/s) + msφ(m/s), w ~ N(m, s²)."""
    scaled = mean / std
    below, density = ndtr(scaled), (-0.5 * scaled.square() - 0.5 * _LOG_2PI).exp()
    return mean * below + std * density, (mean.square() + std.square()) * below + mean * std * density
