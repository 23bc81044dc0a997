"""Every network of a zoo and what it is made of, numbered in a fixed order, and in groups that train side by side."""

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from coset._files.sealed import kind
from coset.errors import InputError
from coset.models import build
from coset.train import Recipe
from coset.train.metrics import evaluation_mode
from coset.train.randomness import stream
from coset.zoo._spec import Range, ZooSpec

CACHE = 2**23
"""Numbers that a group works on at a time: in single precision 32 MiB, about what caches of processors hold."""

LARGEST = 256
"""Networks in a group at most: more gain little, and a group is what an interruption may cost."""

STACKED = "stacked"
ONE_BY_ONE = "one by one"
"""How networks of an architecture are trained: side by side, or by ``coset.train.fit``."""

SCALE = "initial_scale"
"""Under this name the settings of a network have the scale of its first weights, where it varies."""


@dataclass(frozen=True)
class Member:
    """One network: its number, what its weights are drawn and trained with, and where it differs from others.

    ``options`` and ``settings`` hold what the specification varies: options of the model, settings of the recipe and
    the ``scale`` of the first weights.
    """

    index: int
    seed: int
    data: int
    architecture: int
    options: Mapping[str, Any]
    settings: Mapping[str, Any]
    recipe: Recipe
    scale: float = 1.0

    def describe(self) -> dict[str, Any]:
        """Plain values for the index."""
        return {
            "seed": self.seed,
            "data": self.data,
            "architecture": self.architecture,
            "options": dict(self.options),
            "settings": dict(self.settings),
        }


def architectures(spec: ZooSpec) -> list[dict[str, Any]]:
    """All combinations of varied options of the model."""
    names = list(spec.grid_options)
    return [
        dict(zip(names, values, strict=True)) for values in itertools.product(*(spec.grid_options[n] for n in names))
    ]


def members(spec: ZooSpec) -> list[Member]:
    """All networks: by data set, architecture, settings of the recipe, seed, the last of these fastest."""
    listed = {name: values for name, values in spec.grid_recipe.items() if not isinstance(values, Range)}
    drawn = {name: values for name, values in spec.grid_recipe.items() if isinstance(values, Range)}
    scales = spec.initial_scale
    if isinstance(scales, Range):
        drawn[SCALE] = scales
    elif scales != (1.0,):
        listed[SCALE] = scales
    choices = [dict(zip(listed, values, strict=True)) for values in itertools.product(*listed.values())]
    found: list[Member] = []
    combinations = itertools.product(range(len(spec.data)), enumerate(architectures(spec)), choices)
    for combination, (data, (architecture, options), chosen) in enumerate(combinations):
        for seed in spec.seeds:
            settings = {**chosen, **{n: values.at(_share(spec, n, combination, seed)) for n, values in drawn.items()}}
            recipe = _recipe({**spec.recipe, **{n: value for n, value in settings.items() if n != SCALE}})
            scale = settings.get(SCALE, 1.0)
            found.append(Member(len(found), seed, data, architecture, options, settings, recipe, scale))
    return found


def _share(spec: ZooSpec, name: str, combination: int, seed: int) -> float:
    """Where in its range a network's value is: by names and numbers alone, so that others do not move it."""
    generator = stream(f"zoo {name} {combination} {seed}", spec.seed, 0)
    return float(torch.rand((), generator=generator, dtype=torch.float64, device="cpu"))


def _recipe(settings: Mapping[str, Any]) -> Recipe:
    missing = [name for name in ("epochs", "batch_size", "learning_rate") if name not in settings]
    if missing:
        raise InputError(f"recipe has no {missing[0]}; expected epochs, batch_size and learning_rate at least")
    return Recipe(**settings)


_EACH_ITS_OWN = ("learning_rate", "weight_decay", "betas", "schedule", "warmup_epochs", "drops", "drop_factor", "peak")
_ON_OR_OFF = ("momentum", "clip", "mixup", "cutmix")


def _shared_settings(recipe: Recipe) -> tuple[Any, ...]:
    """What the recipes of a group have in common; the rest may differ from network to network."""
    same = {k: v for k, v in recipe.to_dict().items() if k not in (*_EACH_ITS_OWN, *_ON_OR_OFF)}
    return (*same.items(), *(bool(getattr(recipe, name)) for name in _ON_OR_OFF))


def grouped(everyone: list[Member], sizes: Mapping[tuple[int, int], int]) -> list[tuple[int, ...]]:
    """The numbers of the members of every group; ``sizes``: how large, by data set and architecture."""
    alike: dict[tuple[Any, ...], list[int]] = {}
    for member in everyone:
        key = (member.data, member.architecture, *_shared_settings(member.recipe))
        alike.setdefault(key, []).append(member.index)
    groups: list[tuple[int, ...]] = []
    for (data, architecture, *_), indices in alike.items():
        size = sizes[data, architecture]
        groups.extend(tuple(indices[start : start + size]) for start in range(0, len(indices), size))
    return groups


def group_size(model: nn.Module, x: Tensor, batch_size: int) -> int:
    """How many networks side by side keep what a step works on within ``CACHE`` numbers.

    That is weights and outputs of layers, both with their gradients. Of inputs a quarter counts: they are only read in
    passing, and groups that hold them as a whole were measured to be slower.
    """
    numbers = [x[0].numel() * batch_size // 4, 2 * sum(p.numel() for p in model.parameters())]
    hooks = [
        part.register_forward_hook(lambda _module, _inputs, out: numbers.append(2 * _entries(out) * batch_size))
        for part in model.modules()
        if not list(part.children())
    ]
    try:
        with torch.no_grad(), evaluation_mode(model):
            model(x[:1])
    finally:
        for hook in hooks:
            hook.remove()
    fitting = max(CACHE / sum(numbers), 1.0)
    return int(min(2 ** round(math.log2(fitting)), LARGEST))


def _entries(output: Any) -> int:
    return output.numel() if isinstance(output, Tensor) else 0


def new_model(spec: ZooSpec, options: Mapping[str, Any], seed: int, scale: float = 1.0) -> nn.Module:
    """A network of a zoo before its training, its matrices and filters times ``scale``."""
    model = build(spec.model, seed=seed, **{**spec.options, **options})
    if scale != 1.0:
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim > 1:
                    parameter.mul_(scale)
    return model.to(getattr(torch, spec.dtype)).train()


def described(model: nn.Module) -> dict[str, str]:
    """The tensors of a model by name: type and shape."""
    return {name: kind(tensor) for name, tensor in model.state_dict().items()}
