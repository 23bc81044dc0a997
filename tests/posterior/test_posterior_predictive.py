"""Predictive distributions: against brute force, over all kinds of posteriors, chunks, seeds and errors."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode

import coset.posterior.prediction.chunks as chunks
from architectures import CASES, made, randomized
from coset.distribution.delta import Delta
from coset.distribution.gaussian import Gaussian
from coset.distribution.low_rank import LowRank
from coset.distribution.mean_field import MeanField
from coset.distribution.mixture import Mixture
from coset.distribution.samples import Samples
from coset.errors import InputError
from coset.models import MLP
from coset.posterior.fit import Fit, Trace
from coset.posterior.likelihoods import Bernoulli, Categorical, GaussianNoise, LearnedNoise, NoiseParameter
from coset.posterior.prediction._predictive import predictive, predictive_log_likelihood
from coset.posterior.prediction.draws import draws_of
from coset.running import whole_weights

POINTS, CLASSES = 23, 3


def network(outputs=CLASSES, seed=0):
    torch.manual_seed(seed)
    return MLP(4, [6], outputs).double().eval()


def weights_of(model):
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def mean_field(model, std=0.3):
    mean = weights_of(model)
    return MeanField(mean, {name: torch.full_like(tensor, std) for name, tensor in mean.items()})


def gaussian(model):
    mean = weights_of(model)
    size = sum(tensor.numel() for tensor in mean.values())
    root = torch.randn(size, size, generator=torch.Generator().manual_seed(1), dtype=torch.float64) / size
    return Gaussian(mean, root @ root.mT + 0.01 * torch.eye(size, dtype=torch.float64), tuple(mean))


def samples(model, chains=3, draws=5):
    generator = torch.Generator().manual_seed(2)
    drawn = mean_field(model).sample(chains * draws, generator)
    return Samples({name: tensor.unflatten(0, (chains, draws)) for name, tensor in drawn.items()})


KINDS = {
    "dict": weights_of,
    "delta": lambda model: Delta(weights_of(model)),
    "mean field": mean_field,
    "mean field of points": lambda model: MeanField(weights_of(model), {}),
    "gaussian": gaussian,
    "low rank": lambda model: LowRank(
        weights_of(model), mean_field(model, 0.1).std, mean_field(model).sample(2, torch.Generator().manual_seed(4))
    ),
    "samples": samples,
    "mixture": lambda model: Mixture([mean_field(model), Delta(weights_of(network(seed=9)))], [0.7, 0.3]),
    "mixture of points": lambda model: Mixture([Delta(weights_of(network(seed=k))) for k in range(3)]),
    "fit": lambda model: Fit(mean_field(model), Trace([]), "none", 0.0),
}


@pytest.fixture
def points():
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(POINTS, 4, generator=generator, dtype=torch.float64)
    return x, torch.randint(CLASSES, (POINTS,), generator=generator)


def outputs_of(model, q, x, count, seed=0):
    """(M, N, …), the straightforward way."""
    draws = draws_of(q, count, seed)
    every = (whole_weights(model, draws.draw(j)) for j in range(draws.count))
    return torch.stack([functional_call(model, weights, (x,)).detach() for weights in every])


@pytest.fixture(params=["alone", "together"])
def grouping(request, monkeypatch):
    monkeypatch.setattr(chunks, "OVERHEAD_WORK", 0 if request.param == "alone" else 2**22)
    return request.param


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_posterior_against_brute_force(kind, points, grouping):
    model, (x, y) = network(), points
    q = KINDS[kind](model)
    result = predictive(model, q, x, samples=10, batch_size=7, y=y, keep=True)
    logs = outputs_of(model, q, x, 10).log_softmax(-1)
    mean = logs.exp().mean(0)
    assert result.draws == len(logs)
    torch.testing.assert_close(result.members, logs, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(result.probabilities, mean)
    torch.testing.assert_close(result.expected_entropy, -(logs.exp() * logs).sum(-1).mean(0))
    torch.testing.assert_close(result.entropy, -(mean * mean.log()).sum(-1))
    torch.testing.assert_close(result.mutual_information, result.entropy - result.expected_entropy, atol=1e-12, rtol=0)
    expected = mean[torch.arange(POINTS), y].log()
    torch.testing.assert_close(result.log_likelihood, expected)
    assert result.likelihood.mean == pytest.approx(float(expected.mean()), rel=1e-12)
    alone = predictive_log_likelihood(model, q, x, y, samples=10, batch_size=9)
    torch.testing.assert_close(alone.values, expected)
    assert alone.mean_error == pytest.approx(result.likelihood.mean_error, rel=1e-9, abs=1e-15)


@pytest.mark.parametrize("kind", ["dict", "delta", "mean field of points"])
def test_a_point_is_run_once_and_has_no_error(kind, points):
    x, y = points
    result = predictive(network(), KINDS[kind](network()), x, samples=50, y=y)
    assert result.draws == 1
    assert result.likelihood.mean_error == 0
    assert result.likelihood.errors.eq(0).all()
    assert result.mutual_information.abs().max() < 1e-12


@pytest.mark.parametrize("name", sorted(CASES))
def test_any_architecture_alone_and_together(name, monkeypatch):
    model, _, shape = made(name)
    params = randomized(model, torch.Generator().manual_seed(0))
    weights = {key: tensor for key, tensor in params.items() if tensor.is_floating_point()}
    named = dict(model.named_parameters(remove_duplicate=False))
    q = MeanField(params, {key: torch.full_like(tensor, 0.01) for key, tensor in weights.items() if key in named})
    x = torch.randn(3, *shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = []
    for work in (0, 2**60):
        monkeypatch.setattr(chunks, "OVERHEAD_WORK", work)
        monkeypatch.setattr(chunks, "GROUP_WORK", 2**60)
        run = chunks.runner(model, draws_of(q, 3, 0), x, 2)
        outputs = torch.zeros(3, 3, *run.outputs.shape[1:], dtype=torch.float64)

        def take(number, rows, part, outputs=outputs):
            outputs[number : number + len(part), rows] = part

        with torch.no_grad():
            run.run(draws_of(q, 3, 0), 0, 3, take)
        found.append(outputs)
        assert run.group == (1 if work == 0 else 3)
    torch.testing.assert_close(found[0], outputs_of(model, q, x, 3), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found[1], found[0], rtol=1e-9, atol=1e-9)


class Own:
    """A distribution of somebody's own: all it needs is to draw."""

    def __init__(self, params):
        self.params = params

    def sample(self, n, generator):
        return {name: tensor.expand(n, *tensor.shape) for name, tensor in self.params.items()}


def test_anything_that_draws_will_do(points, grouping):
    model, (x, y) = network(), points
    result = predictive(model, Own(weights_of(model)), x, samples=5, y=y)
    assert result.draws == 5
    torch.testing.assert_close(result.probabilities, model(x).detach().softmax(-1))
    assert result.likelihood.mean_error < 1e-12


class Unbatchable(nn.Linear):
    """Looks at a value, which vmap does not allow."""

    def forward(self, x):
        return super().forward(x) * (1.0 if float(self.weight.sum()) > -1e9 else 2.0)


def test_a_model_that_vmap_cannot_run_is_run_alone(points):
    model = Unbatchable(4, CLASSES).double()
    draws = draws_of(mean_field(model), 4, 0)
    assert chunks.runner(network(), draws_of(mean_field(network()), 4, 0), points[0], 10).group == 4
    assert chunks.runner(model, draws, points[0], 10).group == 1
    result = predictive(model, mean_field(model), points[0], samples=4)
    expected = outputs_of(model, mean_field(model), points[0], 4).softmax(-1).mean(0)
    torch.testing.assert_close(result.probabilities, expected)


def test_the_model_is_left_alone_and_run_in_evaluation_mode(points):
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Dropout(0.5), nn.Linear(5, CLASSES)).double()
    before = weights_of(model)
    q = MeanField(before, {"3.weight": torch.full_like(before["3.weight"], 0.1)})
    one, two = (predictive(model, q, points[0], samples=4).probabilities for _ in range(2))
    assert torch.equal(one, two)
    assert model.training
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_draws_depend_on_seed_and_number_only(points):
    q = mean_field(network())
    few, many, shifted = (
        draws_of(q, 3, 5),
        draws_of(q, 300, 5),
        draws_of(MeanField({name: tensor + 1 for name, tensor in q.mean.items()}, q.std), 3, 5),
    )
    for j in range(3):
        for name, tensor in few.draw(j).items():
            assert torch.equal(tensor, many.draw(j)[name])
            torch.testing.assert_close(shifted.draw(j)[name] - 1, tensor)
    assert not torch.equal(few.draw(0)["layers.0.weight"], few.draw(1)["layers.0.weight"])
    assert not torch.equal(few.draw(0)["layers.0.weight"], draws_of(q, 3, 6).draw(0)["layers.0.weight"])
    generators = [torch.Generator().manual_seed(7) for _ in range(2)]
    one, two = (predictive(network(), q, points[0], samples=4, seed=generator) for generator in generators)
    assert torch.equal(one.log_probabilities, two.log_probabilities)
    again = predictive(network(), q, points[0], samples=4, seed=generators[0])
    assert not torch.equal(one.log_probabilities, again.log_probabilities)


def test_a_path_of_posteriors_is_smooth_and_ends_where_it_should(points):
    x, y = points
    a, b = mean_field(network(seed=0)), mean_field(network(seed=0), std=0.2)

    def between(t):
        mix = [{name: (1 - t) * p[name] + t * r[name] for name in p} for p, r in ((a.mean, b.mean), (a.std, b.std))]
        return predictive_log_likelihood(network(), MeanField(*mix), x, y, samples=16).mean

    values = torch.tensor([between(t / 16) for t in range(17)], dtype=torch.float64)
    assert values[0] == predictive_log_likelihood(network(), a, x, y, samples=16).mean
    assert values[-1] == predictive_log_likelihood(network(), b, x, y, samples=16).mean
    # Independent draws would scatter by the Monte Carlo error at every step.
    error = predictive_log_likelihood(network(), a, x, y, samples=16).mean_error
    assert values.diff().diff().abs().max() < 0.02 * error


def test_draws_of_a_mean_field_have_its_moments_and_keep_ties_and_points():
    tied, point = torch.tensor([1.0, -2.0]), torch.tensor([3.0])
    mean = {"a": tied, "b": tied, "c": torch.zeros(2, 2), "d": point, "n": torch.tensor(4)}
    q = MeanField(mean, {"b": torch.tensor([0.5, 2.0]), "c": torch.tensor([[1.0, 0.0], [3.0, 0.1]])})
    draws = draws_of(q, 1000, 0)
    drawn = [draws.draw(j) for j in range(1000)]
    assert all(list(one) == list(mean) and one["a"].data_ptr() == one["b"].data_ptr() for one in drawn)
    assert all(one["d"] is point and int(one["n"]) == 4 for one in drawn)
    for name, std in (("a", q.std["b"]), ("c", q.std["c"])):
        values = torch.stack([one[name] for one in drawn])
        # Five standard errors of a mean, and of a deviation.
        assert ((values.mean(0) - mean[name]).abs() <= 5 * std / math.sqrt(1000)).all()
        assert ((values.std(0) - std).abs() <= 5 * std / math.sqrt(2000)).all()
    flat = torch.stack([torch.cat([one["a"], one["c"][:, 0]]) for one in drawn])
    assert (torch.corrcoef(flat.mT) - torch.eye(4)).abs().max() < 5 / math.sqrt(1000)


def test_a_mean_field_of_several_types_is_drawn_in_them():
    mean = {"a": torch.zeros(3), "b": torch.zeros(2, dtype=torch.float64)}
    draw = draws_of(MeanField(mean, {name: torch.ones_like(tensor) for name, tensor in mean.items()}), 2, 0).draw(1)
    assert [draw[name].dtype for name in mean] == [torch.float32, torch.float64]


@pytest.mark.parametrize(("count", "expected"), [(None, 15), (15, 15), (40, 15), (5, 5), (1, 1)])
def test_draws_of_samples_are_all_or_evenly_spaced(count, expected):
    flat = torch.arange(15.0).reshape(3, 5, 1)
    draws = draws_of(Samples({"w": flat}), count, 0)
    numbers = [int(draws.draw(j)["w"]) for j in range(draws.count)]
    assert len(numbers) == expected
    assert sorted(numbers) == {15: list(range(15)), 5: [1, 4, 7, 10, 13], 1: [7]}[expected]


def test_any_first_few_draws_of_samples_are_spread_over_the_chains():
    draws = draws_of(Samples({"w": torch.arange(64.0).reshape(4, 16, 1)}), None, 0)
    for few in (4, 8, 16):
        chains = [int(draws.draw(j)["w"]) // 16 for j in range(few)]
        assert all(chains.count(chain) == few // 4 for chain in range(4))


@pytest.mark.parametrize("likelihood", [GaussianNoise(0.4), LearnedNoise()])
def test_regression_against_brute_force(likelihood, points, grouping):
    x, _ = points
    model = network(2)
    if isinstance(likelihood, LearnedNoise):
        model = NoiseParameter(model, 2).double()
    y = torch.randn(POINTS, 2, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    q = mean_field(model)
    result = predictive(model, q, x, likelihood=likelihood, samples=9, batch_size=10, y=y)
    means, stds = likelihood.moments(outputs_of(model, q, x, 9))
    torch.testing.assert_close(result.member_means, means)
    torch.testing.assert_close(result.member_stds, stds)
    torch.testing.assert_close(result.mean, means.mean(0))
    torch.testing.assert_close(result.model_std, means.std(0, correction=0))
    torch.testing.assert_close(result.noise_std, stds.square().mean(0).sqrt())
    second = (means.square() + stds.square()).mean(0)
    torch.testing.assert_close(result.std.square(), second - means.mean(0).square())
    densities = torch.distributions.Normal(means, stds).log_prob(y).sum(-1)
    torch.testing.assert_close(result.log_likelihood, densities.logsumexp(0) - math.log(9))
    without = predictive(model, q, x, likelihood=likelihood, samples=9, keep=False)
    assert without.member_means is None
    torch.testing.assert_close(without.std, result.std)


def test_bernoulli(points):
    x, y = points
    model, q = network(1), mean_field(network(1))
    result = predictive(model, q, x, likelihood=Bernoulli(), samples=6, y=(y > 0).double())
    p = outputs_of(model, q, x, 6).sigmoid().mean(0).squeeze(-1)
    torch.testing.assert_close(result.probabilities, torch.stack([1 - p, p], 1))
    torch.testing.assert_close(result.log_likelihood, torch.where(y > 0, p, 1 - p).log())


def test_probabilities_far_below_the_smallest_number_keep_their_logarithm():
    model = nn.Linear(1, 2, bias=False).double()
    q = Samples({"weight": torch.tensor([[0.0], [2000.0]]).double().expand(1, 3, 2, 1).clone()})
    result = predictive(model, q, torch.ones(1, 1).double(), y=torch.tensor([0]))
    assert result.log_likelihood[0] == pytest.approx(-2000.0)
    assert result.log_probabilities[0, 0] == pytest.approx(-2000.0)
    assert result.expected_entropy[0] == 0


def test_the_error_of_the_mean_is_the_spread_over_seeds(points):
    x, y = points
    model, q = network(), mean_field(network(), 0.15)
    found = [predictive_log_likelihood(model, q, x, y, samples=64, seed=seed) for seed in range(100)]
    spread = torch.tensor([one.mean for one in found]).double().std()
    claimed = torch.tensor([one.mean_error for one in found]).double().square().mean().sqrt()
    # A standard deviation from 100 values is known to 1/√200 = 7 %; three times that.
    assert float(claimed / spread) == pytest.approx(1, abs=0.21)
    each = torch.stack([one.values for one in found]).std(0)
    stated = torch.stack([one.errors for one in found]).square().mean(0).sqrt()
    assert float((stated / each).mean()) == pytest.approx(1, abs=0.1)
    # As if points had draws of their own, the error would be far off: here labels compete for the same draws.
    independent = float(stated.square().sum().sqrt() / POINTS)
    assert independent > 1.4 * float(spread)


def test_drawing_stops_at_the_error_asked_for(points):
    x, y = points
    model, q = network(), mean_field(network())
    loose = predictive(model, q, x, samples=2000, y=y, target_error=0.01)
    tight = predictive(model, q, x, samples=2000, y=y, target_error=0.005)
    assert 16 <= loose.draws < tight.draws < 2000
    assert loose.likelihood.mean_error <= 0.01
    assert tight.likelihood.mean_error <= 0.005
    same = predictive(model, q, x, samples=tight.draws, y=y, batch_size=5)
    torch.testing.assert_close(same.log_probabilities, tight.log_probabilities)
    assert predictive(model, q, x, samples=20, y=y, target_error=1e-9).draws == 20
    assert predictive(model, weights_of(model), x, y=y, target_error=1e-9).draws == 1


def test_one_draw_has_no_known_error(points):
    x, y = points
    result = predictive(network(), mean_field(network()), x, samples=1, y=y, target_error=1.0)
    assert result.draws == 1
    assert math.isnan(result.likelihood.mean_error)


class LargestTensor(TorchDispatchMode):
    """The largest tensor any operation gives, in numbers."""

    def __init__(self):
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        result = function(*arguments, **(options or {}))
        if isinstance(result, torch.Tensor) and not result._is_view():
            self.numbers = max(self.numbers, result.numel())
        return result


@pytest.mark.parametrize("samples", [8, 64])
def test_memory_does_not_grow_with_the_draws(samples, monkeypatch):
    monkeypatch.setattr(chunks, "OVERHEAD_WORK", 0)
    x = torch.randn(400, 4, generator=torch.Generator().manual_seed(0)).double()
    model, q = network(), mean_field(network())
    with LargestTensor() as seen:
        predictive(model, q, x, samples=samples, batch_size=50)
    # Sums (points, classes); no (draws, points, classes).
    assert seen.numbers == 400 * CLASSES
    with LargestTensor() as seen:
        predictive(model, q, x, samples=samples, batch_size=50, y=torch.zeros(400, dtype=torch.long))
    assert seen.numbers == max(400 * CLASSES, samples * 400)


def test_a_group_of_small_networks_is_bounded(points):
    x = torch.zeros(100_000, 4).double()
    run = chunks.runner(network(), draws_of(mean_field(network()), 10_000, 0), x, 1000)
    size = sum(tensor.numel() for tensor in network().parameters())
    assert 1 < run.group <= chunks.GROUP_WORK // (size * 1000)
    large = MLP(300, [100], 3)
    assert chunks.runner(large, draws_of(mean_field(large), 10, 0), torch.zeros(1000, 300), 1000).group == 1


def test_single_precision_posteriors_and_inputs_of_another_type(points):
    x, y = points
    model = network().float()
    result = predictive(model, mean_field(model), x, samples=4, y=y)
    assert result.log_probabilities.dtype == torch.float64
    assert result.probabilities.sum(1).sub(1).abs().max() < 1e-12
    expected = outputs_of(model, mean_field(model), x.float(), 4).double().softmax(-1).mean(0)
    torch.testing.assert_close(result.probabilities, expected, rtol=1e-5, atol=1e-6)


def bad(points):
    x, y = points
    model, q = network(), mean_field(network())
    other = weights_of(MLP(4, [7], CLASSES).double())
    return [
        (lambda: predictive("no", q, x), "model is a str"),
        (lambda: predictive(model, 3, x), "q is a int"),
        (lambda: predictive(model, Delta, x), "q is a"),
        (lambda: predictive(model, other, x), "has shape"),
        (lambda: predictive(model, q, x[:0]), "x is of shape"),
        (lambda: predictive(model, q, x / 0), "not finite"),
        (lambda: predictive(model, q, x[:, :3]), "cannot take inputs"),
        (lambda: predictive(model, q, x, y=y[:4]), "y is of shape"),
        (lambda: predictive(model, q, x, y=y + 1), "labels from"),
        (lambda: predictive(model, q, x, samples=0), "samples is 0"),
        (lambda: predictive(model, q, x, seed=-1), "seed is -1"),
        (lambda: predictive(model, q, x, batch_size=0), "batch_size is 0"),
        (lambda: predictive(model, q, x, target_error=0.1), "y is not"),
        (lambda: predictive(model, q, x, y=y, target_error=0.0), "target_error is 0.0"),
        (lambda: predictive(model, q, x, likelihood="what"), "likelihood is 'what'"),
        (lambda: predictive(model, q, x, likelihood="bernoulli"), "Bernoulli likelihood expects"),
        (lambda: predictive(model, q, x, likelihood="learned-noise"), "cannot read"),
        (lambda: predictive(network(1), mean_field(network(1)), x, likelihood="learned-noise"), "cannot read"),
        (lambda: predictive(network(1), mean_field(network(1)), x), "two classes or more"),
    ]


@pytest.mark.parametrize("number", range(19))
def test_bad_input_is_named(number, points):
    cases = bad(points)
    assert len(cases) == 19
    call, message = cases[number]
    with pytest.raises(InputError, match=message):
        call()


def test_networks_that_overflow_are_named(points):
    model = network()
    weights = {name: tensor * 1e200 for name, tensor in weights_of(model).items()}
    with pytest.raises(InputError, match="NaN or infinite for point"):
        predictive(model, weights, points[0])


def test_categorical_agrees_with_cross_entropy(points):
    x, y = points
    result = predictive(network(), weights_of(network()), x, likelihood=Categorical(), y=y)
    assert -result.likelihood.mean == pytest.approx(float(F.cross_entropy(network()(x), y).detach()), rel=1e-12)
