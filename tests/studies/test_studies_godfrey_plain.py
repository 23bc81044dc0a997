"""Studies of plain networks: their presets, the choice of α, rotation penalties, constant width."""

import pytest
import torch

from coset.models import build
from coset.running import layer_names
from coset.study import studies
from coset_studies.godfrey._plain import ALL_LAYERS, LAYERS, MYRTLE, ZOOS, networks_sentence
from coset_studies.godfrey._similarity import CKA, MEASURES, Similarities
from coset_studies.godfrey._stitching import Penalties, Stitched
from coset_studies.godfrey.alpha import Chosen, histogram
from coset_studies.godfrey.alpha import judge as judge_alpha
from coset_studies.godfrey.constant_width import judge as judge_width
from coset_studies.godfrey.rotations import adapted
from coset_studies.godfrey.rotations import judge as judge_rotations

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
    assert networks_sentence(MYRTLE) == ""
    assert "4 of one architecture trained by others" in networks_sentence(ZOOS["small"])


def _chosen(accuracies: dict[float, float]) -> Chosen:
    alpha = max(accuracies, key=lambda value: accuracies[value])
    return Chosen(Stitched(torch.ones(2), torch.eye(2), 0.5), alpha, accuracies)


def test_which_alphas_are_chosen():
    first, second = _chosen({0.1: 0.5, 1.0: 0.7, 10.0: 0.7}), _chosen({0.1: 0.9, 1.0: 0.7, 10.0: 0.7})
    assert (first.alpha, first.ties, second.ties) == (1.0, 2, 1)
    choices = {(0, "a"): first, (1, "a"): second, (0, "b"): first, (1, "b"): first}
    assert histogram(choices) == {"a": {1.0: 1, 0.1: 1}, "b": {1.0: 2}}
    assert "Over 2 pairs more than one α is chosen at 1 of 2 layers, in the paper at all" in judge_alpha(choices)
    assert "at 1 of 1 layers, as in the paper" in judge_alpha({(0, "a"): first, (1, "a"): second})
    assert "One pair does not tell" in judge_alpha({(0, "a"): first, (0, "b"): second})


def _rotations(permutation: float, scaled: float, rotation: float, noise: float = 0.0) -> Penalties:
    values = torch.tensor([[permutation, scaled, rotation]], dtype=torch.float64)
    shifts = noise * torch.tensor([[[0.0], [0.0], [1.0]]]) * torch.tensor([-1.0, 0.0, 1.0])
    names = ("permutation", "G_ReLU", "orthogonal")
    return Penalties(("layer",), names, ((0, 0),), values[..., None, None], values[..., None] + shifts, None, 0.8)


@pytest.mark.parametrize(
    ("penalties", "said"),
    [
        (_rotations(0.01, 0.02, 0.05), "So rotations cost more than group elements, as in the paper"),
        (_rotations(0.01, 0.09, 0.05), "So rotations cost more than permutation at every layer"),
        (_rotations(0.01, 0.02, 0.05, noise=0.2), "not shown at every layer"),
    ],
)
def test_the_verdict_on_rotations(penalties, said):
    assert said in judge_rotations(penalties)


@pytest.mark.parametrize(
    ("cost", "noise", "said"),
    [(0.01, 0.001, "has come far enough"), (0.05, 0.001, "far from its end"), (0.01, 0.1, "is open at layer")],
)
def test_whether_fine_tuning_came_far_enough(cost, noise, said):
    found = _rotations(cost, 0.02, 0.05)
    found.draws[:, 0] += noise * torch.tensor([-1.0, 0.0, 1.0])
    assert said in adapted(found)


def _similar(fall: float) -> Similarities:
    """One pair whose G_ReLU similarities fall by so much, the others by 0."""
    values = {
        measure: torch.tensor([[0.9, 0.9 - (fall if measure.startswith("G_ReLU") else 0.0)]], dtype=torch.float64)
        for measure in MEASURES
    }
    draws = {measure: table[..., None].expand(-1, -1, 3) for measure, table in values.items()}
    return Similarities(("a", "b"), ((0, 1),), values, draws, {measure: torch.zeros(1, 2, 2) for measure in CKA})


def test_the_verdict_on_width():
    assert "measured with both widths, as in the paper" in judge_width(_similar(0.3), _similar(0.3))
    assert "not shown with growing width, where the paper has it" in judge_width(_similar(0.3), _similar(-0.1))
    assert "measured with growing width, and is not shown" in judge_width(_similar(-0.1), _similar(0.3))
    assert "shown with neither width" in judge_width(_similar(-0.1), _similar(0.0))
