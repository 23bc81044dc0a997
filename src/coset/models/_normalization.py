"""Normalisation layers by name, and how each goes together with the activation that follows it."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from coset.errors import InputError
from coset.models._activations import ActivationSpec, make_activation
from coset.models._arguments import check_choice, check_count


class _PerChannel(nn.Module):
    """A normalisation with a scale γ, ``weight``, and a shift β, ``bias``, for each channel, (C,)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        check_count("channels", channels)
        self.weight = nn.Parameter(torch.empty(channels))
        self.bias = nn.Parameter(torch.empty(channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """γ = 1 and β = 0."""
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)


class FilterResponseNorm(_PerChannel):
    """Filter response normalisation without its threshold: y = γ·x / √(ν² + |ε|) + β, ν² = mean of x² over H and W.

    Singh & Krishnan, "Filter Response Normalization Layer", CVPR 2020. Shape (N, C, H, W) to the same.
    γ is ``weight``, β is ``bias``, both (C,). ε is a buffer of shape (C,), not one number: scaling channel c of the
    input by s leaves the output unchanged, up to the sign of γ, exactly if ε_c moves to s²·ε_c.
    """

    eps: Tensor

    def __init__(self, channels: int, eps: float = 1e-6) -> None:
        super().__init__(channels)
        self.register_buffer("eps", torch.full((channels,), eps))

    def forward(self, x: Tensor) -> Tensor:
        second_moment = x.square().mean((-2, -1), keepdim=True)
        # γ joins the small factor first: one pass less over the whole image.
        scale = self.weight.view(-1, 1, 1) * torch.rsqrt(second_moment + self.eps.abs().view(-1, 1, 1))
        return x * scale + self.bias.view(-1, 1, 1)

    def extra_repr(self) -> str:
        return str(self.weight.numel())


class ThresholdedLinear(nn.Module):
    """Thresholded linear unit (TLU): z = max(y, τ) with one learnable τ per channel, ``tau`` of shape (C,).

    Singh & Krishnan 2020. τ starts at 0, where the unit is a ReLU. Shape (N, C, H, W) to the same.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        check_count("channels", channels)
        self.tau = nn.Parameter(torch.empty(channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """τ = 0."""
        nn.init.zeros_(self.tau)

    def forward(self, x: Tensor) -> Tensor:
        return torch.maximum(x, self.tau.view(-1, 1, 1))

    def extra_repr(self) -> str:
        return str(self.tau.numel())


class ChannelLayerNorm(_PerChannel):
    """Layer normalisation over the channels of each position, with a scale and shift per channel.

    Shape (N, C, H, W) to the same; ``weight`` and ``bias`` have shape (C,). The ResNet20s of Git Re-Basin (Ainsworth et
    al. 2023) and REPAIR (Jordan et al. 2023) normalise the same numbers. ``eps`` is PyTorch's 1e-5; Git Re-Basin runs
    on Flax, where it is 1e-6.
    """

    def __init__(self, channels: int, eps: float = 1e-5) -> None:
        super().__init__(channels)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        last = F.layer_norm(x.movedim(-3, -1), self.weight.shape, self.weight, self.bias, self.eps)
        return last.movedim(-1, -3)

    def extra_repr(self) -> str:
        return f"{self.weight.numel()}, eps={self.eps}"


def _nothing(channels: int) -> nn.Module:
    return nn.Identity()


IMAGE_NORMS: dict[str, Callable[[int], nn.Module]] = {
    "batch": nn.BatchNorm2d,
    "frn": FilterResponseNorm,
    "layer": ChannelLayerNorm,
    "none": _nothing,
}
"""Normalisations of (N, C, H, W), each made from its number of channels."""

FEATURE_NORMS: dict[str, Callable[[int], nn.Module]] = {
    "batch": nn.BatchNorm1d,
    "layer": nn.LayerNorm,
    "none": _nothing,
}
"""Normalisations of (N, features), each made from its number of features."""


def image_norm(norm: str, channels: int) -> nn.Module:
    """Return the normalisation of (N, C, H, W) called ``norm``, for a place that no activation follows."""
    return IMAGE_NORMS[check_choice("norm", norm, IMAGE_NORMS)](channels)


def feature_norm(norm: str, features: int) -> nn.Module:
    """Return the normalisation of (N, features) called ``norm``."""
    return FEATURE_NORMS[check_choice("norm", norm, FEATURE_NORMS)](features)


def image_activation(norm: str, activation: ActivationSpec, channels: int) -> nn.Module:
    """Return the activation of a network whose normalisation is ``norm``.

    It is ``activation``, except that with ``norm="frn"`` a thresholded linear unit takes the place of every ReLU.
    """
    if check_choice("norm", norm, IMAGE_NORMS) != "frn":
        return make_activation(activation)
    if not (activation == "relu" or activation is nn.ReLU or type(activation) is nn.ReLU):
        raise InputError(f"norm 'frn' brings its own activation: activation must be a ReLU, found {activation!r}")
    return ThresholdedLinear(channels)
