"""How permutations move weights under a density: against the action itself; gradients by hand against autograd."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import coset
from architectures import CASES, made, randomized
from coset.distribution import MeanField
from coset.distribution.density import pieces
from coset.errors import InputError
from coset.models import MLP
from coset.posterior.symmetrized.noise import MOST_BLOCKS, NoiseComparison, Places, blocks_of
from coset.posterior.symmetrized.orbit import Drawn, orbit
from coset.posterior.symmetrized.units import unit_log_probs, unknowns

DOUBLE = {"dtype": torch.float64}
PERMUTING = sorted(name for name in CASES if made(name)[1].permuting)
CPU = torch.device("cpu")


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def posterior(model, seed=0):
    """Mean field over the parameters, means and deviations in general position; buffers are points."""
    draws = generator(seed)
    mean = randomized(model, draws)
    names = [name for name, _ in model.named_parameters()]
    return MeanField(mean, {name: 0.2 + torch.rand(mean[name].shape, generator=draws, **DOUBLE) for name in names})


def made_orbit(name):
    model, sym, _ = made(name)
    q = posterior(model)
    over = unknowns(q)
    return sym, q, over, orbit(sym, over.names, over.like)


def defined(sym, q, row, over, moves):
    """log q(g⁻¹·ω) − log q(ω) of one ω (D,) and one g, by the action of the inverse on the weights."""
    finite = sym.restrict(scales=False, signs=False)
    g = finite.element(moves)
    omega = pieces(row, over.names, over.like)
    return q.log_prob(finite.act(finite.inverse(g), omega, partial=True)) - q.log_prob(omega)


@pytest.mark.parametrize("name", PERMUTING)
def test_ratios_are_those_of_the_action_on_every_architecture(name):
    sym, q, over, moved = made_orbit(name)
    assert set(over.names).isdisjoint(n for n, parameter in sym.parameters.items() if parameter.buffer)
    x = over.mean + over.std * torch.randn(2, len(over.mean), generator=generator(1), **DOUBLE)
    moves = moved.uniform((2, 3), generator(2))
    found = Drawn(moved, x, over.mean, over.std).log_ratios(moves)
    assert found.shape == (2, 3)
    expected = torch.stack(
        [
            torch.stack([defined(sym, q, x[i], over, {key: p[i, j] for key, p in moves.items()}) for j in range(3)])
            for i in range(2)
        ]
    )
    # Not only what stands still: most permutations make ω less likely.
    assert (expected.abs() > 1e-3).all()
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-9)


@pytest.mark.parametrize("name", ["concatenation", "grouped-query attention", "residual mlp, one stream"])
def test_leading_axes_are_free_and_moves_may_be_common_to_all_weights(name):
    _, _, over, moved = made_orbit(name)
    x = over.mean + over.std * torch.randn(2, 3, len(over.mean), generator=generator(1), **DOUBLE)
    moves = moved.uniform((2, 3, 4), generator(2))
    found = Drawn(moved, x, over.mean, over.std).log_ratios(moves)
    assert found.shape == (2, 3, 4)
    one = {key: p[1, 2] for key, p in moves.items()}
    single = Drawn(moved, x[1, 2], over.mean, over.std).log_ratios(one)
    torch.testing.assert_close(single, found[1, 2], rtol=1e-12, atol=1e-10)
    common = Drawn(moved, x, over.mean, over.std).log_ratios(one)
    assert common.shape == (2, 3, 4)
    torch.testing.assert_close(common[1, 2], single, rtol=1e-12, atol=1e-10)
    identity = {key: p[None] for key, p in moved.identity().items()}
    assert float(Drawn(moved, x, over.mean, over.std).log_ratios(identity).abs().max()) < 1e-11

    def ratios(row, mean, std):
        return Drawn(moved, row, mean, std).log_ratios(one)

    mapped = torch.vmap(ratios, (0, None, None))(x[:, 2], over.mean, over.std)
    torch.testing.assert_close(mapped[1], single, rtol=1e-12, atol=1e-10)


def test_ratios_are_differentiable_in_weights_means_and_deviations():
    _, _, over, moved = made_orbit("concatenation")
    x = over.mean + over.std * torch.randn(len(over.mean), generator=generator(1), **DOUBLE)
    moves = moved.uniform((2,), generator(2))
    leaves = [part.clone().requires_grad_() for part in (x, over.mean, over.std)]
    assert torch.autograd.gradcheck(lambda *parts: Drawn(moved, *parts).log_ratios(moves), leaves)


def test_tied_weights_count_once_and_points_not_at_all():
    _, q, over, moved = made_orbit("tied embeddings")
    assert "head.weight" in q.mean
    assert "head.weight" not in over.names
    assert len(over.mean) == sum(tensor.numel() for tensor in {id(t): t for t in q.mean.values()}.values())
    # The stream stands on one axis of each matrix but on no two: both classes are simple.
    assert set(moved.simple) == {"s", "u"}
    frozen = MeanField(q.mean, {name: std for name, std in q.std.items() if name != "up.weight"})
    left = unknowns(frozen)
    assert len(left.mean) == len(over.mean) - q.mean["up.weight"].numel()
    sym = made("tied embeddings")[1]
    fewer = orbit(sym, left.names, left.like)
    moves = fewer.uniform((3,), generator(2))
    x = left.mean + left.std * torch.randn(len(left.mean), generator=generator(1), **DOUBLE)
    found = Drawn(fewer, x, left.mean, left.std).log_ratios(moves)
    expected = [defined(sym, frozen, x, left, {key: p[j] for key, p in moves.items()}) for j in range(3)]
    torch.testing.assert_close(found, torch.stack(expected), rtol=1e-11, atol=1e-9)


def test_weights_are_told_apart_by_what_moves_them():
    model = MLP(2, [4, 3], 1).double().eval()
    sym = coset.discover(model, torch.zeros(2, 2, **DOUBLE))
    like = dict(model.state_dict())
    found = orbit(sym, tuple(like), like)
    first, second = found.simple.values()
    assert (first.units, second.units) == (4, 3)
    # First layer: two inputs and a bias; second: a bias and one output. Between them 12 weights of both.
    assert (first.owned.shape, second.owned.shape) == ((4, 6), (3, 6))
    assert (found.alone[first.name].shape, found.alone[second.name].shape) == ((4, 3), (3, 2))
    assert len(found.shared) == 12
    assert first.columns(frozenset({second.name})).shape == (4, 6)
    assert found.log_order == pytest.approx(math.log(24 * 6))
    everything = torch.cat([found.shared, *(owned.reshape(-1) for owned in found.alone.values())])
    # All but the bias of the output.
    assert sorted(everything.tolist()) == list(range(sum(t.numel() for t in like.values()) - 1))


@pytest.mark.parametrize("units", [1, 0])
def test_a_symmetry_that_permutes_nothing_is_refused(units):
    if units:
        model = MLP(2, [1], 1).double().eval()
        sym = coset.discover(model, torch.zeros(2, 2, **DOUBLE))
    else:
        model, sym, _ = made("rotary")
    like = dict(model.state_dict())
    with pytest.raises(InputError, match="sym permutes no class of two or more units; expected one"):
        orbit(sym, tuple(like), like)


def test_uniform_permutations_are_uniform():
    model = nn.Sequential(nn.Linear(1, 3), nn.Tanh(), nn.Linear(3, 1)).double()
    sym = coset.discover(model, torch.zeros(2, 1, **DOUBLE))
    like = dict(model.state_dict())
    ((order),) = orbit(sym, tuple(like), like).uniform((6000,), generator()).values()
    _, counts = order.unique(dim=0, return_counts=True)
    assert len(counts) == 6
    # The 0.9999 quantile of χ² with 5 degrees of freedom.
    assert float((counts - 1000).square().sum()) / 1000 < 25.7


# Places ---------------------------------------------------------------------------------------------------------------


@st.composite
def places(draw):
    """(n, k) different places: blocks in strides as matrices, convolutions and scrambled ones have them."""
    n = draw(st.integers(1, 5))
    kind = draw(st.sampled_from(["rows", "columns", "convolution", "scrambled", "descending"]))
    k = draw(st.integers(1, 6))
    start = draw(st.integers(0, 3))
    grid = start + torch.arange(n * k * 4).reshape(n, k, 4)
    if kind == "rows":
        return torch.cat([grid[:, :, 0], 100 + torch.arange(n)[:, None]], 1)
    if kind == "columns":
        return torch.cat([torch.arange(n)[:, None] + n * torch.arange(k), 200 + 2 * torch.arange(n)[:, None]], 1)
    if kind == "convolution":
        return torch.cat([grid[:, :, :3].flatten(1), 300 + (torch.arange(k)[:, None] * n + torch.arange(n)).T], 1)
    if kind == "descending":
        owned = grid[:, :, 0]
        return owned.flip(draw(st.sampled_from([0, 1])))
    order = torch.randperm(n * k + 7, generator=generator(draw(st.integers(0, 99))))
    return order[: n * k].reshape(n, k)


@settings(max_examples=40)
@given(places(), st.integers(1, 3))
def test_what_is_taken_is_put_back_to_its_place(owned, rows):
    found = Places(owned, CPU)
    # A wider tensor: rows of the source need not follow each other in memory.
    wide = torch.randn(rows, 2, 400, generator=generator(), **DOUBLE)
    source = wide[:, 1]
    taken = torch.empty(rows, *owned.shape, **DOUBLE)
    found.take(source, taken)
    assert torch.equal(taken, source[:, owned])
    into = torch.zeros_like(source)
    found.put(taken, into)
    expected = torch.zeros_like(source)
    expected[:, owned] = source[:, owned]
    assert torch.equal(into, expected)


@settings(max_examples=40)
@given(places())
def test_blocks_cover_every_column_once(owned):
    blocks = blocks_of(owned)
    if blocks is None:
        steps = owned.diff(dim=0)
        assert bool((steps != steps[:1]).any()) or bool((steps < 0).any())
        return
    rebuilt = [
        block.start + block.row * torch.arange(len(owned))[:, None] + block.column * torch.arange(block.width)
        for block in blocks
    ]
    assert torch.equal(torch.cat(rebuilt, 1), owned)
    assert [block.first for block in blocks] == [sum(b.width for b in blocks[:i]) for i in range(len(blocks))]


def test_a_layer_lies_in_few_blocks():
    model = nn.Sequential(nn.Conv2d(2, 6, 3), nn.ReLU(), nn.Conv2d(6, 4, 3)).double()
    sym = coset.discover(model, torch.zeros(2, 2, 8, 8, **DOUBLE))
    like = dict(model.state_dict())
    (owned,) = orbit(sym, tuple(like), like).alone.values()
    assert owned.shape == (6, 18 + 1 + 4 * 9)
    # Filters in, biases, and for each of four outputs its filter on the unit.
    assert len(blocks_of(owned)) <= 6 < MOST_BLOCKS


# The comparison by hand -----------------------------------------------------------------------------------------------


def without_column_sums(matrix):
    """As the derivative of a function of log-ratios is, which take each column once and once away."""
    return matrix - matrix.mean(0)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("scrambled", [False, True])
def test_comparison_by_hand_is_that_of_autograd(sign, scrambled):
    size, n, k = 40, 4, 7
    order = torch.randperm(size, generator=generator()) if scrambled else torch.arange(size)
    owned = order[: n * k].reshape(n, k)
    values = torch.randn(2, size, generator=generator(1), **DOUBLE)
    noise = torch.randn(size, generator=generator(2), **DOUBLE)
    along = without_column_sums(torch.randn(n, n, generator=generator(3), **DOUBLE))

    def matrix(leaf):
        mean, std = leaf[0], leaf[1].exp()
        return unit_log_probs(owned, mean + sign * std * noise, mean, std)

    comparison = NoiseComparison(owned, values)
    before = values.clone()
    found = comparison.matrix(values, noise, sign)
    assert torch.equal(values, before)
    torch.testing.assert_close(found, matrix(values), rtol=1e-11, atol=1e-10)
    gradient = torch.zeros_like(values)
    comparison.pull_back(along, gradient)
    leaf = values.clone().requires_grad_()
    (expected,) = torch.autograd.grad((matrix(leaf) * along).sum(), leaf)
    torch.testing.assert_close(gradient, expected, rtol=1e-10, atol=1e-10)
    # Central differences, by the memory that is used over and over.
    for row, place in [(0, int(owned[1, 2])), (1, int(owned[3, 0])), (0, int(order[-1]))]:
        step = torch.zeros_like(values)
        step[row, place] = 1e-5
        up, down = ((comparison.matrix(values + h, noise, sign) * along).sum() for h in (step, -step))
        assert float(up - down) / 2e-5 == pytest.approx(float(gradient[row, place]), rel=1e-5, abs=1e-5)


def test_the_normal_densities_are_the_library_s_own():
    """An oracle of another author: torch's normal distribution."""
    owned = torch.arange(12).reshape(3, 4)
    values = torch.randn(2, 12, generator=generator(1), **DOUBLE)
    noise = torch.randn(12, generator=generator(2), **DOUBLE)
    found = NoiseComparison(owned, values).matrix(values, noise, 1)
    mean, std = values[0][owned], values[1].exp()[owned]
    x = mean + std * noise[owned]
    expected = torch.distributions.Normal(mean, std).log_prob(x[:, None]).sum(-1)
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-10)


@pytest.mark.parametrize(("units", "weights", "deviation", "scale"), [(10, 3, 1e-3, 1.0), (30, 795, 0.02, 1.0)])
def test_near_units_far_from_the_centre_are_compared_in_double_precision(units, weights, deviation, scale):
    mean = scale * torch.randn(units, weights, generator=generator(5), dtype=torch.float64)
    mean[1] = mean[0] + 0.1 * deviation * torch.randn(weights, generator=generator(6), dtype=torch.float64)
    values = torch.stack([mean.reshape(-1), torch.full((units * weights,), math.log(deviation)).double()]).float()
    noise = torch.randn(units * weights, generator=generator(7))
    owned = torch.arange(units * weights).reshape(units, weights)
    found = NoiseComparison(owned, values).matrix(values, noise, 1)
    exact = values.double()
    truth = NoiseComparison(owned, exact).matrix(exact, noise.double(), 1)
    assert found.dtype == torch.float64
    exchanged = [matrix[0, 1] + matrix[1, 0] - matrix[0, 0] - matrix[1, 1] for matrix in (found, truth)]
    assert float(exchanged[0]) == pytest.approx(float(exchanged[1]), abs=1e-9)


def test_units_that_are_apart_stay_so_in_single_precision():
    values = torch.stack([torch.arange(6.0).repeat_interleave(4), torch.full((24,), -4.0)])
    owned = torch.arange(24).reshape(6, 4)
    noise = torch.randn(24, generator=generator(8))
    comparison = NoiseComparison(owned, values)
    found = comparison.matrix(values, noise, 1)
    exact = values.double()
    truth = NoiseComparison(owned, exact).matrix(exact, noise.double(), 1)
    assert torch.allclose(found, truth, rtol=1e-4, atol=1e-3)  # squares of 10⁴ in single precision
    gradient, expected = torch.zeros_like(values), torch.zeros_like(exact)
    along = without_column_sums(torch.randn(6, 6, generator=generator(9), dtype=torch.float64))
    comparison.pull_back(along, gradient)
    reference = NoiseComparison(owned, exact)
    reference.matrix(exact, noise.double(), 1)
    reference.pull_back(along, expected)
    assert torch.allclose(gradient.double(), expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))
