"""Random networks: a plan made from a seed, its source code, and the module with weights in general position."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from fuzz.pieces import PIECES, Kind, Source, UnfitError
from fuzz.pieces.source import WEIGHTS, Piece

MOST_ENTRIES, MOST_FEATURES = 200, 18


@dataclass(frozen=True)
class Plan:
    """What a network is made of: the kind of its input, pieces (each with the seed of its own choices) and a head."""

    seed: int
    start: Kind
    pieces: tuple[tuple[int, str], ...]
    head: str

    @property
    def names(self) -> tuple[str, ...]:
        return (*(name for _, name in self.pieces), self.head)


def plan(seed: int) -> Plan:
    """The network of a seed: 2 to 7 pieces that fit each other."""
    rng = random.Random(seed)
    source = Source(rng)
    start = _start(rng)
    source.widths.append(start.features)
    chosen: list[tuple[int, str]] = []
    wanted, kind = rng.choice([2, 3, 3, 4, 4, 5, 6, 7]), start
    for number in range(200):
        if len(chosen) == wanted:
            break
        names = [name for name, (kinds, _) in PIECES.items() if kind.name in kinds]
        name = rng.choices(names, [WEIGHTS[name] for name in names])[0]
        try:
            kind = _write(source, kind, PIECES[name][1], _choices(seed, number, name))
        except UnfitError:
            continue
        chosen.append((number, name))
    return Plan(seed, start, tuple(chosen), rng.choice(list(HEADS)))


def _start(rng: random.Random) -> Kind:
    name = rng.choice(["flat", "flat", "sequence", "sequence", "image", "image", "ids"])
    features = rng.choice([2, 3, 4, 4, 6])
    length = rng.choice([3, 4, 4, 5, features if features > 2 else 4])
    if name == "flat":
        return Kind(name, features)
    if name == "image":
        return Kind(name, features, rng.choice([(4, 4), (5, 4), (6, 6), (4, 6)]))
    return Kind(name, features if name == "sequence" else features + 3, (length,))


def _choices(seed: int, number: int, name: str) -> random.Random:
    return random.Random(f"{seed}/{number}/{name}")


def _write(source: Source, kind: Kind, piece: Piece, rng: random.Random) -> Kind:
    """Add a piece; what does not fit leaves no trace."""
    before = (len(source.made), len(source.done), source.fixed, source.count, len(source.widths))
    source.rng = rng
    try:
        result = piece(source, kind)
        if result.entries > MOST_ENTRIES or result.features > MOST_FEATURES or min(result.size, default=2) < 2:
            raise UnfitError
    except UnfitError:
        made, done, source.fixed, source.count, widths = before
        del source.made[made:], source.done[done:], source.widths[widths:]
        raise
    return result


def write(plan: Plan) -> Source:
    """The source of a plan; an UnfitError where its pieces do not fit each other."""
    source = Source(random.Random(plan.seed))
    source.widths.append(plan.start.features)
    kind = plan.start
    for number, name in plan.pieces:
        kinds, piece = PIECES[name]
        if kind.name not in kinds:
            raise UnfitError
        kind = _write(source, kind, piece, _choices(plan.seed, number, name))
    if kind.name == "ids":
        raise UnfitError
    source.rng = _choices(plan.seed, -1, plan.head)
    HEADS[plan.head](source, kind)
    return source


def smaller(plan: Plan) -> Iterator[Plan]:
    """The plan with one piece less, or with a plainer head."""
    for i in range(len(plan.pieces)):
        yield replace(plan, pieces=plan.pieces[:i] + plan.pieces[i + 1 :])
    if plan.head != "plain":
        yield replace(plan, head="plain")


# Heads ----------------------------------------------------------------------------------------------------------------


def _plain(s: Source, k: Kind) -> None:
    s.do("return x")


def _linear(s: Source, k: Kind) -> None:
    s.do(f"return {s.affine(k, s.choice([1, 2, 3]))}")


def _pooled(s: Source, k: Kind) -> None:
    if k.name != "flat":
        s.do(f"x = x.mean({1 if k.name == 'sequence' else (2, 3)})")
    s.do(f"return {s.affine(Kind('flat', k.features), 2)}")


def _several(s: Source, k: Kind) -> None:
    s.do(f"return {s.affine(k, 2)}, {{'features': {s.branch(k)}, 'size': x.norm(dim={k.dim})}}")


def _probabilities(s: Source, k: Kind) -> None:
    s.do(f"return F.softmax({s.affine(k, 3)}, {k.dim}), {s.affine(k, 1)}.squeeze({k.dim})")


HEADS = {"plain": _plain, "linear": _linear, "pooled": _pooled, "several": _several, "probabilities": _probabilities}


# Modules --------------------------------------------------------------------------------------------------------------


def build(source: Source, seed: int) -> nn.Module:
    """The module in float64, in evaluation mode, its weights drawn anew."""
    scope: dict[str, Any] = {"__name__": "network"}
    exec(compile(source.text(), "<network>", "exec"), scope)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = scope["Net"]()
    finally:
        torch.set_default_dtype(before)
    model.eval()
    draw_weights(model, torch.Generator().manual_seed(seed))
    return model


@torch.no_grad()
def draw_weights(model: nn.Module, generator: torch.Generator) -> None:
    """Weights in general position, written in place so that what shares storage keeps sharing it."""
    for _, parameter in model.named_parameters():
        fan = parameter.numel() // parameter.shape[0] if parameter.ndim > 1 else 1
        noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
        if parameter.ndim > 1:
            parameter.copy_(noise * 1.2 / fan**0.5)
        else:
            sizes = 0.3 + torch.rand(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(torch.where(noise.real < -0.5 if noise.is_complex() else noise < -0.5, -sizes, sizes))
    for name, buffer in model.named_buffers():
        if name.endswith("running_mean"):
            buffer.copy_(0.3 * torch.randn(buffer.shape, generator=generator, dtype=buffer.dtype))
        elif name.endswith("running_var"):
            buffer.copy_(0.5 + 1.5 * torch.rand(buffer.shape, generator=generator, dtype=buffer.dtype))


def draw_input(kind: Kind, batch: int, generator: torch.Generator, scale: float = 1.0) -> Tensor:
    if kind.name == "ids":
        return torch.randint(kind.features, kind.shape(batch), generator=generator)
    return scale * torch.randn(kind.shape(batch), generator=generator, dtype=torch.float64)


def other_sizes(kind: Kind, fixed: bool) -> list[Kind]:
    """The input at other lengths and image sizes, where none is written down in the network."""
    if fixed or kind.name == "flat":
        return []
    if kind.name == "image":
        steps = ((2, 2), (0, 2), (4, 4))
        return [Kind(kind.name, kind.features, (kind.size[0] + a, kind.size[1] + b)) for a, b in steps]
    lengths = [n for n in (kind.size[0] - 1, kind.size[0] + 1, kind.size[0] + 2, 2 * kind.size[0]) if n >= 3]
    return [Kind(kind.name, kind.features, (n,)) for n in lengths]
