"""Studies of plain networks: their presets, the choice of α, constant width."""

import pytest
import torch

from coset.models import build
from coset.running import layer_names
from coset.study import Findings, Table, studies
from coset_studies.godfrey._plain import ALL_LAYERS, LAYERS, MYRTLE
from coset_studies.godfrey._stitching import Stitched
from coset_studies.godfrey.alpha import Chosen, histogram
from coset_studies.godfrey.constant_width import CLAIMS

NAMES = ("similarity", "stitching", "rotations", "alpha", "lasso", "constant-width")


@pytest.mark.parametrize("name", NAMES)
def test_layers_are_layers_of_the_networks(name):
    for config in studies()[f"godfrey-{name}"].presets.values():
        zoos = [config.constant, config.growing] if name == "constant-width" else [config.zoo]
        for zoo in zoos:
            assert set(config.layers) <= set(layer_names(build(zoo.model, seed=0, **dict(zoo.options))))


def test_the_layers_stitched_are_among_those_compared():
    for preset, layers in LAYERS.items():
        assert set(layers) <= set(ALL_LAYERS[preset])


def test_the_paper_has_a_hundred_myrtles():
    paper = studies()["godfrey-stitching"].presets["paper"]
    assert paper.zoo == MYRTLE
    assert (paper.zoo.networks, paper.pairs, paper.training.epochs) == (100, 32, 20)
    assert (paper.zoo.recipe.epochs, paper.zoo.recipe.batch_size, paper.zoo.recipe.optimizer) == (50, 32, "adam")
    assert dict(studies()["godfrey-rotations"].presets["paper"].zoo.options) == {"norm": "none"}


def _chosen(accuracies: dict[float, float]) -> Chosen:
    alpha = max(accuracies, key=lambda value: accuracies[value])
    return Chosen(Stitched(torch.ones(2), torch.eye(2), 0.5), alpha, accuracies)


def test_which_alphas_are_chosen():
    first, second = _chosen({0.1: 0.5, 1.0: 0.7, 10.0: 0.7}), _chosen({0.1: 0.9, 1.0: 0.7, 10.0: 0.7})
    assert (first.alpha, first.ties, second.ties) == (1.0, 2, 1)
    choices = {(0, "a"): first, (1, "a"): second, (0, "b"): first, (1, "b"): first}
    assert histogram(choices) == {"a": {1.0: 1, 0.1: 1}, "b": {1.0: 2}}


def _widths(constant: list[float], growing: list[tuple[float, float]]) -> Findings:
    """G_ReLU similarities of two pairs fall by ``constant``, the others by 0; CKA of growing width in these ranges."""
    measures = ("G_ReLU CKA", "orthogonal CKA", "G_ReLU Procrustes", "orthogonal Procrustes")
    rows = []
    for number, fall in enumerate(constant):
        rows += [[number, "a", 0.9, 0.9, 0.9, 0.9], [number, "b", 0.9 - fall, 0.9, 0.9 - fall, 0.9]]
    layers = [
        [layer, measure, (low + high) / 2, low, high]
        for layer, (low, high) in zip("ab", growing, strict=True)
        for measure in measures[:1]
    ]
    layers += [[layer, measures[1], 0.9, 0.9, 0.9] for layer in "ab"]
    tables = {
        "pairs": Table(("pair", "layer", *measures), rows),
        "growing-width": Table(("layer", "measure", "mean", "lowest pair", "highest pair"), layers),
    }
    return Findings({}, tables)


@pytest.mark.parametrize(
    ("constant", "growing", "expected"),
    [
        ([0.1, 0.2], [(0.8, 0.9), (0.4, 0.5)], ["holds", "holds", "holds"]),
        ([-0.1, -0.2], [(0.4, 0.5), (0.8, 0.9)], ["fails", "fails", "fails"]),
        ([-0.1, 0.2], [(0.5, 0.9), (0.4, 0.6)], ["cannot tell", "cannot tell", "cannot tell"]),
    ],
)
def test_claims_on_width(constant, growing, expected):
    assert [str(claim.judge(_widths(constant, growing)).verdict) for claim in CLAIMS] == expected
