"""The symmetrized posterior of one permuting class: by its permanent against the mixture it is, and nearest modes."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2
from torch import nn

import coset
from architectures import evaluate, made, randomized
from coset.distribution import MeanField, Mixture, Normal, Samples
from coset.distribution.density import vector
from coset.errors import InputError
from coset.models import MLP
from coset.posterior import GaussianNoise, fit_mean_field
from coset.posterior.symmetrized import (
    all_permutations,
    entropy_symmetrized,
    log_prob_symmetrized,
    mutual_information,
    nearest_mode,
    pair_bound,
    pair_matrix,
    permutation_count,
    sample_permutations,
    sample_symmetrized,
    volume_bound,
)
from coset.posterior.symmetrized.exact import METHODS
from coset.symmetry import Symmetry

DOUBLE = {"dtype": torch.float64}
CLOSE = {"rtol": 1e-11, "atol": 1e-10}


def network(n=4, inputs=2, outputs=2, activation="tanh"):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = MLP(inputs, [n], outputs, activation=activation).double().eval()
    sym = coset.discover(model, torch.zeros(2, inputs, **DOUBLE))
    return model, sym.restrict(scales=False, signs=False)


def posterior(model, seed=0, spread=0.6, std=0.5):
    """Mean field over the parameters, means and deviations in general position; buffers are points."""
    generator = torch.Generator().manual_seed(seed)
    mean = randomized(model, generator)
    mean = {name: spread * tensor if tensor.is_floating_point() else tensor for name, tensor in mean.items()}
    owners = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        mean[name] = mean[owners.setdefault(id(tensor), name)]
    parameters = [name for name, _ in model.named_parameters()]
    noise = {name: torch.rand(mean[name].shape, generator=generator, **DOUBLE) for name in parameters}
    return MeanField(mean, {name: std * (0.5 + noise[name]) for name in parameters})


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def definition(sym, q, omega):
    """log (1/|G|) Σ_g q(g⁻¹·ω), by the action."""
    finite = sym.restrict(scales=False, signs=False)
    logs = [q.log_prob(finite.act(finite.inverse(g), omega)) for g in all_permutations(finite)]
    return torch.logsumexp(torch.stack(logs), 0) - math.log(len(logs))


def test_is_the_definition_and_the_mixture_of_all_images():
    model, sym = network()
    q = posterior(model)
    omega = q.sample(7, generator())
    found = log_prob_symmetrized(sym, q, omega)
    assert found.shape == (7,)
    torch.testing.assert_close(found, definition(sym, q, omega), **CLOSE)
    mixture = Mixture([sym.act(g, q) for g in all_permutations(sym)])
    torch.testing.assert_close(found, mixture.log_prob(omega), **CLOSE)
    torch.testing.assert_close(found, log_prob_symmetrized(sym, q, omega, method="enumeration"), **CLOSE)


def test_does_not_change_along_an_orbit_and_takes_any_leading_axes():
    model, sym = network(n=6)
    q = posterior(model)
    omega = {name: tensor.reshape(2, 3, *tensor.shape[1:]) for name, tensor in q.sample(6, generator()).items()}
    found = log_prob_symmetrized(sym, q, omega)
    assert found.shape == (2, 3)
    moved = sym.act(sym.random(generator(1)), omega)
    torch.testing.assert_close(log_prob_symmetrized(sym, q, moved), found, **CLOSE)
    single = {name: tensor[1, 2] for name, tensor in omega.items()}
    torch.testing.assert_close(log_prob_symmetrized(sym, q, single), found[1, 2], **CLOSE)
    # The posterior's own image has the same symmetrization.
    torch.testing.assert_close(log_prob_symmetrized(sym, sym.act(sym.random(generator(2)), q), omega), found, **CLOSE)


def test_pairs_sum_to_the_density_of_every_image():
    model, sym = network(n=5)
    q = posterior(model)
    omega = q.sample(4, generator())
    matrix = pair_matrix(sym, q, omega)
    assert matrix.shape == (4, 5, 5)
    # One unit by hand: incoming weights, bias and outgoing weights of unit 3 under those of unit 1.
    names = [name for name, _ in model.named_parameters()]
    inner, bias, outer = names[0], names[1], names[2]
    normal = {name: torch.distributions.Normal(q.mean[name], q.std[name]) for name in names}
    by_hand = torch.distributions.Normal(q.mean[inner][1], q.std[inner][1]).log_prob(omega[inner][:, 3]).sum(-1)
    by_hand += torch.distributions.Normal(q.mean[bias][1], q.std[bias][1]).log_prob(omega[bias][:, 3])
    by_hand += (
        torch.distributions.Normal(q.mean[outer][:, 1], q.std[outer][:, 1]).log_prob(omega[outer][..., 3]).sum(-1)
    )
    torch.testing.assert_close(matrix[:, 3, 1], by_hand, **CLOSE)
    rest = normal[names[3]].log_prob(omega[names[3]]).sum(-1)
    (name,) = sym.permuting
    for seed in range(5):
        g = sym.random(generator(seed))
        image = q.log_prob(sym.act(sym.inverse(g), omega))
        torch.testing.assert_close(rest + matrix[:, range(5), g.permutations[name]].sum(-1), image, **CLOSE)


def test_the_square_taken_apart_is_still_exact_far_from_zero():
    model, sym = network()
    q = posterior(model, std=1e-3)
    far = MeanField({name: tensor + 100 for name, tensor in q.mean.items()}, q.std)
    omega = far.sample(3, generator())
    own = pair_matrix(sym, far, omega).diagonal(dim1=1, dim2=2).sum(-1)
    free = [name for name, tensor in q.mean.items() if tensor.shape == (2,)]
    assert len(free) == 1
    rest = torch.distributions.Normal(far.mean[free[0]], far.std[free[0]]).log_prob(omega[free[0]]).sum(-1)
    # Squares of distances are up to 1e6 of deviations here: ten digits are left of sixteen.
    torch.testing.assert_close(own + rest, far.log_prob(omega), rtol=0, atol=1e-6)
    torch.testing.assert_close(log_prob_symmetrized(sym, far, omega), definition(sym, far, omega), rtol=0, atol=1e-6)


@pytest.mark.parametrize("method", list(METHODS))
def test_gradients_in_weights_means_and_deviations(method):
    model, sym = network(n=3)
    q = posterior(model)
    names = q.random_names
    omega = q.sample(2, generator())

    def density(*parts):
        third = len(names)
        mean, std, x = (dict(zip(names, parts[i : i + third], strict=True)) for i in (0, third, 2 * third))
        return log_prob_symmetrized(sym, MeanField(mean, std), x, method=method)

    leaves = [part[name].detach().clone().requires_grad_() for part in (q.mean, q.std, omega) for name in names]
    assert torch.autograd.gradcheck(density, leaves, atol=1e-7)


CASES = [
    ("flatten", "c1"),
    ("flatten", "c2"),
    ("batchnorm+depthwise", "c"),
    ("concatenation", "a"),
    ("concatenation", "b"),
    ("tied embeddings", "s"),
    ("tied embeddings", "u"),
    ("grouped+groupnorm", "g"),
    ("grouped-query attention", "g"),
    ("residual mlp", None),
]


@pytest.mark.parametrize(("case", "name"), CASES)
def test_other_structures_agree_with_enumeration(case, name):
    model, sym, shape = made(case)
    name = name or next(iter(sym.classes))
    one = sym.restrict([name], scales=False, signs=False)
    q = posterior(model, spread=0.1, std=0.8)
    draws = sample_symmetrized(one, q, 3, generator())
    torch.testing.assert_close(
        log_prob_symmetrized(one, q, draws), log_prob_symmetrized(one, q, draws, method="enumeration"), **CLOSE
    )
    torch.testing.assert_close(log_prob_symmetrized(one, q, draws), definition(one, q, draws), **CLOSE)
    # Drawn first, moved afterwards: each draw is the function it was.
    x = torch.randn(2, *shape, generator=generator(3), **DOUBLE)
    plain = q.sample(3, generator())
    pairs = zip(*(Samples({key: t[None] for key, t in part.items()}) for part in (plain, draws)), strict=True)
    for before, after in pairs:
        torch.testing.assert_close(evaluate(model, after, x), evaluate(model, before, x), rtol=1e-9, atol=1e-9)
    assert any(not torch.equal(plain[key], draws[key]) for key in one.structures)


def test_scales_and_signs_play_no_part():
    model, sym, _ = made("flatten")
    q = posterior(model)
    omega = q.sample(2, generator())
    assert sym.scaling
    with_scales, without = sym.restrict(["c2"]), sym.restrict(["c2"], scales=False, signs=False)
    assert torch.equal(log_prob_symmetrized(with_scales, q, omega), log_prob_symmetrized(without, q, omega))


def test_tied_weights_count_once_and_stay_tied():
    model, sym, _ = made("tied embeddings")
    one = sym.restrict(["s"], scales=False, signs=False)
    q = posterior(model)
    assert q.mean["head.weight"] is q.mean["embed.weight"]
    omega = q.sample(2, generator())
    found = log_prob_symmetrized(one, q, omega)
    width = q.mean["embed.weight"].shape[1]
    copies = {name: tensor.clone() for name, tensor in q.mean.items()}
    apart = MeanField(copies, {**q.std, "head.weight": q.std["embed.weight"]})
    twice = pair_matrix(one, apart, omega) - pair_matrix(one, q, omega)
    embedding = torch.stack([
        torch.distributions.Normal(q.mean["embed.weight"][:, j], q.std["embed.weight"][:, j])
        .log_prob(omega["embed.weight"][..., i]).sum(-1)
        for i in range(width) for j in range(width)
    ], -1).reshape(2, width, width)  # fmt: skip
    torch.testing.assert_close(twice, embedding, **CLOSE)
    torch.testing.assert_close(found, definition(one, q, omega), **CLOSE)
    draws = sample_symmetrized(one, q, 2, generator())
    assert draws["head.weight"].data_ptr() == draws["embed.weight"].data_ptr()


def test_points_and_buffers_are_not_looked_at():
    model, sym, _ = made("batchnorm+depthwise")
    one = sym.restrict(["c"], scales=False, signs=False)
    q = posterior(model)
    omega = q.sample(2, generator())
    assert "bn.running_mean" in q.mean
    assert "bn.running_mean" not in q.std
    found = log_prob_symmetrized(one, q, omega)
    other = {name: tensor + (name not in q.std) for name, tensor in omega.items()}
    assert torch.equal(log_prob_symmetrized(one, q, other), found)
    only = {name: omega[name] for name in q.std}
    assert torch.equal(log_prob_symmetrized(one, q, only), found)
    # A frozen layer is a point too: what is left of a unit decides.
    frozen = MeanField(q.mean, {name: tensor for name, tensor in q.std.items() if not name.startswith("conv")})
    torch.testing.assert_close(log_prob_symmetrized(one, frozen, omega), definition(one, frozen, omega), **CLOSE)


def test_single_precision_is_summed_in_double():
    model, sym = network()
    q = posterior(model)
    narrow = MeanField({k: t.float() for k, t in q.mean.items()}, {k: t.float() for k, t in q.std.items()})
    omega = narrow.sample(3, generator())
    wide = MeanField({k: t.double() for k, t in narrow.mean.items()}, {k: t.double() for k, t in narrow.std.items()})
    found = log_prob_symmetrized(sym, narrow, omega)
    assert found.dtype == torch.float64
    torch.testing.assert_close(
        found, log_prob_symmetrized(sym, wide, {k: t.double() for k, t in omega.items()}), **CLOSE
    )


@pytest.mark.parametrize("method", list(METHODS))
def test_information_is_zero_of_an_invariant_posterior_and_log_n_factorial_of_separate_modes(method):
    model, sym = network(n=4)
    q = posterior(model)
    same = MeanField(*({name: torch.full_like(t, 0.3) for name, t in part.items()} for part in (q.mean, q.std)))
    zero = mutual_information(sym, same, 50, 0, method=method)
    assert abs(zero.value) < 1e-12
    assert zero.error < 1e-12
    assert entropy_symmetrized(sym, same, 50, 0, method=method).value == pytest.approx(float(same.entropy()))
    separate = MeanField(q.mean, {name: 1e-3 * t for name, t in q.std.items()})
    most = mutual_information(sym, separate, 50, 0, method=method)
    assert most.value == pytest.approx(math.log(24), abs=1e-9)


def test_information_between_its_bounds_agrees_with_the_entropy_of_the_mixture():
    model, sym = network(n=3, inputs=1, outputs=1)
    q = posterior(model, spread=1.0, std=0.6)
    information = mutual_information(sym, q, 4000, 0)
    assert 0.2 * math.log(6) < information.value < 0.8 * math.log(6)
    assert information == mutual_information(sym, q, 4000, 0)
    by_enumeration = mutual_information(sym, q, 4000, 0, method="enumeration")
    assert information.value == pytest.approx(by_enumeration.value, abs=1e-11)
    assert information.error == pytest.approx(by_enumeration.error, abs=1e-11)
    mixture = Mixture([sym.act(g, q) for g in all_permutations(sym)]).entropy(40_000, generator(1))
    entropy = entropy_symmetrized(sym, q, 4000, 0)
    assert abs(entropy.value - mixture.value) < 4 * math.hypot(entropy.error, mixture.error)
    assert entropy.value == pytest.approx(float(q.entropy()) + information.value)
    # Draws of the difference carry none of the noise ½(‖ε‖² − D) that draws of −log q^G do.
    plain = -log_prob_symmetrized(sym, q, q.sample(4000, generator()))
    assert information.error < 0.5 * float(plain.std()) / math.sqrt(4000)


def test_a_large_sample_is_taken_in_pieces(monkeypatch):
    model, sym = network(n=3)
    q = posterior(model)
    whole = mutual_information(sym, q, 400, 3)
    monkeypatch.setattr("coset.posterior.symmetrized.exact._ENTRIES", 40 * sum(t.numel() for t in q.std.values()))
    pieces = mutual_information(sym, q, 400, 3)
    # Other draws, the same number.
    assert abs(whole.value - pieces.value) < 4 * math.hypot(whole.error, pieces.error)
    assert pieces == mutual_information(sym, q, 400, 3)


def test_draws_are_of_every_image_equally_often():
    model, sym = network(n=3)
    q = posterior(model, std=1e-3)
    count = 1200
    draws = sample_symmetrized(sym, q, count, generator())
    images = [vector(sym.act(g, q.mean), q.random_names, q.mean) for g in all_permutations(sym)]
    away = torch.cdist(vector(draws, q.random_names, q.mean), torch.stack(images))
    assert float(away.amin(1).max()) < 0.02
    counts = torch.bincount(away.argmin(1), minlength=6)
    assert float((counts - count / 6).square().sum() / (count / 6)) < chi2.isf(1e-4, 5)
    assert all(
        torch.equal(draws[name], again) for name, again in sample_symmetrized(sym, q, count, generator()).items()
    )


def test_which_element_moved_a_draw_is_found_again():
    model, sym = network(n=7)
    q = posterior(model, std=0.01)
    (name,) = sym.permuting
    for seed in range(4):
        g = sym.random(generator(seed))
        moved = sym.act(g, q.sample(1, generator(seed + 9)))
        (found,) = sample_permutations(pair_matrix(sym, q, moved), 5, generator())
        assert bool((found == g.permutations[name]).all())


def test_the_nearest_mode_is_the_nearest_of_all_permutations():
    for seed in range(5):
        model, sym = network(n=5)
        q = posterior(model, seed)
        nearest = nearest_mode(sym, q)
        x = vector(q.mean, q.random_names, q.mean)
        others = list(itertools.islice(all_permutations(sym), 1, None))
        assert len(others) == 119
        distances = [float((vector(sym.act(g, q.mean), q.random_names, q.mean) - x).norm()) for g in others]
        assert nearest.exact
        assert nearest.distance == pytest.approx(min(distances), rel=1e-12)
        moved = vector(sym.act(nearest.element, q.mean), q.random_names, q.mean)
        assert float((moved - x).norm()) == pytest.approx(nearest.distance, rel=1e-12)
        assert nearest.norm == pytest.approx(float(x.norm()))
        assert nearest.dimension == len(x) == 5 * (2 + 1 + 2) + 2
        assert nearest.distance <= pair_bound(nearest.norm, 5)
        assert nearest.distance <= volume_bound(nearest.norm, nearest.dimension, sym.log_permutations)
        weights = nearest_mode(sym, q.mean)
        assert (weights.distance, weights.units) == (nearest.distance, nearest.units)


def test_the_nearest_mode_of_deeper_networks_is_a_bound():
    model = MLP(2, [3, 3], 2).double().eval()
    sym = coset.discover(model, torch.zeros(2, 2, **DOUBLE))
    q = posterior(model)
    nearest = nearest_mode(sym, q)
    assert not nearest.exact
    finite = sym.restrict(scales=False, signs=False)
    x = vector(q.mean, q.random_names, q.mean)
    distances = [
        float((vector(finite.act(g, q.mean), q.random_names, q.mean) - x).norm())
        for g in itertools.islice(all_permutations(finite), 1, None)
    ]
    assert min(distances) <= nearest.distance * (1 + 1e-12)
    assert any(nearest.distance == pytest.approx(distance, rel=1e-12) for distance in distances)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("case", "names"),
    [
        ("residual mlp, one stream", None),
        ("grouped-query attention", ["g", "h"]),
        ("grouped-query attention", ["h"]),
        ("batchnorm+depthwise", None),
    ],
)
def test_the_nearest_mode_of_other_structures_is_the_best_exchange(case, names, seed):
    model, sym, _ = made(case)
    sym = sym.restrict(names)
    q = posterior(model, seed)
    nearest = nearest_mode(sym, q)
    finite = sym.restrict(scales=False, signs=False)
    x = vector(q.mean, q.random_names, q.mean)

    def distance(g):
        return float((vector(finite.act(g, q.mean), q.random_names, q.mean) - x).norm())

    assert distance(nearest.element) == pytest.approx(nearest.distance, rel=1e-12)
    for name in finite.permuting:
        shape = finite.shape(name)
        for block in range(math.prod(shape[:-1])):
            for i, j in itertools.combinations(range(shape[-1]), 2):
                order = torch.arange(shape[-1]).repeat(math.prod(shape[:-1]), 1)
                order[block, i], order[block, j] = j, i
                g = finite.element({name: order.reshape(shape)})
                assert nearest.distance <= distance(g) * (1 + 1e-12)


@given(n=st.integers(2, 12), inputs=st.integers(1, 4), seed=st.integers(0, 1000))
def test_no_mode_is_farther_than_the_bounds(n, inputs, seed):
    axes = {"inner": "h -", "bias": "h", "outer": "- h"}
    noise = generator(seed)
    weights = {
        "inner": torch.randn(n, inputs, generator=noise, **DOUBLE),
        "bias": torch.randn(n, generator=noise, **DOUBLE),
        "outer": torch.randn(2, n, generator=noise, **DOUBLE),
    }
    sym = Symmetry.from_axes(axes, weights)
    nearest = nearest_mode(sym, weights)
    assert nearest.distance <= pair_bound(nearest.norm, n) * (1 + 1e-12)
    assert nearest.distance <= volume_bound(nearest.norm, nearest.dimension, sym.log_permutations)


def test_the_bounds_are_attained_and_have_the_papers_size():
    # The corners of a simplex around 0: all pairs are as far from each other as their norms allow.
    n = 6
    corners = torch.eye(n, **DOUBLE) - 1 / n
    sym = Symmetry.from_axes({"w": "h -"}, {"w": corners})
    nearest = nearest_mode(sym, {"w": corners})
    assert nearest.distance == pytest.approx(pair_bound(nearest.norm, n), rel=1e-12)
    # MNIST with 100 hidden units: theorem 3.1 says 437‖ω‖ where 2‖ω‖ is always true.
    dimension = 784 * 100 + 100 + 100 * 10 + 10
    assert volume_bound(1.0, dimension, math.lgamma(101)) == pytest.approx(437.18, abs=0.01)


def test_what_cannot_be_done_is_refused():
    model, sym = network()
    q = posterior(model)
    omega = q.sample(2, generator())
    with pytest.raises(InputError, match="method is 'ryser'; expected one of permanent, enumeration"):
        log_prob_symmetrized(sym, q, omega, method="ryser")
    with pytest.raises(InputError, match="q is a dict"):
        log_prob_symmetrized(sym, dict(q.mean), omega)
    with pytest.raises(InputError, match="q is a dict"):
        sample_symmetrized(sym, dict(q.mean), 2, generator())
    with pytest.raises(InputError, match="no name has deviations"):
        log_prob_symmetrized(sym, MeanField(q.mean, {}), omega)
    with pytest.raises(InputError, match="lacks"):
        log_prob_symmetrized(sym, q, {})
    with pytest.raises(InputError, match="samples is 1"):
        mutual_information(sym, q, 1, 0)
    with pytest.raises(InputError, match="seed is -1"):
        mutual_information(sym, q, 10, -1)
    wide, wide_symmetry = network(n=25)
    with pytest.raises(InputError, match="expected 24 or fewer"):
        log_prob_symmetrized(wide_symmetry, posterior(wide), posterior(wide).mean)
    with pytest.raises(InputError, match="no class"):
        nearest_mode(sym.restrict([]), q)
    with pytest.raises(InputError, match="units is 1"):
        pair_bound(1.0, 1)
    with pytest.raises(InputError, match="log_order is 0"):
        volume_bound(1.0, 3, 0.0)
    with pytest.raises(InputError, match="weights is a list"):
        nearest_mode(sym, [1])


def test_other_structures_are_named_where_a_permanent_is_not_the_answer():
    deep = MLP(2, [3, 4], 2).double().eval()
    sym = coset.discover(deep, torch.zeros(2, 2, **DOUBLE))
    q = posterior(deep)
    omega = q.sample(2, generator())
    with pytest.raises(InputError, match="expected one class"):
        log_prob_symmetrized(sym, q, omega)
    model, stream, _ = made("residual mlp, one stream")
    q = posterior(model)
    (name,) = [name for name in stream.permuting if stream.classes[name].size == 3]
    assert permutation_count(stream.restrict([name])) == 6
    with pytest.raises(InputError, match="belong to two units"):
        log_prob_symmetrized(stream.restrict([name]), q, q.sample(1, generator()))
    model, attention, _ = made("grouped-query attention")
    q = posterior(model)
    with pytest.raises(InputError, match="blocks that permute each on its own"):
        log_prob_symmetrized(attention.restrict(["h"]), q, q.sample(1, generator()))
    small = nn.Linear(2, 2).double()
    with pytest.raises(InputError, match="not a parameter of this symmetry"):
        log_prob_symmetrized(network()[1], posterior(small), posterior(small).sample(1, generator()))


class Outside(Normal):
    """A kind that the library does not know, of weights that are independent."""

    independent = True

    def __init__(self, q):
        self.own, self.mean, self.std = q, q.mean, q.std

    @property
    def random_names(self):
        return self.own.random_names

    def sample(self, n, generator):
        return self.own.sample(n, generator)

    def entropy(self):
        return self.own.entropy()

    def transformed(self, action, *, partial):
        return Outside(self.own.transformed(action, partial=partial))


def test_kinds_from_outside_whose_weights_are_independent_take_the_place_of_a_mean_field():
    model, sym = network()
    known = posterior(model)
    q = Outside(known)
    omega = known.sample(3, generator())
    assert torch.equal(log_prob_symmetrized(sym, q, omega), log_prob_symmetrized(sym, known, omega))
    assert mutual_information(sym, q, 20, show=False) == mutual_information(sym, known, 20, show=False)
    assert nearest_mode(sym, q).distance == nearest_mode(sym, known).distance
    drawn, same = (sample_symmetrized(sym, one, 2, generator()) for one in (q, known))
    assert all(torch.equal(drawn[name], same[name]) for name in same)
    x = torch.linspace(-1, 1, 12, **DOUBLE).reshape(6, 2)
    settings = {"epochs": 1, "batch_size": 6, "learning_rate": 1e-3, "likelihood": GaussianNoise(0.5), "show": False}
    found, expected = (fit_mean_field(model, (x, x), start=one, **settings).posterior for one in (q, known))
    assert all(torch.equal(found.std[name], expected.std[name]) for name in expected.std)
    q.independent = False
    with pytest.raises(InputError, match="q is a Outside; expected a MeanField"):
        log_prob_symmetrized(sym, q, omega)
