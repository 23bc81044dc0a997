"""Zoos of CNNs of varied quality, and their networks as readers are given them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from coset.models import build, example_input
from coset.study import Context
from coset.study.zoos import trained_zoo
from coset.symmetry import Symmetry, discover
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


def networks_of(context: Context, zoo: VariedZoo) -> Networks:
    """The networks of a zoo, trained now or found in the store."""
    trained = trained_zoo(context, zoo.spec(context.seed))
    model = build(MODEL, seed=0, **zoo.options).eval()
    accuracy = torch.tensor([row["test_accuracy"] for row in trained.rows], dtype=torch.float64)
    return Networks(discover(model, example_input(model)), trained.last, accuracy, int(trained.rows[0]["test_count"]))
