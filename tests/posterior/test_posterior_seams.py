"""Where inference meets the rest: buffers and frozen weights of a start, checkpoints of other runs, ends of a run."""

import pytest
import torch
from torch import nn

from architectures import made
from coset._files.sealed import read_sealed, write_sealed
from coset.errors import InputError
from coset.posterior import FITS, Density, Named, elbo, fit_ensemble, fit_hmc, fit_laplace, fit_map, fit_mean_field
from coset.posterior.fit import FORMAT, KEY
from coset.train import DivergenceError

DESCENT = {"epochs": 3, "batch_size": 8, "learning_rate": 0.01, "show": False}
SETTINGS = {
    "map": DESCENT,
    "mean-field": DESCENT,
    "swag": DESCENT | {"collect_every": 1, "rank": 2},
    "laplace": {"show": False},
    "sgmcmc": {"step_size": 1e-5, "draws": 2, "burn_in": 1, "batch_size": 8, "spread": 0.1, "show": False},
    "hmc": {"draws": 2, "warmup": 1, "leapfrog_steps": 1, "spread": 0.1, "show": False},
}


@pytest.fixture
def data():
    generator = torch.Generator().manual_seed(0)
    x = 3 * torch.randn(24, 3, generator=generator, dtype=torch.float64) + 2
    return x, torch.randint(0, 3, (24,), generator=generator)


def _network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3)).double()


def _trained(data):
    """Weights with running statistics of their own, and a frozen layer's."""
    model = _network()
    with torch.no_grad():
        model[0].bias.add_(1)
        for _ in range(5):
            model(data[0])
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize("method", sorted(SETTINGS))
def test_buffers_and_frozen_weights_are_those_of_the_start(method, data):
    model, start = _network(), _trained(data)
    model[0].bias.requires_grad_(False)
    q = FITS[method](model, data, start=start, **SETTINGS[method]).posterior
    for name in ("1.running_mean", "1.running_var", "0.bias"):
        found = q.mean[name] if method != "map" else q.params[name]
        torch.testing.assert_close(found, start[name], rtol=1e-12, atol=0)
    assert not torch.equal(start["1.running_mean"], model.state_dict()["1.running_mean"])
    with pytest.raises(InputError, match=r"'1\.running_mean' has shape \(5,\); the model expects \(6,\)"):
        FITS[method](model, data, start=start | {"1.running_mean": torch.zeros(5)}, **SETTINGS[method])


def test_members_must_agree_in_what_is_not_inferred(data):
    model, start = _network(), _trained(data)
    other = start | {"1.running_mean": start["1.running_mean"] + 1}
    settings = DESCENT | {"members": 2}
    with pytest.raises(InputError, match=r"'1\.running_mean' is not inferred and differs between the networks given"):
        fit_ensemble(model, data, starts=[start, other], **settings)
    draws = fit_ensemble(model, data, starts=[start, start], **settings).posterior
    torch.testing.assert_close(draws.params["1.running_mean"][1, 0], start["1.running_mean"])


def test_the_elbo_of_a_moved_posterior_is_the_same_but_for_its_entropy(data):
    """With a flat prior: batch-norm statistics move with the weights, and the data see no difference."""
    model, sym, _ = made("mlp, batch norm")
    x, y = torch.randn(10, 4, dtype=torch.float64), torch.randint(0, 2, (10,))
    flat = Density(lambda params: next(iter(params.values())).new_zeros(()))
    q = fit_mean_field(model, (x, y), prior=flat, **DESCENT).posterior
    g = sym.random(torch.Generator().manual_seed(0))
    moved = sym.act(g, q)

    def likelihood(posterior):
        found = elbo(model, posterior, (x, y), prior=flat, samples=400)
        return found.value - float(posterior.entropy()) / 10, found.error

    (before, error), (after, other) = likelihood(q), likelihood(moved)
    assert abs(before - after) < 4.5 * (error + other)
    centre = elbo(model, type(q)(q.mean, {n: 1e-9 * s for n, s in q.std.items()}), (x, y), prior=flat, samples=2)
    shifted = type(q)(moved.mean, {name: 1e-9 * s for name, s in moved.std.items()})
    image = elbo(model, shifted, (x, y), prior=flat, samples=2)
    entropies = float(type(q)(q.mean, {n: 1e-9 * s for n, s in q.std.items()}).entropy() - shifted.entropy()) / 10
    assert centre.value - image.value == pytest.approx(entropies, abs=1e-5)


class _Activated(nn.Module):
    def __init__(self, function):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(3, 5).double(), nn.Linear(5, 3).double()
        self.function = function

    def forward(self, x):
        return self.last(self.function(self.first(x)))


class _Scaled:
    """A likelihood of a user, with a setting that its repr does not show."""

    task = "classification"

    def __init__(self, factor):
        self.factor = factor

    def fit_targets(self, targets, outputs, name="y"):
        return targets

    def log_prob(self, outputs, targets):
        return self.factor * outputs.log_softmax(-1).gather(-1, targets[:, None])[:, 0]


def test_a_checkpoint_of_another_function_or_likelihood_is_refused(data, tmp_path):
    def stopped(number, record):
        return number == 0

    path = tmp_path / "run"
    fit_map(_Activated(torch.tanh), data, checkpoint=path, callback=stopped, **DESCENT)
    with pytest.raises(InputError, match="belongs to another run: log-likelihoods"):
        fit_map(_Activated(torch.relu), data, checkpoint=path, **DESCENT)
    assert len(fit_map(_Activated(torch.tanh), data, checkpoint=path, **DESCENT).trace) == 3
    path.unlink()
    fit_map(_Activated(torch.tanh), data, likelihood=_Scaled(1.0), checkpoint=path, callback=stopped, **DESCENT)
    with pytest.raises(InputError, match="belongs to another run: log-likelihoods"):
        fit_map(_Activated(torch.tanh), data, likelihood=_Scaled(9.0), checkpoint=path, **DESCENT)
    fit_map(_Activated(torch.tanh), data, likelihood=_Scaled(1.0), checkpoint=path, **DESCENT)


def test_a_run_that_its_callback_ended_stays_ended(data, tmp_path):
    settings = DESCENT | {"checkpoint": tmp_path / "run", "callback": lambda epoch, record: epoch >= 1}
    first, again = (fit_map(_network(), data, **settings) for _ in range(2))
    assert len(first.trace) == len(again.trace) == 2
    assert torch.equal(first.posterior.params["0.weight"], again.posterior.params["0.weight"])


@pytest.mark.parametrize("method", ["map", "mean-field"])
def test_weights_that_are_not_finite_are_no_posterior(method, data):
    settings = {"epochs": 1, "batch_size": 24, "learning_rate": 1e308, "optimizer": "sgd", "show": False}
    model = _Activated(torch.tanh)
    start = {name: 1e3 * tensor for name, tensor in model.state_dict().items()}
    with pytest.raises(DivergenceError, match=r"no longer finite at the end of round 1|is (inf|nan|-inf) in round 1"):
        FITS[method](model, data, start=start, prior=1e-3, **settings)


def test_divergence_after_resuming_knows_the_last_value(data, tmp_path):
    class Fragile(_Activated):
        broken = False

        def forward(self, x):
            # To all appearances the same network: the few points that identify a run come out as before.
            return super().forward(x) * (float("nan") if self.broken and len(x) > 8 else 1.0)

    path, settings = tmp_path / "run", {"batch_size": 24, "learning_rate": 1e-3, "show": False, "epochs": 4}
    model = Fragile(torch.tanh)
    done = fit_map(model, data, checkpoint=path, callback=lambda epoch, record: epoch == 1, **settings)
    Fragile.broken = True
    message = f"epoch 3, step 1 of 1; the last finite value was {done.trace['nll'][-1]:.6g}"
    with pytest.raises(DivergenceError, match=message):
        fit_map(model, data, checkpoint=path, **settings)


def test_what_depends_on_the_batch_is_no_function(data):
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 3)).double()
    with pytest.raises(InputError, match="depends on the others in the batch"):
        fit_map(model, data, **DESCENT)


def test_a_prior_names_what_there_is(data):
    with pytest.raises(InputError, match=r"the prior names 'nope\.weight', which is not trained"):
        fit_map(_network(), data, prior=Named({"nope.weight": (0.0, 1.0)}), **DESCENT)
    with pytest.raises(InputError, match=r"special\['a'\] is 3\.0; expected \(mean, standard deviation\)"):
        Named({"a": 3.0})
    with pytest.raises(InputError, match="the mean of 'a' is nan"):
        Named({"a": (float("nan"), 1.0)})


def test_an_ensemble_is_a_place_for_chains_to_begin(data):
    members = fit_ensemble(_network(), data, members=3, **DESCENT)
    chains = fit_hmc(_network(), data, start=members, chains=3, draws=2, warmup=1, leapfrog_steps=1, show=False)
    assert chains.posterior.chains == 3
    with pytest.raises(InputError, match=r"start has the leading axes \(3,\); expected \(4,\), the chains"):
        fit_hmc(_network(), data, start=members, chains=4, draws=2, warmup=1, leapfrog_steps=1, show=False)


def test_odd_settings_get_one_clear_line(data):
    model = _network()
    for change, message in [
        ({"kl_weight": 0.5}, "kl_weight is a float; expected a function of the epoch"),
        ({"kl_weight": lambda epoch: -1.0}, r"kl_weight\(0\) is -1\.0"),
        ({"callback": 3}, "callback is a int; expected a function"),
        ({"start": {"0.weight": [1.0]}}, r"start\['0\.weight'\] is a list; expected a tensor"),
    ]:
        with pytest.raises(InputError, match=message):
            fit_mean_field(model, data, **(DESCENT | change))
    with pytest.raises(InputError, match="seed is -1"):
        fit_laplace(model, data, start=model.state_dict(), seed=-1)
    q = fit_mean_field(model, data, **DESCENT)
    with pytest.raises(InputError, match="seed is 'a'"):
        elbo(model, q, data, seed="a")
    assert elbo(model, q, data).error > 0


def _rewrite(path, tensors, content):
    written = {key: value for key, value in content.items() if key not in ("format", "tensors", "versions")}
    write_sealed(path, KEY, FORMAT, tensors, written)


def test_a_checkpoint_that_counts_the_steps_of_every_parameter_goes_on(data, tmp_path):
    model, path = _Activated(torch.tanh), tmp_path / "run"
    whole = fit_mean_field(model, data, **DESCENT)
    fit_mean_field(model, data, checkpoint=path, callback=lambda told: told.number == 1, **DESCENT)
    tensors, content = read_sealed(path, KEY, FORMAT)
    _rewrite(path, tensors | {"step": tensors["step"].repeat(5)}, content)
    resumed = fit_mean_field(model, data, checkpoint=path, **DESCENT)
    assert all(torch.equal(tensor, whole.posterior.mean[name]) for name, tensor in resumed.posterior.mean.items())


@pytest.mark.parametrize("damage", ["a tensor is missing", "a tensor has another shape", "no record of the run"])
def test_a_checkpoint_with_right_checksums_and_wrong_content_is_refused(data, tmp_path, damage):
    path = tmp_path / "run"
    fit_map(_Activated(torch.tanh), data, checkpoint=path, callback=lambda epoch, record: epoch == 1, **DESCENT)
    tensors, content = read_sealed(path, KEY, FORMAT)
    name = next(iter(tensors))
    if damage == "a tensor is missing":
        tensors.pop(name)
    elif damage == "a tensor has another shape":
        tensors[name] = torch.ones(7, 7, 7)
    else:
        content.pop("run")
    _rewrite(path, tensors, content)
    with pytest.raises(InputError, match=f"checkpoint {path} is damaged: "):
        fit_map(_Activated(torch.tanh), data, checkpoint=path, **DESCENT)
