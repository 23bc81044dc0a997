"""The data a command computes on: a part of a known dataset, in the shape and type that the model takes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from coset.errors import InputError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from coset.data import Normalization


@dataclass(frozen=True)
class Choice:
    """Which examples: a part of a dataset, at most ``limit`` of them, normalized by itself or by ``mean`` and ``std``.

    ``mean`` and ``std`` are numbers separated by commas, one per channel, for pixels in [0, 1].
    """

    name: str
    part: str = "train"
    limit: int | None = None
    mean: str | None = None
    std: str | None = None
    seed: int = 0

    @property
    def criterion(self) -> str:
        """What the outputs of a network cost on these data."""
        from coset.data.catalog import lookup

        return "mse" if lookup(self.name).task == "regression" else "cross-entropy"

    def __str__(self) -> str:
        amount = "all" if self.limit is None else f"at most {self.limit}, seed {self.seed}"
        scale = "normalized" if self.mean is None else f"mean {self.mean}, std {self.std}"
        return f"{self.name}, {self.part} part, {amount}, {scale}"


def choose(
    name: str | None, part: str, limit: int | None, mean: str | None, std: str | None, seed: int
) -> Choice | None:
    """``chosen``, or None without a name."""
    if name is not None:
        return chosen(name, part, limit, mean, std, seed)
    _check(part, seed)
    if part != "train" or limit is not None or mean is not None or std is not None:
        raise InputError("--split, --limit, --mean and --std say which data are used; they need --data")
    return None


def chosen(name: str, part: str, limit: int | None, mean: str | None, std: str | None, seed: int) -> Choice:
    """The choice of data, checked as far as it can be before anything is read."""
    _check(part, seed)
    choice = Choice(name, part, limit, mean, std, seed)
    normalization(choice)
    return choice


def _check(part: str, seed: int) -> None:
    from coset.data.splitting import check_seed

    check_seed(seed)
    if part not in ("train", "test"):
        raise InputError(f"--split is '{part}', expected train or test")


def load_examples(choice: Choice, inputs: Sequence["Tensor"], dtype: "torch.dtype") -> tuple["Tensor", "Tensor"]:
    """Inputs and targets for a model that takes tensors like ``inputs``; images are flattened where it does."""
    import torch

    from coset.data import load
    from coset.data.catalog import lookup

    shape = lookup(choice.name).shape
    if len(inputs) != 1 or not inputs[0].is_floating_point():
        raise InputError(f"--data {choice.name} gives one tensor of numbers as input; the model takes others")
    wanted = tuple(inputs[0].shape[1:])
    flatten = wanted == (math.prod(shape),)
    if wanted != shape and not flatten:
        raise InputError(f"--data {choice.name} has inputs of shape {shape}; the model takes {wanted}")
    given = normalization(choice)
    if given is not None and len(given.mean) != shape[0]:
        raise InputError(f"--mean has {len(given.mean)} numbers; {choice.name} has {shape[0]} channels")
    data = load(choice.name, normalize=given is None, flatten=flatten, dtype=dtype)
    split = data.train if choice.part == "train" else data.test
    if len(split) == 0:
        raise InputError(f"--split {choice.part}: {choice.name} has no examples there")
    if choice.limit is not None and choice.limit < len(split):
        generator = torch.Generator().manual_seed(choice.seed)
        split = split.take(torch.randperm(len(split), generator=generator)[: choice.limit])
    x = split.x if given is None else given.apply(split.x)
    return x, split.y


def normalization(choice: Choice) -> "Normalization | None":
    """What ``mean`` and ``std`` say; None where they say nothing."""
    from coset.data import Normalization

    if choice.mean is None and choice.std is None:
        return None
    if choice.mean is None or choice.std is None:
        raise InputError("--mean and --std belong together; one of them is missing")
    mean, std = numbers("--mean", choice.mean), numbers("--std", choice.std)
    if len(mean) != len(std) or min(std) <= 0:
        raise InputError(f"--mean is {choice.mean} and --std {choice.std}; expected as many of each, --std above 0")
    return Normalization(mean, std)


def numbers(option: str, text: str) -> tuple[float, ...]:
    """Finite numbers separated by commas."""
    try:
        values = tuple(float(word) for word in text.split(","))
    except ValueError as error:
        raise InputError(f"{option} takes numbers separated by commas, found '{text}'") from error
    if not all(map(math.isfinite, values)):
        raise InputError(f"{option} takes finite numbers, found '{text}'")
    return values
