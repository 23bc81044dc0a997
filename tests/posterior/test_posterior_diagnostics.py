"""R̂ and ESS: against the definition, on draws whose mixing is known, and modulo groups that were planted."""

import math
import statistics
import sys
from functools import lru_cache

import pytest
import torch
from torch import nn

from coset.distribution import Samples, act_each
from coset.errors import InputError
from coset.models import MLP
from coset.posterior._diagnostics import diagnose
from coset.posterior.fit import Fit, Trace
from coset.posterior.likelihoods import Categorical, GaussianNoise
from coset.symmetry import discover

CHAINS, DRAWS = 4, 24


def normal(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def network(*sizes, activation="tanh", seed=0):
    """A network with weights of size 1 in all layers."""
    model = MLP(sizes[0], list(sizes[1:-1]), sizes[-1], activation=activation).double().eval()
    for number, parameter in enumerate(model.parameters()):
        parameter.data = normal(*parameter.shape, seed=1000 * seed + number)
    return model


@lru_cache
def group(*sizes, activation="tanh"):
    return discover(network(*sizes, activation=activation), normal(3, sizes[0]))


def around(model, spread, chains=CHAINS, draws=DRAWS, seed=7, correlation=0.0):
    """Chains that walk about the model's weights: AR(1) with standard deviation ``spread``, stationary."""
    found = {}
    for number, (name, centre) in enumerate(model.state_dict().items()):
        noise = normal(draws, chains, *centre.shape, seed=100 * seed + number)
        states = [noise[0]]
        for step in noise[1:]:
            states.append(correlation * states[-1] + math.sqrt(1 - correlation**2) * step)
        found[name] = centre + spread * torch.stack(states, 1)
    return Samples(found)


def tied_ranks(values):
    """1 + how many are smaller + half of how many others are equal."""
    smaller = (values.unsqueeze(0) < values.unsqueeze(1)).double().sum(1)
    equal = (values.unsqueeze(0) == values.unsqueeze(1)).double().sum(1)
    return smaller + (equal + 1) / 2


def direct_rhat(chains):
    """Vehtari et al. (2021), eq. 1-4 and 14, and folded: of draws (C, n), n even, straight from the definition."""
    halves = torch.cat([chains[:, : chains.shape[1] // 2], chains[:, chains.shape[1] // 2 :]])
    ordered = halves.flatten().sort().values
    median = (ordered[len(ordered) // 2 - 1] + ordered[len(ordered) // 2]) / 2
    found = []
    for values in (halves, (halves - median).abs()):
        quantiles = (tied_ranks(values.flatten()) - 3 / 8) / (values.numel() + 1 / 4)
        z = torch.tensor([statistics.NormalDist().inv_cdf(q) for q in quantiles.tolist()], dtype=torch.float64)
        z = z.reshape(halves.shape)
        n = z.shape[1]
        between, within = n * z.mean(1).var(), z.var(1).mean()
        found.append(float((((n - 1) / n * within + between / n) / within).sqrt()))
    return max(found)


def test_rhat_is_that_of_the_definition():
    shift = torch.tensor([0.0, 0.3, 1.0, 3.0], dtype=torch.float64).reshape(4, 1, 1)
    # Rounded, so that ranks are tied; the last column differs in scale and not in place.
    values = normal(4, 30, 3) + shift * torch.tensor([0.0, 1.0, 0.0])
    values[..., 2] *= 1 + shift[..., 0]
    values = (8 * values).round() / 8
    found = diagnose(Samples({"w": values})).weights
    expected = [direct_rhat(values[..., column]) for column in range(3)]
    assert found.rhat.tolist() == pytest.approx(expected, rel=1e-12)
    assert expected[1] > 1.1
    assert expected[2] > 1.1


def test_independent_draws_have_mixed_and_count_fully():
    found = diagnose(Samples({"w": normal(4, 500, 50), "b": normal(4, 500, seed=1)})).weights
    assert len(found) == 51
    # The between-chain part of R̂² has mean 1/n and deviation √(2/7)/n over n = 250 draws and 8 halves.
    assert found.median_rhat - 1 < 0.5 * (1 + 2 * math.sqrt(2 / 7)) / 250
    assert found.max_rhat < 1.02
    assert float(found.bulk_ess.median()) == pytest.approx(2000, rel=0.1)
    assert found.share_above(1.1) == 0


def test_correlated_draws_count_less():
    """AR(1) with correlation ρ has ESS = N(1 − ρ)/(1 + ρ)."""
    found = diagnose(around(network(1, 3, 1), 1.0, draws=1000, correlation=0.8)).weights
    assert float(found.bulk_ess.median()) == pytest.approx(4000 * 0.2 / 1.8, rel=0.15)


def apart(sym, samples):
    """The same chains, every one but the first moved by an element of its own."""
    generator = torch.Generator().manual_seed(3)
    elements = [sym.identity(), *(sym.random(generator) for _ in range(samples.chains - 1))]
    return act_each(sym, [g for g in elements for _ in range(samples.draws)], samples)


@pytest.mark.parametrize("sizes", [(2, 5, 1), (2, 4, 3, 2)])
def test_one_chain_in_copies_of_its_mode_is_one_chain_modulo_permutations_and_signs(sizes):
    model, sym = network(*sizes), group(*sizes)
    assert sym.log_order == pytest.approx(sum(math.lgamma(n + 1) + n * math.log(2) for n in sizes[1:-1])), "tanh is odd"
    one = around(model, 0.05, chains=1)
    plain = Samples({name: torch.cat([tensor] * CHAINS) for name, tensor in one.params.items()})
    expected, found = diagnose(plain).weights, diagnose(apart(sym, plain), sym=sym)
    assert found.weights.max_rhat > 2
    assert torch.equal(found.aligned.rhat, expected.rhat)
    assert torch.equal(found.aligned.bulk_ess, expected.bulk_ess)
    assert torch.equal(found.aligned.tail_ess, expected.tail_ess)


def test_elements_change_no_function():
    model, sym, x = network(2, 5, 1), group(2, 5, 1), normal(6, 2, seed=5)
    plain = around(model, 0.05)
    expected, found = diagnose(plain, model=model, x=x), diagnose(apart(sym, plain), model=model, x=x)
    assert found.weights.max_rhat > 2
    assert found.functions.max_rhat < 1.1
    # Folded about the median, the two draws beside it are tied but for rounding; the bulk is not folded.
    assert found.functions.bulk_ess.tolist() == pytest.approx(expected.functions.bulk_ess.tolist(), rel=1e-9)


def test_chains_at_places_of_a_scale_orbit_that_the_prior_tells_apart_stay_apart():
    """ReLU chains, two with all incoming weights 4 times larger: one function, another density under the prior."""
    model, sym = network(2, 4, 1, activation="relu"), group(2, 4, 1, activation="relu")
    plain = around(model, 0.05)
    label, units = next((label, sym.shape(sym.families[label].owner)) for label in sym.scaling)
    wide = sym.element(scales={label: torch.full(units, 4.0, dtype=torch.float64)})
    elements = [g for g in (sym.identity(), wide) for _ in range(len(plain) // 2)]
    found = diagnose(act_each(sym, elements, plain), model=model, x=normal(6, 2, seed=5), sym=sym)
    assert found.functions.max_rhat < 1.1
    assert found.weights.median_rhat > 1.5
    assert torch.equal(found.aligned.rhat, found.weights.rhat), "units keep their places"
    assert diagnose(act_each(sym, elements, plain), sym=sym, gauge="normalized").aligned.max_rhat < 1.1


def test_scales_are_removed_if_told_so():
    model, sym = network(2, 4, 1, activation="relu"), group(2, 4, 1, activation="relu")
    assert sym.scaling
    plain = around(model, 0.05)
    moved = apart(sym, plain)
    expected = diagnose(plain, sym=sym, gauge="normalized", relax=False)
    found = diagnose(moved, sym=sym, gauge="normalized")
    assert found.weights.max_rhat > 2
    assert diagnose(moved, sym=sym, relax=False).aligned.max_rhat > 2
    assert found.aligned.max_rhat < 1.1
    assert found.aligned.bulk_ess.tolist() == pytest.approx(expected.aligned.bulk_ess.tolist(), rel=1e-9)


def test_labels_that_switch_at_every_draw_do_not_hide_slow_chains():
    """Raw weights look independent of each other; modulo symmetry a draw is worth what it is."""
    model, sym = network(2, 5, 1), group(2, 5, 1)
    slow = around(model, 0.05, draws=40, correlation=0.95)
    generator = torch.Generator().manual_seed(4)
    switched = act_each(sym, [sym.random(generator) for _ in range(len(slow))], slow)
    expected, found = diagnose(slow).weights, diagnose(switched, sym=sym)
    assert float(found.weights.bulk_ess.median()) > 3 * float(expected.bulk_ess.median())
    assert sorted(found.aligned.bulk_ess.tolist()) == pytest.approx(sorted(expected.bulk_ess.tolist()), rel=1e-9)


def test_alignment_invents_no_difference_between_independent_chains():
    """Draws of a symmetric prior: all units are exchangeable, and no gauge is better than another."""
    model, sym = network(2, 5, 1), group(2, 5, 1)
    for parameter in model.parameters():
        parameter.data.zero_()
    found = diagnose(around(model, 1.0, draws=40), sym=sym, relax=False, rounds=5)
    # n = 20 draws in each of 8 halves: R̂² − 1 + 1/n has mean 1/n and deviation √(2/7)/n for every scalar.
    limit = math.sqrt(1 + 5 * math.sqrt(2 / 7) / 20)
    assert found.weights.max_rhat < limit
    assert found.aligned.max_rhat < limit
    assert float(found.aligned.bulk_ess.median()) == pytest.approx(160, rel=0.25)


def test_alignment_hides_no_difference_between_functions():
    """Each chain about a network of its own, hit by elements: neither the gauge nor the group brings them together."""
    model, sym = network(2, 5, 1), group(2, 5, 1)
    stuck = [around(network(2, 5, 1, seed=seed), 0.05, chains=1, seed=seed) for seed in range(1, 1 + CHAINS)]
    samples = apart(sym, Samples({name: torch.cat([c.params[name] for c in stuck]) for name in stuck[0].params}))
    found = diagnose(samples, model=model, x=normal(6, 2, seed=5), sym=sym)
    assert found.functions.max_rhat > 2
    assert found.aligned.max_rhat > 2
    assert found.aligned.share_above(1.1) > 0.9


def test_a_difference_in_one_unit_stays_in_that_unit():
    """Two chains alike but for one outgoing weight: modulo symmetry that weight is named, and no other."""
    model, sym = network(2, 5, 1), group(2, 5, 1)
    samples = around(model, 0.05, chains=2)
    name = "layers.1.weight"
    samples.params[name][1, :, 0, 2] += 0.3
    found = diagnose(apart(sym, samples), sym=sym).aligned
    (worst, rhat), (_, second) = found.worst(2)
    assert worst == f"{name}[0, 2]"
    assert rhat > 1.5 * second
    assert torch.equal(found.rhat, diagnose(samples).weights.rhat), "as if no element had acted"


def test_a_difference_between_exchangeable_units_is_seen_without_labels():
    """Draws of a symmetric prior, one outgoing weight of two chains 4 deviations larger: a function of another size."""
    model, sym = network(2, 3, 1), group(2, 3, 1)
    for parameter in model.parameters():
        parameter.data.zero_()
    samples = around(model, 1.0, draws=30)
    samples.params["layers.1.weight"][:2, :, 0, 1] += 4
    found = diagnose(apart(sym, samples), sym=sym, relax=False, rounds=5).aligned
    # Draws alike would have up to √(1 + 5 √(2/7) / 15) = 1.09.
    assert found.max_rhat > 1.3


def test_functions_are_read_as_the_likelihood_says():
    model = network(2, 3, 3)
    samples, x = around(model, 0.3, draws=20), normal(5, 2, seed=5)
    outputs = torch.stack([torch.func.functional_call(model, draw, (x,)).detach() for draw in samples])
    outputs = outputs.unflatten(0, (CHAINS, 20))
    for likelihood, values in (
        (None, outputs),
        (GaussianNoise(0.1), outputs),
        (Categorical(), outputs.softmax(-1)),
    ):
        found = diagnose(samples, model=model, x=x, likelihood=likelihood, batch_size=2).functions
        expected = diagnose(Samples({"f": values})).weights
        assert found.bulk_ess.tolist() == pytest.approx(expected.bulk_ess.tolist(), rel=1e-9)
        assert found.name(4) == "f[1, 1]"


def test_constants_are_counted_and_left_out():
    varying = normal(4, 20, 3)
    frozen = torch.ones(4, 20, 2, dtype=torch.float64)
    found = diagnose(Samples({"frozen": frozen, "w": varying, "count": torch.ones(4, 20, dtype=torch.long)})).weights
    assert (len(found), found.constants) == (3, 2)
    assert [found.name(number) for number in range(3)] == ["w[0]", "w[1]", "w[2]"]
    with pytest.raises(InputError, match="weights: all 2 scalars are the same in every draw"):
        diagnose(Samples({"frozen": frozen}))


def test_a_middle_draw_that_no_half_holds_makes_no_scalar_vary():
    values = torch.zeros(2, 5, 2, dtype=torch.float64)
    values[:, 2, 0] = 1.0
    values[..., 1] = normal(2, 5)
    found = diagnose(Samples({"w": values})).weights
    assert (found.constants, found.name(0)) == (1, "w[1]")


def test_chains_that_stand_still_apart_have_infinite_rhat():
    values = torch.arange(4.0, dtype=torch.float64).reshape(4, 1, 1).expand(4, 20, 1)
    found = diagnose(Samples({"w": values})).weights
    assert found.max_rhat == math.inf
    assert (found.min_bulk_ess, found.min_tail_ess) == (4, 4)
    two = diagnose(Samples({"w": values[:2]})).weights
    assert two.max_rhat == math.inf
    assert (two.min_bulk_ess, two.min_tail_ess) == (2, 2)
    jump = (torch.arange(20.0) >= 10).double().reshape(1, 20, 1)
    one = diagnose(Samples({"w": jump})).weights
    assert one.max_rhat == math.inf
    assert (one.min_bulk_ess, one.min_tail_ess) == (2, 2), "two stretches of one chain"
    moving = normal(4, 20, 1)
    beside = diagnose(Samples({"w": torch.cat([values, moving], 2)})).weights
    assert beside.bulk_ess.tolist() == [4.0, *diagnose(Samples({"w": moving})).weights.bulk_ess.tolist()]


def test_a_single_chain_is_compared_with_itself():
    still = diagnose(Samples({"w": normal(1, 200, 10)})).weights
    assert still.max_rhat < 1.1
    drift = normal(1, 200, 1) + torch.linspace(0, 5, 200, dtype=torch.float64).reshape(1, 200, 1)
    assert diagnose(Samples({"w": drift})).weights.max_rhat > 1.5


def test_tied_weights_count_once():
    shared = normal(2, 20, 3)
    found = diagnose(Samples({"a": shared, "b": shared})).weights
    assert len(found) == 3


def test_a_fit_is_taken_and_all_three_are_printed():
    model, sym = network(2, 3, 1), group(2, 3, 1)
    fit = Fit(around(model, 0.1, draws=10), Trace([]), "hmc", 0.0, ())
    found = diagnose(fit, model=model, x=normal(5, 2), sym=sym)
    text = str(found)
    assert list(found.sides) == ["weights", "functions", "aligned weights"]
    assert all(name in text for name in found.sides)
    assert text.startswith("4 chains of 10 draws")
    assert "nan" not in text
    assert found.aligned.worst(1)[0][0] in text


def test_the_fewest_draws_give_numbers():
    for chains, draws in ((2, 4), (1, 8), (3, 5)):
        found = diagnose(Samples({"w": normal(chains, draws, 6)})).weights
        for numbers in (found.rhat, found.bulk_ess, found.tail_ess):
            assert bool(numbers.isfinite().all())
            assert bool((numbers > 0).all())


def test_refusals(monkeypatch):
    model = network(2, 3, 1)
    good = around(model, 0.1, draws=10)
    with pytest.raises(InputError, match="samples is 4 chains of 3 draws; R̂ expects 4 draws or more"):
        diagnose(around(model, 0.1, draws=3))
    with pytest.raises(InputError, match="samples is 1 chain of 7 draws; R̂ expects 8 draws or more"):
        diagnose(around(model, 0.1, chains=1, draws=7))
    with pytest.raises(InputError, match="samples is a dict; expected Samples"):
        diagnose(dict(good.params))
    with pytest.raises(InputError, match="model is given and x is not"):
        diagnose(good, model=model)
    with pytest.raises(InputError, match="x is given and model is not"):
        diagnose(good, x=normal(5, 2))
    with pytest.raises(InputError, match="sym is a MLP; expected a Symmetry"):
        diagnose(good, sym=model)
    with pytest.raises(InputError, match="likelihood is given and model is not"):
        diagnose(good, likelihood="categorical")
    broken = {name: tensor.clone() for name, tensor in good.params.items()}
    broken["layers.0.bias"][2, 3, 1] = math.nan
    with pytest.raises(InputError, match=r"weights: 'layers\.0\.bias' is NaN or infinite in draw 3 of chain 2"):
        diagnose(Samples(broken))

    class Infinite(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(1, dtype=torch.float64))

        def forward(self, x):
            return (self.w * x - 1).log()

    with pytest.raises(InputError, match="functions: 'f' is NaN or infinite in draw 0 of chain 0"):
        diagnose(Samples({"w": 2 + 0.01 * normal(2, 10, 1)}), model=Infinite(), x=torch.tensor([[1.0], [0.0]]))
    monkeypatch.setitem(sys.modules, "arviz_stats.base", None)
    with pytest.raises(InputError, match=r"arviz-stats is needed.*pip install coset\[diagnostics\]"):
        diagnose(good)
