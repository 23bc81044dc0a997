"""The relaxed action: equal to the action at permutations, linear in each matrix, differentiable."""

import pytest
import torch

from architectures import CASES, made, randomized
from coset.alignment.matching.sinkhorn_operator import matrix_of
from coset.alignment.matching.soft_action import soft_act
from coset.errors import InputError
from coset.symmetry import Symmetry
from coset.symmetry.axes import units_of


def permutations_of(sym, seed):
    return sym.restrict(scales=False, signs=False).random(torch.Generator().manual_seed(seed)).permutations


def random_matrices(sym, seed, names=None):
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(*sym.shape(name), sym.shape(name)[-1], generator=generator, dtype=torch.float64)
        for name in (sym.permuting if names is None else names)
    }


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", CASES)
def test_permutation_matrices_act_as_permutations(name, seed):
    model, sym, _ = made(name)
    params = randomized(model, torch.Generator().manual_seed(seed))
    permutations = permutations_of(sym, seed)
    expected = sym.act(sym.element(permutations), params)
    found = soft_act(sym, {key: matrix_of(p, torch.float64) for key, p in permutations.items()}, params)
    assert list(found) == list(expected)
    for key in expected:
        torch.testing.assert_close(found[key], expected[key], rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["grouped+groupnorm", "grouped-query attention", "cct", "resnet20, batch"])
def test_classes_without_a_matrix_keep_their_order(name):
    model, sym, _ = made(name)
    params = randomized(model, torch.Generator().manual_seed(0))
    permutations = permutations_of(sym, 0)
    for kept in sym.permuting:
        some = {key: p for key, p in permutations.items() if key != kept}
        expected = sym.act(sym.element(some), params)
        found = soft_act(sym, {key: matrix_of(p, torch.float64) for key, p in some.items()}, params)
        for key in expected:
            torch.testing.assert_close(found[key], expected[key], rtol=0, atol=1e-12)


def test_what_concatenations_and_nested_blocks_do_together():
    """Blocks told by another axis, by a factor outside a concatenation, and by one inside a segment of it."""
    axes = {
        "a": "g[x]+3+g[y*2] -", "b": "g*(/x+2*y) g", "c": "g[x] /y+/x", "d": "2*g[x[z]]+/g", "e": "g[x] g[y]",
    }  # fmt: skip
    like = {
        "a": torch.zeros(3 * 2 + 3 + 3 * 4 * 2, 2), "b": torch.zeros(3 * (2 + 8), 3), "c": torch.zeros(6, 4 + 2),
        "d": torch.zeros(2 * 3 * 2 * 5 + 3), "e": torch.zeros(6, 12),
    }  # fmt: skip
    sizes = {"g": 3, "x": 2, "y": 4, "z": 5}
    sym = Symmetry.from_axes(axes, like, sizes=sizes)
    generator = torch.Generator().manual_seed(0)
    params = {key: torch.randn(t.shape, generator=generator, dtype=torch.float64) for key, t in like.items()}
    for seed in range(5):
        permutations = permutations_of(sym, seed)
        expected = sym.act(sym.element(permutations), params)
        found = soft_act(sym, {key: matrix_of(p, torch.float64) for key, p in permutations.items()}, params)
        for key in expected:
            torch.testing.assert_close(found[key], expected[key], rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "name", ["batchnorm+depthwise", "grouped-query attention", "grouped+groupnorm", "tied embeddings"]
)
def test_homogeneous_in_each_matrix_by_its_appearances(name):
    """Every entry has one factor of X_C for each appearance of C: c·X_C gives cᵏ times the parameter."""
    model, sym, _ = made(name)
    params = randomized(model, torch.Generator().manual_seed(0))
    matrices = random_matrices(sym, 1)
    before = soft_act(sym, matrices, params)
    for moved in sym.permuting:
        after = soft_act(sym, matrices | {moved: 2 * matrices[moved]}, params)
        for key, parameter in sym.parameters.items():
            nodes = [[unit.name for unit in units_of(node)] for node in parameter.axes]
            # Segments of a concatenation without the class do not scale with it.
            if not params[key].is_floating_point() or "Concat" in repr(parameter.axes):
                continue
            power = sum(row.count(moved) for row in nodes)
            torch.testing.assert_close(after[key], 2.0**power * before[key], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["flatten", "grouped-query attention", "concatenation"])
def test_additive_in_a_matrix_that_appears_once(name):
    model, sym, _ = made(name)
    params = randomized(model, torch.Generator().manual_seed(0))
    base = random_matrices(sym, 1)
    for moved in sym.permuting:
        x, y = (random_matrices(sym, seed, [moved])[moved] for seed in (2, 3))
        results = [soft_act(sym, base | {moved: matrix}, params) for matrix in (x, y, 0.3 * x - 2 * y)]
        checked = 0
        for key in sym.carriers(moved):
            appearances = [u.name for node in sym.parameters[key].axes for u in units_of(node)].count(moved)
            if appearances == 1 and "Concat" not in repr(sym.parameters[key].axes):
                expected = 0.3 * results[0][key] - 2 * results[1][key]
                torch.testing.assert_close(results[2][key], expected, rtol=1e-11, atol=1e-11)
                checked += 1
        assert checked > 0


def test_gradients_are_those_of_finite_differences():
    model, sym, _ = made("grouped-query attention")
    params = randomized(model, torch.Generator().manual_seed(0))
    names, matrices = list(sym.permuting), random_matrices(sym, 1)
    weights = list(params)

    def moved(*tensors):
        given = dict(zip(names, tensors[: len(names)], strict=True))
        theta = dict(zip(weights, tensors[len(names) :], strict=True))
        return tuple(soft_act(sym, given, theta)[name][..., :2] for name in weights)

    inputs = [matrices[name].requires_grad_() for name in names] + [params[name].requires_grad_() for name in weights]
    assert torch.autograd.gradcheck(moved, inputs, fast_mode=True)


def test_tied_weights_stay_tied():
    model, sym, _ = made("tied embeddings")
    params = randomized(model, torch.Generator().manual_seed(0))
    moved = soft_act(sym, random_matrices(sym, 0), params)
    assert moved["embed.weight"] is moved["head.weight"]
    assert not torch.equal(moved["embed.weight"], params["embed.weight"])


def test_leading_sample_axes_are_carried_along():
    model, sym, _ = made("grouped+groupnorm")
    samples = [randomized(model, torch.Generator().manual_seed(seed)) for seed in range(3)]
    matrices = random_matrices(sym, 0)
    together = soft_act(sym, matrices, {key: torch.stack([s[key] for s in samples]) for key in samples[0]})
    for index, sample in enumerate(samples):
        for key, tensor in soft_act(sym, matrices, sample).items():
            torch.testing.assert_close(together[key][index], tensor, rtol=1e-12, atol=1e-12)


def test_refusals_name_the_matrix():
    model, sym, _ = made("rotary")
    params = randomized(model, torch.Generator().manual_seed(0))
    with pytest.raises(InputError, match="matrices have 'pair', which does not permute"):
        soft_act(sym, {"pair": torch.eye(2)}, params)
    model, sym, _ = made("flatten")
    params = randomized(model, torch.Generator().manual_seed(0))
    with pytest.raises(InputError, match=r"the matrix of 'c1' has shape \(4, 4\); expected \(5, 5\)"):
        soft_act(sym, {"c1": torch.eye(4)}, params)
    with pytest.raises(InputError, match=r"'conv.bias' is of type torch.int64"):
        soft_act(sym, {"c1": torch.eye(5)}, params | {"conv.bias": torch.zeros(5, dtype=torch.long)})
