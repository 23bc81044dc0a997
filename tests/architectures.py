"""Small networks of every structure, each with its symmetry written down by hand."""

from collections.abc import Callable
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coset.models import CCT, MLP, MyrtleCNN, ResidualMLP, ResNet20
from coset.symmetry import Symmetry, Variance, activation_names, discover
from coset.symmetry.discovery.declared import matched_graph
from declared import declared
from discoveries import shared

Case = tuple[Callable[[], nn.Module], Callable[[nn.Module], Symmetry], tuple[int, ...]]


class FlattenCNN(nn.Module):
    """conv → ReLU → pool → flatten → linear: a channel's 3×3 columns move together."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 5, 3)
        self.conv2 = nn.Conv2d(5, 4, 1)
        self.fc = nn.Linear(4 * 9, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv2(F.max_pool2d(F.relu(self.conv(x)), 2)))
        return self.fc(x.flatten(1))


def flatten_symmetry(model):
    axes = {
        "conv.weight": "c1 -",
        "conv.bias": "c1",
        "conv2.weight": "c2 /c1",
        "conv2.bias": "c2",
        "fc.weight": "- /c2*9",
    }
    return Symmetry.from_axes(axes, model, scales="positive")


class BatchNormCNN(nn.Module):
    """conv (with bias) → BatchNorm → ReLU, a depthwise convolution → BatchNorm → tanh, and a linear map."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 6, 3)
        self.bn = nn.BatchNorm2d(6)
        self.depthwise = nn.Conv2d(6, 6, 3, groups=6, bias=False)
        self.bn2 = nn.BatchNorm2d(6, affine=False)
        self.fc = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn(self.conv(x)))
        return self.fc(torch.tanh(self.bn2(self.depthwise(x))).mean((-2, -1)))


def batchnorm_symmetry(model):
    axes = {
        "conv.weight": "c{pre:1}", "conv.bias": "c{pre:1}", "bn.weight": "c^1{pre:0~1}", "bn.bias": "c",
        "bn.running_mean": "c{pre:1}", "bn.running_var": Variance("c{pre:2}", model.bn.eps, "bn.weight"),
        # The depthwise filter is read by a norm without gain: its own scale is free, its sign flips tanh's output.
        "depthwise.weight": "c^-1{dw:1}", "bn2.running_mean": "c{dw:1}",
        "bn2.running_var": Variance("c{dw:2}", model.bn2.eps),
        "fc.weight": "- c{dw:0~1}",
    }  # fmt: skip
    return Symmetry.from_axes(axes, model, scales={"c": "positive", "c:pre": "nonzero", "c:dw": "nonzero"})


class GroupedCNN(nn.Module):
    """1×1 conv → ReLU → grouped conv → ReLU → GroupNorm → 1×1 conv."""

    def __init__(self):
        super().__init__()
        self.lift = nn.Conv2d(2, 6, 1)
        self.grouped = nn.Conv2d(6, 12, 3, groups=3)
        self.read = nn.Conv2d(12, 8, 1)
        self.norm = nn.GroupNorm(2, 8)
        self.fc = nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.grouped(F.relu(self.lift(x))))
        return self.fc(self.norm(self.read(x))).flatten(1)


def grouped_symmetry(model):
    axes = {
        "lift.weight": "g^0[in]", "lift.bias": "g^0[in]",
        # The block of axis 1 is told by the group on axis 0.
        "grouped.weight": "g^0[out] /in", "grouped.bias": "g^0[out]",
        "read.weight": "n^1[c^0] g^0[/out]", "read.bias": "n^1[c^0]",
        "norm.weight": "n^1[c{post:1}]", "norm.bias": "n^0[c{post:1}]",
        "fc.weight": "- n^0[c{post:-1}]",
    }  # fmt: skip
    scales = {"in": "positive", "out": "positive", "n": "sign", "c:post": "nonzero"}
    return Symmetry.from_axes(axes, model, scales=scales, sizes={"g": 3, "n": 2})


class Attention(nn.Module):
    """Grouped-query attention written out: 2 key-value heads, 3 queries each, fused differently for k, v and q."""

    def __init__(self, groups=2, queries=3, dim=4, width=5):
        super().__init__()
        self.sizes = groups, queries, dim
        self.q = nn.Linear(width, groups * queries * dim)
        self.kv = nn.Linear(width, groups * 2 * dim)
        # One output matrix per query head, the head on an axis of its own.
        self.o = nn.Parameter(torch.randn(groups * queries, dim, width))
        self.head_gain = nn.Parameter(torch.randn(groups * queries))

    def forward(self, x: Tensor) -> Tensor:
        groups, queries, dim = self.sizes
        q = self.q(x).unflatten(-1, (groups, queries, dim))
        k, v = self.kv(x).unflatten(-1, (groups, 2, dim)).unbind(-2)
        scores = torch.einsum("btgqd,bsgd->bgqts", q, k).softmax(-1)
        mixed = torch.einsum("bgqts,bsgd->btgqd", scores, v).flatten(2, 3)
        return torch.einsum("bthd,hdw,h->btw", mixed, self.o, self.head_gain)


def attention_symmetry(model):
    axes = {
        "q.weight": "g^0[h^0*qk]", "q.bias": "g^0[h^0*qk]", "kv.weight": "g^0[/qk+vo]", "kv.bias": "g^0[/qk+vo]",
        "o": "g^0[h] /vo", "head_gain": "g^0[/h]",
    }  # fmt: skip
    groups, queries, _ = model.sizes
    scales = {"qk": "nonzero", "vo": "nonzero", "h": "nonzero"}
    return Symmetry.from_axes(axes, model, scales=scales, sizes={"g": groups, "h": queries})


class TiedLanguageModel(nn.Module):
    """Embedding → pre-norm gated MLP on a residual stream → RMS norm → logits by the same embedding."""

    def __init__(self, tokens=7, width=6, inner=5):
        super().__init__()
        self.embed = nn.Embedding(tokens, width)
        self.up = nn.Linear(width, inner, bias=False)
        self.gate = nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, tokens, bias=False)
        self.head.weight = self.embed.weight
        self.final = nn.RMSNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        tokens = (x.flatten(1).abs() * 3).long() % self.embed.num_embeddings
        h = self.embed(tokens)
        n = self.norm(h)
        h = h + self.down(self.up(n) * F.silu(self.gate(n)))
        return self.head(self.final(h))


def tied_symmetry(model):
    axes = {
        "embed.weight": "- s", "norm.weight": "s{n:1}", "up.weight": "u s^1{n:-1}", "gate.weight": "u^0 s^1{n:-1}",
        "down.weight": "s /u", "final.weight": "s^0",
    }  # fmt: skip
    # The tied axis carries permutations and signs only; the gain of the inner norm scales against its readers.
    return Symmetry.from_axes(axes, model, scales={"s": "sign", "s:n": "nonzero", "u": "nonzero"})


class Dense(nn.Module):
    """Concatenated features: each segment keeps its own class."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 3)
        self.b = nn.Linear(4 + 3, 5)
        self.c = nn.Linear(4 + 3 + 5, 2)

    def forward(self, x: Tensor) -> Tensor:
        a = F.leaky_relu(self.a(x))
        b = torch.tanh(self.b(torch.cat([x, a], -1)))
        return self.c(torch.cat([x, a, b], -1))


def dense_symmetry(model):
    axes = {"a.weight": "a", "a.bias": "a", "b.weight": "b 4+/a", "b.bias": "b", "c.weight": "- 4+/a+/b"}
    return Symmetry.from_axes(axes, model, scales={"a": "positive", "b": "sign"})


class RotaryPairs(nn.Module):
    """Scores that rotate pairs (i, i + 2) by the position: only a scale common to a pair passes, order fixed."""

    def __init__(self, width=5):
        super().__init__()
        self.q = nn.Linear(width, 4)
        self.k = nn.Linear(width, 4)
        self.v = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        angle = torch.arange(x.shape[1], dtype=x.dtype)[:, None] * torch.tensor([1.0, 0.3], dtype=x.dtype)
        cos, sin = torch.cos(angle), torch.sin(angle)

        def rotate(y: Tensor) -> Tensor:
            a, b = y.chunk(2, -1)
            return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)

        return (rotate(self.q(x)) @ rotate(self.k(x)).mT).softmax(-1) @ self.v(x)


def rotary_symmetry(model):
    axes = {"q.weight": "2*pair", "q.bias": "2*pair", "k.weight": "2*/pair", "k.bias": "2*/pair"}
    return Symmetry.from_axes(axes, model, scales="nonzero", ordered=["pair"])


def _mlp(activation):
    return lambda: MLP(4, [5, 3], 2, activation=activation)


MLP_ACTIVATIONS = [name for name in (*activation_names(), "x^3") if name not in ("sign", "gelu_tanh", "quick_gelu")]

CASES: dict[str, Case] = {
    "flatten": (FlattenCNN, flatten_symmetry, (2, 8, 8)),
    "batchnorm+depthwise": (BatchNormCNN, batchnorm_symmetry, (2, 7, 7)),
    "grouped+groupnorm": (GroupedCNN, grouped_symmetry, (2, 4, 4)),
    "grouped-query attention": (Attention, attention_symmetry, (6, 5)),
    "tied embeddings": (TiedLanguageModel, tied_symmetry, (6,)),
    "concatenation": (Dense, dense_symmetry, (4,)),
    "rotary": (RotaryPairs, rotary_symmetry, (6, 5)),
    "residual mlp": (lambda: ResidualMLP(4, 2, width=3, inner=5), declared, (4,)),
    "residual mlp, one stream": (lambda: MLP(4, [3, 3, 3], 2, residual=True), declared, (4,)),
    "mlp, batch norm": (lambda: MLP(4, [5, 3], 2, norm="batch"), declared, (4,)),
    "mlp, layer norm": (lambda: MLP(4, [5, 3], 2, norm="layer"), declared, (4,)),
    "myrtle": (lambda: MyrtleCNN(width=2), declared, (3, 32, 32)),
    "cct": (lambda: CCT(dim=8, heads=2, depth=2, image_size=8), declared, (3, 8, 8)),
    "cct, renormalised": (
        lambda: CCT(dim=8, heads=4, depth=1, image_size=8, renormalize_stream=True, convolutions=2),
        declared, (3, 8, 8),
    ),
    **{
        f"resnet20, {norm}{'' if final else ', linear stream'}": (
            lambda norm=norm, final=final: ResNet20(width=0.25, norm=norm, final_activation=final), declared, (3, 8, 8),
        )
        for norm in ("batch", "frn", "layer", "none")
        for final in (True, False)
    },
}  # fmt: skip


def randomized(model: nn.Module, generator: torch.Generator) -> dict[str, Tensor]:
    """Float64 parameters and buffers in general position, positive where they must be."""
    params = {}
    for name, tensor in model.state_dict().items():
        if not tensor.is_floating_point():
            params[name] = tensor.clone()
            continue
        noise = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
        positive = "running_var" in name or name.endswith(".eps")
        params[name] = tensor.double() * (1 + noise.abs()) if positive else tensor.double() + 0.3 * noise
    # One tensor under two names stays one tensor.
    owners: dict[int, str] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        params[name] = params[owners.setdefault(id(tensor), name)]
    return params


def evaluate(model: nn.Module, params: dict[str, Tensor], x: Tensor) -> Tensor:
    """The output of a float64 model in eval mode, with other parameters."""
    return torch.func.functional_call(model, params, (x,))


@lru_cache
def made(name: str) -> tuple[nn.Module, Symmetry, tuple[int, ...]]:
    """A case's model in float64 and eval mode, its symmetry and the shape of one input."""
    build, declare, shape = CASES[name]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = build().double().eval()
    return model, declare(model), shape


@lru_cache
def discovered(name: str) -> Symmetry:
    """What is discovered of a case's model: once for all tests of a session."""
    model, _, shape = made(name)
    x = torch.randn(3, *shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return shared(f"declared: {name}", model, lambda: discover(model, x))


@lru_cache
def made_with_graph(name: str) -> tuple[nn.Module, Symmetry, tuple[int, ...]]:
    """As ``made``, the symmetry with its graph, for which it is matched to what is discovered once in a process."""
    model, sym, shape = made(name)
    return model, sym.annotated(graph=matched_graph(sym, discovered(name))), shape
