"""Rotation penalties: what is frozen, what is inserted, and elements of groups that cost nothing."""

import copy
import itertools

import pytest
import torch
from torch import Tensor, nn

from coset.errors import InputError
from coset.models import MLP, MyrtleCNN
from coset.represent._layer_group import layer_group
from coset.represent.stitching.penalties import correct
from coset.represent.stitching.rotations import Inserted, fine_tuned_above, rotation_penalties
from coset.represent.unit_groups import GROUPS, Part, UnitGroup, random_element
from coset.symmetry import intertwiner
from coset.symmetry.mixing import random_rotation
from coset.train import Recipe
from declared import declared

RECIPE = Recipe(epochs=2, batch_size=16, learning_rate=0.05)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


def seeded(make, seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return make().double().eval()


def problem(count: int = 60) -> tuple[nn.Module, tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    model = seeded(lambda: MLP(5, [6, 6], 3))
    x = normal(2 * count, 5)
    with torch.no_grad():
        # Answers that are not all the same.
        model.layers[2].bias.sub_(model(x).mean(0))
    y = model(x).argmax(1)
    return model, (x[:count], y[:count]), (x[count:], y[count:])


@pytest.mark.parametrize("name", ["permutation", "rigid-permutation", "rigid-signed-permutation", "signed-permutation"])
def test_elements_of_monomial_groups(name):
    group = GROUPS[name](7)
    for seed in range(5):
        matrix = random_element(group, generator(seed))
        belongs = {
            "permutation": "relu", "rigid-permutation": "gelu",
            "rigid-signed-permutation": "tanh", "signed-permutation": "square",
        }[name]  # fmt: skip
        assert intertwiner(belongs).contains(matrix)
    assert not torch.equal(random_element(group, generator(0)), random_element(group, generator(1)))


def test_rotations_are_orthogonal_and_uniform():
    draws = torch.stack([random_rotation(3, generator(seed)) for seed in range(3000)])
    torch.testing.assert_close(
        draws @ draws.mT, torch.eye(3, dtype=torch.float64).expand(3000, 3, 3), rtol=0, atol=1e-12
    )
    # Haar measure: entries have mean 0 and second moment 1/n; 3000 draws have deviations of 0.0105 and 0.0054.
    assert float(draws.mean(0).abs().max()) < 0.05
    assert float((draws.square().mean(0) - 1 / 3).abs().max()) < 0.025
    assert abs(float(torch.linalg.det(draws).mean())) < 0.1


def test_elements_of_nested_groups_move_blocks_as_wholes():
    inner = Part(2, permutes=True)
    group = UnitGroup((Part(3, permutes=True, inside=(inner,)), Part(1)), order=(6, 0, 1, 2, 3, 4, 5))
    fixed, blocks = 5, [(6, 0), (1, 2), (3, 4)]
    seen = set()
    for seed in range(40):
        matrix = random_element(group, generator(seed))
        assert matrix[fixed, fixed] == 1
        sources = [tuple(int(matrix[channel].argmax()) for channel in block) for block in blocks]
        assert {frozenset(source) for source in sources} == {frozenset(block) for block in blocks}
        seen.add(tuple(sources))
    # Of the 3!·2³ elements more than those that keep the inside as it is.
    assert len(seen) > len(list(itertools.permutations(range(3))))


def test_the_group_found_at_a_layer_gives_its_elements():
    model, x = seeded(lambda: MLP(5, [6, 4], 3)), normal(8, 5)
    for layer, size in (("activations.0", 6), ("activations.1", 4)):
        group = layer_group(declared(model), model, layer, x)
        matrix = random_element(group, generator(2))
        assert matrix.shape == (size, size)
        assert intertwiner("relu").contains(matrix)


def test_an_inserted_map_stands_behind_its_layer():
    model = seeded(lambda: MLP(5, [6, 6], 3))
    matrix, x = normal(6, 6, seed=1), normal(8, 5)
    network = Inserted(model, "activations.0", matrix)
    hidden = model.activations[0](model.layers[0](x)) @ matrix.T
    expected = model.layers[2](model.activations[1](model.layers[1](hidden)))
    torch.testing.assert_close(network(x), expected, rtol=1e-12, atol=1e-12)
    assert not any(module._forward_hooks for module in model.modules())
    with pytest.raises(InputError, match=r"'activations\.7' is no layer"):
        Inserted(model, "activations.7", matrix)


@pytest.mark.parametrize("name", ["permutation", "orthogonal"])
def test_weights_behind_an_activation_undo_group_elements_in_front_of_it_and_not_rotations(name):
    """For G_ReLU σ(Ax) = Aσ(x): what makes its penalty 0 at best. No matrix takes σ(Ax) of a rotation back to σ(x)."""
    model = seeded(lambda: MLP(5, [6, 6], 3))
    x = normal(200, 5)
    matrix = random_element(GROUPS[name](6), generator(1))
    hidden = model.layers[0](x).detach()
    before, after = torch.relu(hidden), torch.relu(hidden @ matrix.mT)
    back = torch.linalg.lstsq(after, before).solution.mT
    off = float((after @ back.mT - before).norm() / before.norm())
    assert off < 1e-10 if name == "permutation" else off > 0.1
    undone = copy.deepcopy(model)
    with torch.no_grad():
        undone.layers[1].weight.copy_(model.layers[1].weight @ back)
    found = Inserted(undone, "layers.0", matrix)(x)
    assert torch.allclose(found, model(x), rtol=1e-9, atol=1e-9) == (name == "permutation")
    if name == "permutation":
        torch.testing.assert_close(back, matrix.inverse(), rtol=1e-9, atol=1e-9)


def test_only_what_is_above_the_layer_is_trained():
    model, data, _ = problem()
    state = copy.deepcopy(model.state_dict())
    tuned = fine_tuned_above(model, "activations.0", data, RECIPE)
    moved = {name for name, value in tuned.state_dict().items() if not torch.equal(value, state[name])}
    assert moved == {"layers.1.weight", "layers.1.bias", "layers.2.weight", "layers.2.bias"}
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


def test_batch_statistics_below_the_layer_stay_and_above_it_move():
    model = seeded(lambda: MyrtleCNN(width=2))
    x = normal(16, 3, 32, 32)
    recipe = Recipe(epochs=1, batch_size=8, learning_rate=0.01)
    tuned = fine_tuned_above(model, "activation2", (x, torch.arange(16) % 10), recipe)
    for number in (1, 2, 3, 4):
        name = f"norm{number}.running_mean"
        assert torch.equal(tuned.state_dict()[name], model.state_dict()[name]) == (number <= 2)


def test_the_identity_costs_nothing_and_seeds_repeat():
    model, data, held_out = problem()
    groups = {
        "identity": torch.eye(6, dtype=torch.float64),
        "rotation": "orthogonal",
        "element": GROUPS["permutation"](6),
    }
    found = rotation_penalties(model, "activations.0", data, held_out, RECIPE, groups=groups)
    assert (found["identity"].penalty.value, found["identity"].penalty.high) == (0, 0)
    again = rotation_penalties(model, "activations.0", data, held_out, RECIPE, groups=groups)
    for name, rotation in found.items():
        assert rotation.penalty == again[name].penalty
        assert torch.equal(rotation.matrix, again[name].matrix)
        assert rotation.penalty.after == pytest.approx(float(correct(rotation.network, held_out).mean()))
    other = rotation_penalties(model, "activations.0", data, held_out, RECIPE, groups=groups, seed=1)
    assert not torch.equal(other["rotation"].matrix, found["rotation"].matrix)


def test_an_invertible_map_is_learnt_away_and_one_that_destroys_is_not():
    model, data, held_out = problem(200)
    recipe = Recipe(epochs=15, batch_size=20, learning_rate=0.1, momentum=0.9)
    groups = {"permutation": "rigid-permutation", "nothing": torch.zeros(6, 6, dtype=torch.float64)}
    found = rotation_penalties(model, "activations.0", data, held_out, recipe, groups=groups)
    assert found["permutation"].penalty.value < 0.1
    assert found["nothing"].penalty.low > 0.2


def test_wrong_input_is_named():
    model, data, held_out = problem()
    with pytest.raises(InputError, match=r"has shape \(5, 5\); expected \(6, 6\)"):
        rotation_penalties(model, "activations.0", data, held_out, RECIPE, groups={"m": torch.eye(5)})
    with pytest.raises(InputError, match="group is 'spin'"):
        rotation_penalties(model, "activations.0", data, held_out, RECIPE, groups=["spin"])
    with pytest.raises(InputError, match="no parameter to train is above layer ''"):
        rotation_penalties(model, "", data, held_out, RECIPE)
