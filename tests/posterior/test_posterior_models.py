"""Likelihoods and priors against torch's own distributions; flat vectors; what an inference problem refuses."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import distributions, nn

from coset.errors import InputError
from coset.posterior.fit import Control, Trace
from coset.posterior.likelihoods import (
    Bernoulli,
    Categorical,
    GaussianNoise,
    LearnedNoise,
    NoiseParameter,
    as_likelihood,
)
from coset.posterior.priors import Density, FanIn, Isotropic, Named, as_prior, flat_moments
from coset.posterior.problem import layout_of, pose
from coset.symmetry import discover

SEEDS = st.integers(0, 2**32)


def _drawn(seed, *shapes):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


@given(SEEDS)
def test_log_probabilities_of_labels_are_torchs(seed):
    (logits,) = _drawn(seed, (3, 7, 5))
    y = torch.randint(0, 5, (7,), generator=torch.Generator().manual_seed(seed))
    q = distributions.Categorical(logits=logits)
    torch.testing.assert_close(Categorical().log_prob(logits, y), q.log_prob(y))
    torch.testing.assert_close(Categorical().log_probabilities(logits), q.logits)
    two = logits[..., :1]
    binary = distributions.Bernoulli(logits=two[..., 0])
    torch.testing.assert_close(Bernoulli().log_prob(two, y % 2), binary.log_prob((y % 2).double()))
    both = Bernoulli().log_probabilities(two).exp()
    torch.testing.assert_close(both[..., 1], binary.probs)
    torch.testing.assert_close(both.sum(-1), torch.ones(3, 7, dtype=torch.float64))


@given(SEEDS, st.floats(0.01, 100))
def test_log_densities_of_targets_are_torchs(seed, noise):
    outputs, y = _drawn(seed, (2, 6, 4), (6, 2))
    likelihood = GaussianNoise(noise)
    expected = distributions.Normal(outputs[..., :2], noise).log_prob(y).sum(-1)
    torch.testing.assert_close(likelihood.log_prob(outputs[..., :2], y), expected)
    mean, std = likelihood.moments(outputs[..., :2])
    assert torch.equal(mean, outputs[..., :2])
    assert (std == noise).all()
    learned = distributions.Normal(outputs[..., :2], outputs[..., 2:].exp())
    torch.testing.assert_close(LearnedNoise().log_prob(outputs, y), learned.log_prob(y).sum(-1))
    torch.testing.assert_close(LearnedNoise().moments(outputs)[1], learned.stddev)


@pytest.mark.parametrize(
    ("likelihood", "outputs", "targets", "message"),
    [
        (Categorical(), (4, 3), torch.zeros(4), "expected labels, whole numbers"),
        (Categorical(), (4, 3), torch.tensor([0, 1, 2, 3]), "y has labels from 0 to 3; the model has 3 classes"),
        (Categorical(), (4, 1), torch.zeros(4, dtype=torch.int64), "two classes or more"),
        (Categorical(), (4, 3, 2), torch.zeros(4, dtype=torch.int64), "two classes or more"),
        (Bernoulli(), (4, 2), torch.zeros(4), "the Bernoulli likelihood expects"),
        (Bernoulli(), (4, 1), torch.full((4,), 2), "y has values other than 0 and 1"),
        (Bernoulli(), (4, 1), torch.zeros(4, 2), r"y has shape \(4, 2\)"),
        (GaussianNoise(1.0), (4, 2), torch.zeros(4), r"y has shape \(4,\); the model's outputs are for \(N, 2\)"),
        (GaussianNoise(1.0), (4, 1), torch.full((4, 1), math.nan), "not finite"),
        (LearnedNoise(), (4, 3), torch.zeros(4, 1), r"learned noise expects \(examples, 2·targets\)"),
    ],
)
def test_targets_that_do_not_suit_are_refused(likelihood, outputs, targets, message):
    with pytest.raises(InputError, match=message):
        likelihood.fit_targets(targets, torch.zeros(outputs))


def test_targets_in_other_forms_are_taken():
    assert GaussianNoise(1).fit_targets(torch.arange(3), torch.zeros(3, 1)).shape == (3, 1)
    assert Bernoulli().fit_targets(torch.tensor([[0.0], [1.0]]), torch.zeros(2, 1)).tolist() == [0, 1]
    assert Categorical().fit_targets(torch.tensor([1, 0], dtype=torch.uint8), torch.zeros(2, 2)).dtype == torch.int64


@given(SEEDS, st.floats(0.01, 10), st.floats(0.01, 10))
def test_priors_are_gaussians_of_their_moments(seed, std, other):
    weight, bias = _drawn(seed, (3, 4, 2), (3,))
    params = {"weight": weight, "bias": bias}

    def gaussian(name, mean, deviation):
        # Two plain numbers would be rounded to float32 there.
        moments = torch.tensor([mean, deviation], dtype=torch.float64)
        return distributions.Normal(*moments).log_prob(params[name]).sum()

    isotropic = Isotropic(std).log_prob(params)
    torch.testing.assert_close(isotropic, gaussian("weight", 0.0, std) + gaussian("bias", 0.0, std))
    fan_in = FanIn(std, other).log_prob(params)
    torch.testing.assert_close(fan_in, gaussian("weight", 0.0, std / math.sqrt(8)) + gaussian("bias", 0.0, other))
    named = Named({"bias": (0.5, other)}, Isotropic(std)).log_prob(params)
    torch.testing.assert_close(named, gaussian("weight", 0.0, std) + gaussian("bias", 0.5, other))
    mean, deviation = flat_moments(
        Named({"bias": (0.5, other)}, Isotropic(std)), {name: tensor.shape for name, tensor in params.items()}, bias
    )
    flat = torch.cat([weight.flatten(), bias])
    torch.testing.assert_close(distributions.Normal(mean, deviation).log_prob(flat).sum(), named)


def test_a_number_is_a_deviation_and_a_function_a_density():
    assert as_prior(2) == Isotropic(2.0)
    assert isinstance(as_prior(lambda params: params["a"].sum()), Density)
    for wrong, message in [
        (True, "prior is True"),
        ("gauss", "prior is a str"),
        (Isotropic, "prior is a type"),
        (0.0, "std is 0.0"),
        (math.inf, "std is inf"),
    ]:
        with pytest.raises(InputError, match=message):
            as_prior(wrong)
    with pytest.raises(InputError, match=r"log_prob gave \(2,\); expected a scalar"):
        Density(lambda params: params["a"]).log_prob({"a": torch.zeros(2)})
    with pytest.raises(InputError, match="likelihood is a type"):
        as_likelihood(Categorical)
    with pytest.raises(InputError, match=r"std is 0; the noise"):
        GaussianNoise(0)


class _Tied(nn.Module):
    """An embedding that is also the last layer, a frozen scale, and a buffer."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embedding.weight
        self.scale = nn.Parameter(torch.ones(3), requires_grad=False)
        self.register_buffer("shift", torch.zeros(3))

    def forward(self, x):
        return self.head(self.embedding(x) * self.scale + self.shift)


def test_flat_vectors_hold_each_trained_tensor_once():
    model = _Tied().double()
    layout = layout_of(model)
    assert layout.size == 15
    assert dict(layout.aliases) == {"head.weight": "embedding.weight"}
    assert set(layout.fixed) == {"scale", "shift"}
    flat = torch.arange(30, dtype=torch.float64).reshape(2, 15)
    views = layout.views(flat)
    assert views["embedding.weight"].shape == (2, 5, 3)
    assert views["embedding.weight"].data_ptr() == flat.data_ptr()
    assert torch.equal(layout.flatten(views), flat)
    whole = layout.whole(flat[0])
    assert set(whole) == set(model.state_dict())
    assert whole["head.weight"] is whole["embedding.weight"]
    model.load_state_dict(whole)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    with pytest.raises(InputError, match="no parameters that require a gradient"):
        layout_of(model)


def test_the_sums_over_the_data_are_one_convention():
    """log_joint of a part counts N/M times; of all, once; batched networks agree with single ones."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    x, y = torch.randn(8, 2, dtype=torch.float64), torch.randint(0, 3, (8,))
    problem = pose(model, (x, y), "categorical", 0.5)
    nll = nn.functional.cross_entropy(model(x), y, reduction="sum")
    prior = Isotropic(0.5).log_prob(dict(model.named_parameters()))
    torch.testing.assert_close(problem.log_joint(problem.start, x, y), prior - nll)
    halves = [problem.log_joint(problem.start, x[rows], y[rows]) for rows in (slice(0, 4), slice(4, 8))]
    torch.testing.assert_close(sum(halves) / 2, prior - nll)
    flats = problem.start + 0.1 * torch.randn(3, problem.layout.size, dtype=torch.float64)
    values, gradients = problem.log_joints(flats, x, y)
    for flat, value, gradient in zip(flats, values, gradients, strict=True):
        leaf = flat.clone().requires_grad_()
        single = problem.log_joint(leaf, x, y)
        torch.testing.assert_close(value, single.detach())
        torch.testing.assert_close(gradient, torch.autograd.grad(single, leaf)[0])
    out = torch.empty_like(problem.start)
    loss = problem.mean_loss_gradient(problem.start, x, y, out)
    torch.testing.assert_close(loss, nll.detach() / 8)
    joint = problem.log_joints(problem.start[None], x, y)[1][0]
    torch.testing.assert_close(-8 * out - problem.start / 0.25, joint)


def test_dropout_and_statistics_are_still():
    """f(x; θ) is a function: what training mode would draw or update is off, in a copy."""
    model = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 3))
    problem = pose(model, (torch.randn(8, 2), torch.randint(0, 3, (8,))), "categorical", 1.0)
    first, second = (problem.outputs(problem.start, problem.x) for _ in range(2))
    assert torch.equal(first, second)
    assert model.training
    assert model[1].num_batches_tracked == 0


def test_noise_is_a_parameter_that_discovery_understands():
    model = NoiseParameter(nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1)), start=0.5).double()
    outputs = model(torch.zeros(3, 2, dtype=torch.float64))
    assert outputs.shape == (3, 2)
    torch.testing.assert_close(outputs[:, 1].exp(), torch.full((3,), 0.5, dtype=torch.float64))
    sym = discover(model, torch.zeros(2, 2, dtype=torch.float64))
    # 4! permutations and 2⁴ signs of the hidden units, as without the noise.
    assert sym.log_order == pytest.approx(math.log(24 * 16))
    with torch.no_grad():
        model.log_noise.fill_(3.0)
    model.reset_parameters()
    assert float(model.log_noise.detach()) == pytest.approx(math.log(0.5))
    with pytest.raises(InputError, match="start is -1"):
        NoiseParameter(nn.Linear(2, 1), start=-1)


@pytest.mark.parametrize(("found", "outputs"), [(2, 1), (1, 2), (2, 3)])
def test_every_output_has_a_noise_of_its_own(found, outputs):
    """One noise would spread over two outputs unasked, and two over one make a target more."""
    x = torch.zeros(3, 2)
    assert NoiseParameter(nn.Linear(2, found), found)(x).shape == (3, 2 * found)
    model = NoiseParameter(nn.Linear(2, found), outputs)
    message = rf"outputs of NoiseParameter is {outputs} and its network's outputs have shape \(3, {found}\)"
    with pytest.raises(InputError, match=message):
        model(x)
    with pytest.raises(InputError, match=f"outputs of NoiseParameter is {outputs} and its network's"):
        pose(model, (x, torch.zeros(3, found)), "learned-noise", 1.0)


def test_a_trace_gives_records_and_columns():
    trace = Trace([{"elbo": -2.0, "kl": 1.0}, {"elbo": -1.5, "kl": 1.2}])
    assert trace["elbo"] == [-2.0, -1.5]
    assert trace[-1]["kl"] == 1.2
    assert len(trace) == len(list(trace)) == 2
    assert "last: elbo -1.5, kl 1.2" in repr(trace)
    with pytest.raises(InputError, match="the trace has no column 'nll'; it has elbo, kl"):
        trace["nll"]
    with pytest.raises(InputError, match=r"seed is 1\.5"):
        Control(seed=1.5)
