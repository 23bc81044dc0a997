"""Multilayer perceptrons, plain and residual."""

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from coset.errors import InputError
from coset.models._activations import ActivationSpec, make_activation
from coset.models._arguments import check_count, check_counts, check_flag
from coset.models._normalization import feature_norm


class MLP(nn.Module):
    """A multilayer perceptron: h_i = σ(norm(W_i h_{i-1} + b_i)), output W_L h_{L-1} + b_L.

    The hidden layers are given either by ``widths`` (one number each, () is a linear map) or by ``depth`` layers of
    the same ``width`` (3 layers of 512 unless told). The input is flattened from its second dimension on:
    (N, ...) with ``in_features`` numbers each, to (N, out_features).

    With ``residual=True`` the hidden widths are equal and every hidden layer after the first is added to its input,
    h_i = h_{i-1} + σ(norm(W_i h_{i-1} + b_i)). All hidden layers then share one residual stream, and W_2 ... W_{L-1}
    have its units on both axes.

    Parameters: ``layers.i.weight``, ``layers.i.bias`` (i = 0 ... L-1), ``norms.i.*`` and ``activations.i.*``.
    """

    def __init__(
        self,
        in_features: int = 784,
        widths: Sequence[int] | None = None,
        out_features: int = 10,
        *,
        depth: int | None = None,
        width: int | None = None,
        activation: ActivationSpec = "relu",
        bias: bool = True,
        norm: str = "none",
        residual: bool = False,
    ) -> None:
        super().__init__()
        hidden = _hidden_widths(widths, depth, width)
        if check_flag("residual", residual) and len(set(hidden)) != 1:
            raise InputError(f"residual=True needs one or more hidden layers of equal width, found widths {hidden}")
        sizes = (check_count("in_features", in_features), *hidden, check_count("out_features", out_features))
        check_flag("bias", bias)
        self.layers = nn.ModuleList(nn.Linear(a, b, bias=bias) for a, b in pairwise(sizes))
        self.norms = nn.ModuleList(feature_norm(norm, size) for size in hidden)
        self.activations = nn.ModuleList(make_activation(activation) for _ in hidden)
        self.residual = residual
        self.input_shape: tuple[int, ...] = (in_features,)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        for index, (norm, activation) in enumerate(zip(self.norms, self.activations, strict=True)):
            update: Tensor = activation(norm(self.layers[index](x)))
            x = x + update if self.residual and index > 0 else update
        output: Tensor = self.layers[-1](x)
        return output

    def extra_repr(self) -> str:
        return f"residual={self.residual}"


class ResidualMLP(nn.Module):
    """A residual stream with two-layer blocks: h_0 = W x + b, h_i = h_{i-1} + C_i σ(norm(E_i h_{i-1})), output V h + c.

    The stream has ``width`` units, the inside of every block ``inner`` units; E_i and C_i are affine. This is the
    network of the planted recovery problem on which weight matching is known to fail (width 30, inner 50, 2 blocks).
    (N, ...) with ``in_features`` numbers each, to (N, out_features).

    Parameters: ``stem``, ``blocks.i.expand``, ``blocks.i.norm``, ``blocks.i.activation``, ``blocks.i.contract`` and
    ``fc``, each with weight and bias.
    """

    def __init__(
        self,
        in_features: int = 784,
        out_features: int = 10,
        *,
        width: int = 30,
        inner: int = 50,
        blocks: int = 2,
        activation: ActivationSpec = "relu",
        bias: bool = True,
        norm: str = "none",
    ) -> None:
        super().__init__()
        check_count("width", width)
        check_count("inner", inner)
        check_flag("bias", bias)
        self.stem = nn.Linear(check_count("in_features", in_features), width, bias=bias)
        self.blocks = nn.ModuleList(
            _TwoLayerBlock(width, inner, activation, bias, norm) for _ in range(check_count("blocks", blocks))
        )
        self.fc = nn.Linear(width, check_count("out_features", out_features), bias=bias)
        self.input_shape: tuple[int, ...] = (in_features,)

    def forward(self, x: Tensor) -> Tensor:
        stream: Tensor = self.stem(x.flatten(1))
        for block in self.blocks:
            stream = stream + block(stream)
        output: Tensor = self.fc(stream)
        return output


class _TwoLayerBlock(nn.Module):
    """What one block adds to the stream; (N, width) to the same."""

    def __init__(self, width: int, inner: int, activation: ActivationSpec, bias: bool, norm: str) -> None:
        super().__init__()
        self.expand = nn.Linear(width, inner, bias=bias)
        self.norm = feature_norm(norm, inner)
        self.activation = make_activation(activation)
        self.contract = nn.Linear(inner, width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        update: Tensor = self.contract(self.activation(self.norm(self.expand(x))))
        return update


def _hidden_widths(widths: Sequence[int] | None, depth: int | None, width: int | None) -> tuple[int, ...]:
    if widths is None:
        count = 3 if depth is None else check_count("depth", depth, minimum=0)
        return (512 if width is None else check_count("width", width),) * count
    if depth is not None or width is not None:
        raise InputError(f"give either widths or depth and width; found widths={widths!r}, {depth=}, {width=}")
    return check_counts("widths", widths)
