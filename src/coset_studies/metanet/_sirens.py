"""Zoos of SIRENs: one network of sines for each image, trained side by side and kept in the store in groups."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from coset.data import Split, subset
from coset.models import build
from coset.study import Context

SCHEMA = 1
"""Version of what is stored: to be raised where the same configuration comes to train otherwise."""

PARTS = ("train", "test")

Stack = dict[str, Tensor]


@dataclass(frozen=True)
class Sirens:
    """Networks 2-32-32-1 of sines, each fitted to an image of its own.

    ``own_starts``: every network has initial weights of its own, or all have the same. ``train``, ``test``: numbers of
    networks, of images of the two parts of the data. ``pixels``: drawn anew for each of the ``steps`` of Adam, whose
    rate falls to zero along a half cosine.
    """

    data: str = "mnist"
    own_starts: bool = False
    train: int = 4000
    test: int = 1000
    widths: tuple[int, ...] = (32, 32)
    omega: float = 30.0
    steps: int = 200
    rate: float = 1e-3
    pixels: int = 112
    group: int = 250

    def built(self, seed: int) -> nn.Module:
        """One network with its initial weights."""
        return build("siren", seed=seed, widths=self.widths, omega=self.omega)


@dataclass(frozen=True)
class Fitted:
    """Weights (N, …) of networks, their images with the classes, and how well these are reconstructed, in dB."""

    stack: Stack
    images: Tensor
    labels: Tensor
    psnr: Tensor


def trained_sirens(context: Context, zoo: Sirens) -> tuple[Fitted, Fitted]:
    """The networks of train images and of test images, fitted now or found in the store."""
    data = context.data(zoo.data, normalize=False)
    train, test = subset(data.train, zoo.train, seed=context.seed), subset(data.test, zoo.test, seed=context.seed)
    return _fitted(context, zoo, "train", train), _fitted(context, zoo, "test", test)


def _fitted(context: Context, zoo: Sirens, name: str, part: Split) -> Fitted:
    told = {key: value for key, value in asdict(zoo).items() if key not in PARTS}
    base: dict[str, object] = {
        "kind": "sirens",
        "schema": SCHEMA,
        "zoo": told,
        "fingerprint": context.data(zoo.data, normalize=False).fingerprint,
        "part": name,
        "images": len(part),
        "seed": context.seed,
    }
    entries = []
    starts = range(0, len(part), zoo.group)
    with context.progress(f"SIRENs, {name}, {'own starts' if zoo.own_starts else 'one start'}", len(starts)) as bar:
        for start in starts:
            entries.append(_group(context, zoo, base | {"first": start}, part.x[start : start + zoo.group]))
            bar.advance()
    whole = {key: torch.cat([entry[key] for entry in entries]) for key in entries[0]}
    return Fitted({key: whole[key] for key in zoo.built(0).state_dict()}, part.x, part.y, whole["psnr"])


def _group(context: Context, zoo: Sirens, config: dict[str, object], images: Tensor) -> Mapping[str, Tensor]:
    def make() -> Stack:
        # Initial weights that no other network of the run has.
        first = 10**7 * (2 * context.seed + PARTS.index(str(config["part"]))) + int(str(config["first"]))
        seeds = list(range(first, first + len(images))) if zoo.own_starts else None
        return fit_sirens(zoo, images, context.generator(context.store.key(config)), context.seed, seeds)

    return context.store.get_or_make(config, make).params


def fit_sirens(
    zoo: Sirens, images: Tensor, generator: torch.Generator, seed: int, seeds: list[int] | None = None
) -> Stack:
    """Weights (N, …) of one network for each image (N, 1, H, W), and under "psnr" how well they fit.

    Each minimises its own mean squared error; Adam works entry by entry, so that training side by side is training one
    by one. ``seeds``: of initial weights of their own, all others start as the network of ``seed`` does.
    """
    model = zoo.built(seed)
    starts = [dict((zoo.built(own) if seeds else model).state_dict()) for own in seeds or [seed] * len(images)]
    stack = {name: torch.stack([start[name] for start in starts]).requires_grad_() for name in starts[0]}
    grid, values = coordinates(images), images.flatten(1)[..., None]

    def outputs(x: Tensor) -> Tensor:
        found: Tensor = vmap(lambda params: functional_call(model, params, (x,)))(stack)
        return found

    optimizer = torch.optim.Adam(stack.values(), lr=zoo.rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, zoo.steps)
    for _ in range(zoo.steps):
        chosen = torch.randperm(len(grid), generator=generator)[: zoo.pixels]
        optimizer.zero_grad()
        loss = (outputs(grid[chosen]) - values[:, chosen]).square().mean((1, 2)).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        errors = (outputs(grid) - values).square().mean((1, 2))
    return {name: tensor.detach() for name, tensor in stack.items()} | {"psnr": -10 * torch.log10(errors)}


def coordinates(images: Tensor) -> Tensor:
    """The places (H·W, 2) of pixels of images (…, H, W), row after row, in −1…1."""
    axes = [torch.linspace(-1, 1, size) for size in images.shape[-2:]]
    return torch.stack(torch.meshgrid(*axes, indexing="ij"), -1).reshape(-1, 2)


def reconstructions(zoo: Sirens, fitted: Mapping[str, Tensor], images: Tensor) -> Tensor:
    """What networks give at the pixels of images, (N, H, W)."""
    model = zoo.built(0)
    with torch.no_grad():
        found = vmap(lambda params: functional_call(model, params, (coordinates(images),)))(dict(fitted))
    result: Tensor = found.reshape(-1, *images.shape[-2:])
    return result
