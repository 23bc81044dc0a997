"""Weights that a model's modules draw anew follow the law of a model that is built."""

import math

import pytest
import torch
from torch import Tensor

from coset.models import MODELS, build, example_input
from coset.posterior.inference.starting import fresh_weights
from coset.posterior.problem import Problem, pose

CASES: dict[str, tuple[str, dict[str, object]]] = {
    "mlp": ("mlp", {"in_features": 12, "widths": (8, 6), "norm": "batch", "activation": "prelu:0.1"}),
    "residual_mlp": ("residual_mlp", {"in_features": 12, "width": 6, "inner": 9, "norm": "layer"}),
    "myrtle": ("myrtle", {"width": 2, "norm": "none"}),
    "siren": ("siren", {"widths": (9, 8), "out_features": 3}),
    "tiny10": ("tiny10", {"classes": 4}),
    "resnet": ("resnet", {"stages": (4, 8), "blocks": (3, 1), "norm": "none"}),
    "resnet frn": ("resnet", {"stages": (4, 8), "blocks": 1, "norm": "frn"}),
    "resnet layer": ("resnet", {"stages": (4, 8), "blocks": 1, "norm": "layer"}),
    "resnet20": ("resnet20", {"width": 0.25}),
    "resnet18": ("resnet18", {"stages": (4, 6, 8)}),
    "cct": ("cct", {"dim": 8, "depth": 2, "heads": 2, "image_size": 12}),
    "cct positions": (
        "cct",
        {"dim": 8, "depth": 1, "heads": 2, "convolutions": 2, "positions": "learnable", "image_size": 12},
    ),
    "vit": ("vit", {"dim": 8, "heads": 2, "patch": 2, "image_size": 6}),
    "transformer": ("transformer", {"dim": 8, "depth": 3, "heads": 2, "context": 6, "vocabulary": 7}),
}
DRAWS = 20


def _problem(name: str, options: dict[str, object]) -> Problem:
    """The model with weights that no initialisation gives."""
    model = build(name, seed=0, **options)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.3)
    # A likelihood of sequences is not needed to draw weights.
    model.register_forward_hook(lambda module, inputs, outputs: outputs.flatten(1))
    return pose(model, (example_input(model), torch.tensor([0, 1])), "categorical", 1.0)


def test_every_architecture_is_among_the_cases() -> None:
    assert {name for name, _ in CASES.values()} == set(MODELS)


@pytest.mark.parametrize("case", CASES)
def test_fresh_weights_follow_the_law_of_built_ones(case: str) -> None:
    """Constants to the bit; others have the standard deviation of the built ones.

    For n independent entries the logarithm of a sample's deviation has an error of at most √(1/2n), that of a normal
    law: uniform and truncated laws have lighter tails. The difference of two thus has at most √(1/n); five of it.
    """
    name, options = CASES[case]
    problem = _problem(name, options)
    models = [build(name, seed=seed, **options) for seed in range(DRAWS)]
    flats = torch.stack([fresh_weights(problem, seed, "nothing") for seed in range(DRAWS)])
    drawn: dict[str, Tensor] = problem.layout.views(flats)
    assert set(drawn) == {key for key, _ in models[0].named_parameters()}
    for key, fresh in drawn.items():
        built = torch.stack([model.get_parameter(key).detach() for model in models])
        assert fresh.shape == built.shape
        if bool((built == built[0]).all()):
            assert torch.equal(fresh, built), key
        else:
            ratio = float(fresh.double().std() / built.double().std())
            assert ratio > 0, key
            assert abs(math.log(ratio)) < 5 / math.sqrt(built.numel()), (key, ratio)
