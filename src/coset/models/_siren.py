"""Networks whose activation is a sine: images and other signals as functions of their coordinates."""

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from coset._checks import is_number
from coset.errors import InputError
from coset.models._arguments import check_count, check_counts


class Siren(nn.Module):
    """A sinusoidal representation network: h_i = sin(ω₀(W_i h_{i-1} + b_i)), output W_L h_{L-1} + b_L.

    Sitzmann et al. 2020, "Implicit neural representations with periodic activation functions", section 3.2. Weights of
    the first layer are U(−1/n, 1/n) with n inputs, all others U(−√(6/n)/ω₀, √(6/n)/ω₀), biases U(−1/√n, 1/√n). Signs
    and half-turns of sin leave the function as it is: b + π/ω₀ and the other sign of what reads the unit.

    Coordinates (N, in_features), in −1…1, to values (N, out_features). Parameters: ``layers.i.weight``,
    ``layers.i.bias``.
    """

    def __init__(
        self, in_features: int = 2, widths: Sequence[int] = (32, 32), out_features: int = 1, *, omega: float = 30.0
    ) -> None:
        super().__init__()
        if not is_number(omega) or not omega > 0:
            raise InputError(f"omega must be a positive number, found {omega!r}")
        hidden = check_counts("widths", widths)
        sizes = (check_count("in_features", in_features), *hidden, check_count("out_features", out_features))
        self.omega = float(omega)
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        self.input_shape: tuple[int, ...] = (in_features,)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights; biases are those of ``nn.Linear``."""
        for number, layer in enumerate(self.layers):
            assert isinstance(layer, nn.Linear)
            bound = math.sqrt(6 / layer.in_features) / self.omega if number else 1 / layer.in_features
            nn.init.uniform_(layer.weight, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = torch.sin(self.omega * layer(x))
        output: Tensor = self.layers[-1](x)
        return output

    def extra_repr(self) -> str:
        return f"omega={self.omega:g}"
