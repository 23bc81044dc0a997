"""Zoos of CNNs of varied quality, and their networks as readers are given them."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from coset.models import build, example_input
from coset.study import Context
from coset.study.zoos import trained_zoo
from coset.symmetry import Symmetry, discover
from coset.symmetry.stacks import act_stack, random_stack
from coset.zoo import DataSpec, Range, ZooSpec

MODEL = "coset_studies.metanet._cnn:GreyCNN"


@dataclass(frozen=True)
class VariedZoo:
    """Networks of one architecture and one data set whose quality varies with how they were trained.

    Every number of ``epochs`` with every share of ``label_noise`` has ``each`` networks; learning rate, weight decay
    and the scale of the first weights are drawn for each of them.
    """

    data: Mapping[str, Any]
    epochs: tuple[int, ...]
    label_noise: tuple[float, ...]
    each: int
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """How many networks it has."""
        return len(self.epochs) * len(self.label_noise) * self.each

    def spec(self, seed: int) -> ZooSpec:
        """What is trained."""
        return ZooSpec(
            model=MODEL,
            options=self.options,
            data=tuple(DataSpec(**self.data, label_noise=share) for share in self.label_noise),
            recipe={"optimizer": "adam", "batch_size": 32},
            grid_recipe={
                "epochs": self.epochs,
                "learning_rate": Range(5e-4, 2e-2, log=True),
                "weight_decay": Range(1e-5, 1e-2, log=True),
            },
            initial_scale=Range(0.4, 2.5, log=True),
            seeds=tuple(range(seed * 100_000, seed * 100_000 + self.each)),
        )


@dataclass(frozen=True)
class Networks:
    """Trained networks: symmetry, weights (N, …), and the accuracy of each on ``examples`` test images (N,)."""

    sym: Symmetry
    stack: Mapping[str, Tensor]
    accuracy: Tensor
    examples: int

    def take(self, rows: Tensor) -> "Networks":
        """Some of the networks."""
        stack = {name: tensor[rows] for name, tensor in self.stack.items()}
        return Networks(self.sym, stack, self.accuracy[rows], self.examples)


def networks_of(context: Context, zoo: VariedZoo) -> Networks:
    """The networks of a zoo, trained now or found in the store."""
    trained = trained_zoo(context, zoo.spec(context.seed))
    model = build(MODEL, seed=0, **zoo.options).eval()
    accuracy = torch.tensor([row["test_accuracy"] for row in trained.rows], dtype=torch.float64)
    return Networks(
        discover(model, example_input(model)), in_double(trained.last), accuracy, int(trained.rows[0]["test_count"])
    )


def moved(networks: Networks, generator: torch.Generator) -> Networks:
    """The same functions: every network moved by a random element of its whole group."""
    elements = random_stack(networks.sym, len(networks.accuracy), generator)
    return replace(networks, stack=act_stack(networks.sym, elements, networks.stack))


def in_double(stack: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights in float64, so that what the group does to predictions is not that of rounding."""
    return {name: tensor.double() if tensor.is_floating_point() else tensor for name, tensor in stack.items()}


def folded(networks: Networks, base: Symmetry) -> Networks:
    """Networks with batch normalisation as networks without: the same functions, in the architecture of ``base``.

    W ← γ/√(σ² + ε) W, b ← β − γμ/√(σ² + ε), channel by channel.
    """
    stack: dict[str, Tensor] = {}
    for name, tensor in networks.stack.items():
        if name.startswith("conv"):
            norm = {
                part: networks.stack[f"norm{name[4]}.{part}"]
                for part in ("weight", "bias", "running_mean", "running_var")
            }
            gain = norm["weight"] / (norm["running_var"] + nn.BatchNorm2d(1).eps).sqrt()
            stack[name] = tensor * gain[..., None, None, None]
            stack[name.replace("weight", "bias")] = norm["bias"] - gain * norm["running_mean"]
        elif name.startswith("fc"):
            stack[name] = tensor
    return replace(networks, sym=base, stack=stack)
