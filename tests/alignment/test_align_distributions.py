"""Correlated Gaussians are aligned by their marginals with the covariance carried along; draws to their mean."""

import pytest
import torch
from tiny_groups import LINEAR, tiny, weights

from architectures import evaluate
from coset.alignment import align, align_many, align_samples, mean, merge
from coset.distribution import Gaussian, LowRank, MeanField, Samples, act_each, normalize_scales
from coset.errors import InputError
from coset.models import MLP
from coset.symmetry import Symmetry, discover


def dense(sym, generator):
    params = weights(sym, generator)
    size = sum(tensor.numel() for tensor in params.values())
    root = torch.randn(size, size + 2, generator=generator, dtype=torch.float64)
    return Gaussian(params, root @ root.T / size, tuple(params))


def low_rank(sym, generator, rank=2):
    params = weights(sym, generator)
    diagonal = {key: 0.1 + torch.rand(t.shape, generator=generator, dtype=torch.float64) for key, t in params.items()}
    factors = {key: torch.randn(rank, *t.shape, generator=generator, dtype=torch.float64) for key, t in params.items()}
    return LowRank(params, diagonal, factors)


CORRELATED = pytest.mark.parametrize("make", [dense, low_rank])


def covariance(q):
    return q.covariance if isinstance(q, Gaussian) else q.dense.covariance


def network(activation, sizes=(2, 6, 5, 1)):
    model = MLP(sizes[0], list(sizes[1:-1]), sizes[-1], activation=activation).double().eval()
    return model, discover(model, torch.zeros(2, sizes[0], dtype=torch.float64), verify=False)


def near(params, generator, noise):
    return {
        name: tensor + noise * torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
        for name, tensor in params.items()
    }


def assert_equal(a, b, **tolerance):
    for name, tensor in b.items():
        torch.testing.assert_close(a[name], tensor, **tolerance)


@CORRELATED
@pytest.mark.parametrize("name", LINEAR)
def test_a_planted_element_brings_the_covariance_back(name, make):
    sym, generator = tiny(name).restrict(scales=False), torch.Generator().manual_seed(0)
    reference = make(sym, generator)
    result = align(sym, reference, sym.act(sym.random(generator), reference), restarts=10)
    assert type(result.aligned) is type(reference)
    assert_equal(result.params, reference.mean, rtol=0, atol=0)
    assert torch.equal(covariance(result.aligned), covariance(reference))


@CORRELATED
def test_scales_carry_the_covariance_too(make):
    sym, generator = tiny("two layers"), torch.Generator().manual_seed(0)
    reference = make(sym, generator)
    other = sym.act(sym.random(generator), reference)
    result = align(sym, reference, other, gauge="normalized", scales=True, restarts=5)
    torch.testing.assert_close(covariance(result.aligned), covariance(reference), rtol=1e-9, atol=1e-9)


@CORRELATED
def test_a_gaussian_is_matched_as_its_marginals(make):
    """With the same element for every divergence; a mean field may stand on either side."""
    sym, generator = tiny("two layers").restrict(scales=False), torch.Generator().manual_seed(1)
    q0, q1 = make(sym, generator), make(sym, generator)
    for divergence in ("wasserstein", "kl"):
        expected = align(sym, q0.marginals, q1.marginals, divergence=divergence)
        for pair in ((q0, q1), (q0.marginals, q1), (q0, q1.marginals)):
            found = align(sym, *pair, divergence=divergence)
            assert found.element == expected.element
            assert found.objective == expected.objective
            assert type(found.aligned) is type(pair[1])


def test_only_correlated_deviations_tell_the_units_apart():
    sym = Symmetry.from_axes({"w": "h"}, {"w": torch.zeros(2)})
    zero = {"w": torch.zeros(2, dtype=torch.float64)}
    covariance = torch.tensor([[4.0, 0.5], [0.5, 1.0]], dtype=torch.float64)
    result = align(sym, Gaussian(zero, covariance, ("w",)), Gaussian(zero, covariance.flip(0, 1), ("w",)))
    assert result.element.permutations["h"].tolist() == [1, 0]
    assert torch.equal(result.aligned.covariance, covariance)


@CORRELATED
def test_many_gaussians_and_what_has_no_average(make):
    sym, generator = tiny("two layers").restrict(scales=False), torch.Generator().manual_seed(0)
    reference = make(sym, generator)
    kind = type(reference).__name__
    many = align_many(sym, [reference, *(sym.act(sym.random(generator), reference) for _ in range(2))])
    for q in many.aligned:
        assert torch.equal(covariance(q), covariance(reference))
    with pytest.raises(InputError, match=f"network 0 is a {kind}: the average of correlated ones has no closed form"):
        mean(many.aligned)
    with pytest.raises(InputError, match=f"network 0 is a {kind}, which is not averaged here; expected a MeanField"):
        merge(sym, many.aligned)
    with pytest.raises(InputError, match="the reference is a posterior and the other network a point"):
        align(sym, reference, dict(reference.mean))
    part = MeanField(reference.mean, {"b": reference.std["b"]})
    with pytest.raises(InputError, match="the reference has a deviation of 'a' and the other network has not"):
        align(sym, reference, part)


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_draws_of_one_network_become_one(activation):
    """Each hit by its own element, scales included: all come back to the last draw of the first chain."""
    model, sym = network(activation)
    generator = torch.Generator().manual_seed(0)
    base = near({name: torch.zeros_like(tensor) for name, tensor in model.state_dict().items()}, generator, 1.0)
    planted = Samples.stack([sym.act(sym.random(generator), base) for _ in range(12)], chains=3)
    result = align_samples(sym, planted, gauge="normalized")
    expected, _ = normalize_scales(sym, planted.draw(0, -1))
    for draw in result.aligned:
        assert_equal(draw, expected, rtol=1e-9, atol=1e-9)
    assert result.settled
    assert result.agreement == pytest.approx(dict.fromkeys(result.agreement, 1.0))
    moved = act_each(sym, result.elements, planted)
    assert all(torch.equal(moved.params[name], tensor) for name, tensor in result.aligned.params.items())
    x = torch.randn(5, 2, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(evaluate(model, result.aligned.draw(1, 2), x), evaluate(model, base, x))


def test_noisy_draws_return_to_their_gauge():
    """Permuted and flipped chains around one network: exactly the draws before they were moved, up to one element."""
    model, sym = network("tanh", (3, 8, 8, 2))
    generator = torch.Generator().manual_seed(0)
    base = near({name: torch.zeros_like(tensor) for name, tensor in model.state_dict().items()}, generator, 1.0)
    draws = [near(base, generator, 0.1) for _ in range(20)]
    moved = [sym.act(sym.random(generator), draw) for draw in draws]
    result = align_samples(sym, Samples.stack(moved, chains=2))
    # The common frame is that of the reference draw, number 9 in order.
    frame = align(sym, moved[9], draws[9]).element
    assert_equal(sym.act(frame, draws[9]), moved[9], rtol=0, atol=0)
    for draw, aligned in zip(draws, result.aligned, strict=True):
        assert_equal(aligned, sym.act(frame, draw), rtol=0, atol=0)
    assert list(result.history) == sorted(result.history)
    squares = sum(
        float(tensor.square().sum()) for name, tensor in result.aligned.mean.items() if name in sym.structures
    )
    assert result.objective == pytest.approx(squares, rel=1e-12)
    again = align_samples(sym, Samples.stack(moved, chains=2))
    assert again.elements == result.elements


def test_draws_that_agree_are_left_alone_and_nothing_gets_worse():
    model, sym = network("tanh")
    generator = torch.Generator().manual_seed(0)
    base = near({name: torch.zeros_like(tensor) for name, tensor in model.state_dict().items()}, generator, 1.0)
    close = Samples.stack([near(base, generator, 0.01) for _ in range(6)])
    result = align_samples(sym, close)
    assert all(g == sym.identity() for g in result.elements)
    assert len(result.history) == 1
    apart = Samples.stack([near(base, generator, 2.0) for _ in range(6)])
    for relax in (True, False):
        found = align_samples(sym, apart, relax=relax)
        assert list(found.history) == sorted(found.history)
        assert found.objective > found.history[0]
    alone = align_samples(sym, Samples.stack([base]))
    assert alone.settled
    assert alone.elements[0] == sym.identity()


def test_scales_are_left_where_they_are_by_default():
    model, sym = network("relu")
    generator = torch.Generator().manual_seed(0)
    base = near({name: torch.zeros_like(tensor) for name, tensor in model.state_dict().items()}, generator, 1.0)
    samples = Samples.stack([sym.act(sym.random(generator, spread=0.1), base) for _ in range(4)])
    result = align_samples(sym, samples)
    assert all(bool((d == 1).all()) for g in result.elements for d in g.scales.values())
    assert_equal(result.aligned.draw(0, 3), samples.draw(0, 3), rtol=0, atol=0)


def test_a_callback_stops_and_bad_input_is_named():
    model, sym = network("tanh")
    base = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    samples = Samples.stack([near(base, torch.Generator().manual_seed(i), 1.0) for i in range(4)])
    seen = []
    result = align_samples(sym, samples, callback=lambda step: seen.append(step) or True)
    assert result.stopped
    assert [step.what for step in seen] == ["round 0"]
    with pytest.raises(InputError, match="samples is a dict; expected Samples"):
        align_samples(sym, base)
    with pytest.raises(InputError, match="gauge is 'free'; expected one of given, normalized"):
        align_samples(sym, samples, gauge="free")
    with pytest.raises(InputError, match="rounds is -1"):
        align_samples(sym, samples, rounds=-1)
    broken = {name: tensor.clone() for name, tensor in samples.params.items()}
    broken["layers.0.bias"][0, 2, 0] = torch.nan
    with pytest.raises(InputError, match=r"'layers.0.bias' of draw 2 of chain 0 has 1 entries that are NaN"):
        align_samples(sym, Samples(broken))
