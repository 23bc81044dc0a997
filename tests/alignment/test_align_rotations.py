"""Alignment over the whole group: elements planted on random weights are found back; gauges; what falls back."""

import pytest
import torch
from torch import nn

from coset.alignment import align, merge
from coset.alignment.matching.rotations import NoGauge, Rotations, grams, matching_gauge
from coset.alignment.matching.weightings import directed, directions
from coset.distribution import MeanField
from coset.errors import InputError
from coset.symmetry import discover
from coset.symmetry.action import Acted
from coset.symmetry.incidence import appearances
from mixing_networks import NETWORKS, LanguageModel, outputs, setting, tokens

# Between widths 4 and 2 the readers of a linear network miss directions: weights are then not told by the function.
PLANTED = [name for name in NETWORKS if name != "deep linear"]


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_element_of_the_whole_group_is_found_back(name):
    model, sym, params, x = setting(name)
    other = sym.act(sym.random(torch.Generator().manual_seed(5)), params)
    found = align(sym, params, other, gauge="normalized")
    before, after = (outputs(model, weights, x) for weights in (params, found.params))
    assert torch.allclose(after, before, rtol=1e-9, atol=1e-9 * float(before.abs().max()))
    gauge = matching_gauge(sym, params, scales=True)
    wanted, reached = (sym.act(gauge, weights) for weights in (params, found.params))
    for key in wanted:
        assert torch.allclose(reached[key], wanted[key], atol=1e-5 * float(wanted[key].abs().max())), key
    assert list(found.history) == sorted(found.history)


def test_other_networks_come_closer_than_by_permutations():
    """Two networks that have nothing to do with each other: every step helps."""
    model, sym, params, x = setting("rms norm")
    generator = torch.Generator().manual_seed(9)
    other = {
        name: torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype) for name, tensor in params.items()
    }
    whole, finite = (align(sym, params, other, continuous=wanted) for wanted in (True, False))
    assert whole.element.matrices.keys() == sym.continuous.keys()
    assert not finite.element.matrices
    gauge = matching_gauge(sym, params)

    def distance(weights):
        moved = sym.act(gauge, weights)
        return sum(float((sym.act(gauge, params)[name] - moved[name]).square().sum()) for name in moved)

    assert distance(whole.params) < 0.8 * distance(finite.params)
    assert torch.allclose(outputs(model, whole.params, x), outputs(model, other, x))


def test_the_gauge_is_balanced_and_without_gains():
    _, sym, params, _ = setting("layer norm")
    moved = sym.act(matching_gauge(sym, params), params)
    for name in ("norm.weight", "blocks.0.norm1.weight", "blocks.0.norm2.weight"):
        assert torch.allclose(moved[name], torch.ones_like(moved[name]))
    for head in range(2):
        rows = slice(4 * head, 4 * head + 4)
        q, k = (
            torch.cat([moved[f"blocks.0.{n}.weight"][rows], moved[f"blocks.0.{n}.bias"][rows, None]], 1) for n in "qk"
        )
        assert torch.allclose(q @ q.T, k @ k.T)
        assert torch.allclose(q @ q.T, torch.diag((q @ q.T).diagonal()), atol=1e-9)


def test_steps_are_the_best_of_their_kind():
    """A polar factor against many random rotations; an exchange of heads against both orders."""
    _, sym, params, _ = setting("layer norm")
    generator = torch.Generator().manual_seed(3)
    other = {
        name: torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype) for name, tensor in params.items()
    }
    left, right = (sym.act(matching_gauge(sym, weights), weights) for weights in (params, other))
    steps = Rotations(sym, left)

    def product(g):
        return sum(float((left[name] * tensor).sum()) for name, tensor in sym.act(g, right).items())

    (stream,) = (name for name, item in sym.continuous.items() if item.kind == "centred")
    best = product(steps.turn([stream], right))
    part = sym.restrict([stream])
    for _ in range(50):
        assert product(sym.element(matrices=part.random(generator).matrices)) < best
    parent = sym.classes[next(name for name in sym.continuous if name != stream)].parent
    chosen = steps.exchange(parent, right)
    kept = steps.turn([name for name in sym.continuous if name != stream], right)
    assert product(chosen) >= product(kept) - 1e-9


def test_networks_without_a_gauge_are_matched_by_permutations_and_a_note_says_so():
    _, sym, params, _ = setting("rms norm")
    dead = params | {"norm.weight": params["norm.weight"] * torch.tensor([0.0] + [1.0] * 7)}
    found = align(sym, dead, params)
    assert not found.element.matrices
    assert found.notes == (
        "'norm.weight' has entries that are 0, so that the units of 'blocks.0.norm1' cannot be mixed: permutations and "
        "signs alone were matched",
    )
    with pytest.raises(NoGauge, match="entries that are 0"):
        matching_gauge(sym, dead)
    flat = params | {"blocks.0.v.weight": torch.zeros(8, 8).double(), "blocks.0.v.bias": torch.zeros(8).double()}
    flat |= {"blocks.0.o.weight": torch.zeros(8, 8).double()}
    assert "have rank 0 and 0 of 4: permutations" in align(sym, flat, params).notes[0]


def test_posteriors_are_matched_by_permutations():
    _, sym, params, _ = setting("low-rank adapter")
    q = MeanField(params, {name: torch.full_like(tensor, 0.1) for name, tensor in params.items()})
    assert not align(sym, q, q).element.matrices


def test_callbacks_see_every_step_and_stop():
    _, sym, params, _ = setting("rms norm")
    other = sym.act(sym.random(torch.Generator().manual_seed(5)), params)
    seen = []
    found = align(sym, params, other, callback=lambda step: seen.append(step.what) or len(seen) == 2)
    assert seen == ["streams", "units"]
    assert found.stopped


def test_two_networks_of_one_orbit_merge_into_one_of_the_same_function():
    torch.manual_seed(0)
    model = LanguageModel(nn.RMSNorm, layers=2).eval()
    x = tokens(torch.Generator().manual_seed(1))
    sym = discover(model, x)
    params = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    other = sym.act(sym.random(torch.Generator().manual_seed(5)), params)
    merged = merge(sym, [params, other], options={"gauge": "normalized"}).params
    assert torch.allclose(outputs(model, merged, x), outputs(model, params, x), atol=1e-3)


def test_the_gauge_has_queries_and_keys_of_equal_norms_in_every_rotary_pair():
    _, sym, params, _ = setting("rotary halves")
    moved = sym.act(matching_gauge(sym, params), params)
    q, k = (moved[f"blocks.0.{n}.weight"].unflatten(0, (2, 2, 2)).square().sum((1, 3)) for n in "qk")
    assert torch.allclose(q, k)


def test_angles_of_other_networks_are_the_best_ones():
    """Among random angles of all pairs, none brings two unrelated networks as near."""
    _, sym, params, _ = setting("rotary neighbours")
    generator = torch.Generator().manual_seed(3)
    other = {
        name: torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype) for name, tensor in params.items()
    }
    left, right = (sym.act(matching_gauge(sym, weights), weights) for weights in (params, other))
    (pairs,) = (name for name, item in sym.continuous.items() if item.kind == "rotary")

    def product(g):
        return sum(float((left[name] * tensor).sum()) for name, tensor in sym.act(g, right).items())

    steps = Rotations(sym, left)
    best = product(steps.turn([pairs], right))
    part = sym.restrict([pairs])
    for _ in range(50):
        assert product(sym.element(matrices=part.random(generator).matrices)) < best
    # Heads are exchanged by what all pairs and values in them are worth.
    parent = sym.classes[pairs].parent
    inside = [name for name in sym.continuous if sym.classes[name].parent == parent]
    assert product(steps.exchange(parent, right)) >= product(steps.turn(inside, right)) - 1e-9


def test_small_weights_are_matched_as_well():
    """Their products vanish in single precision."""
    _, sym, params, _ = setting("rms norm")
    small = {name: tensor.float() * (1 if "norm" in name else 1e-24) for name, tensor in params.items()}
    other = sym.act(sym.random(torch.Generator().manual_seed(5), spread=0.0), small)
    found = align(sym, small, other).params
    for key in ("words.weight", "head.weight"):
        torch.testing.assert_close(found[key] * 1e24, small[key] * 1e24, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("seed", [1, 6])
def test_signs_of_heads_beside_signs_of_their_coordinates_are_found(seed):
    """Draws of which matching both in turn alone ends below the best."""
    _, sym, params, _ = setting("rotary, norms of queries")
    other = sym.act(sym.random(torch.Generator().manual_seed(seed)), params)
    found = align(sym, params, other, gauge="normalized").params
    gauge = matching_gauge(sym, params, scales=True)
    wanted, reached = (sym.act(gauge, weights) for weights in (params, found))
    for key in wanted:
        assert torch.allclose(reached[key], wanted[key], atol=1e-5 * float(wanted[key].abs().max())), key


def test_a_network_made_parameter_by_parameter_is_the_one_made_at_once():
    for name in ("rotary in part", "layer norm, tied", "gain between maps"):
        _, sym, params, _ = setting(name)
        g = sym.random(torch.Generator().manual_seed(2))
        whole, lazy = sym.act(g, params), Acted(sym, g, params)
        assert list(lazy) == list(params)
        for key in params:
            torch.testing.assert_close(lazy[key], whole[key], rtol=1e-12, atol=1e-12)


def unrelated(params):
    generator = torch.Generator().manual_seed(9)
    return {name: torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype) for name, tensor in params.items()}


@pytest.mark.parametrize("name", ["low-rank adapter", "layer norm", "rotary halves"])
def test_matching_begins_at_a_start(name):
    """At a planted element there is nothing left to do; at what was found, nothing is lost."""
    model, sym, params, x = setting(name)
    planted = sym.random(torch.Generator().manual_seed(5))
    there = align(sym, params, sym.act(planted, params), start=sym.inverse(planted))
    for key in params:
        assert torch.allclose(there.params[key], params[key], atol=1e-9), key
    assert there.history[-1] <= there.history[0] * (1 + 1e-9)
    other = unrelated(params)
    found = align(sym, params, other)
    again = align(sym, params, other, start=found.element)
    assert again.objective >= found.objective * (1 - 1e-9)
    assert torch.allclose(outputs(model, again.params, x), outputs(model, other, x))


def test_restarts_over_the_whole_group_end_higher_or_where_they_were():
    model, sym, params, x = setting("low-rank adapter")
    other = unrelated(params)
    once, often = (align(sym, params, other, restarts=count) for count in (0, 3))
    assert often.objective > once.objective
    assert often.element.matrices.keys() == sym.continuous.keys()
    assert torch.allclose(outputs(model, often.params, x), outputs(model, other, x))
    seen = []
    stopped = align(sym, params, other, restarts=3, callback=lambda step: seen.append(step.what) or len(seen) == 2)
    assert stopped.stopped
    assert len(seen) == 2


def test_buffers_leave_matrices_out_and_a_note_says_so():
    _, sym, params, _ = setting("low-rank adapter")
    found = align(sym, params, params, buffers=True)
    assert found.notes == ("with buffers matrices are left out: permutations and signs alone were matched",)


@pytest.mark.parametrize("weighting", ["plain", "even"])
@pytest.mark.parametrize("name", ["low-rank adapter", "rms norm", "rotary halves"])
def test_planted_elements_are_found_by_other_weightings(name, weighting):
    _, sym, params, _ = setting(name)
    other = sym.act(sym.random(torch.Generator().manual_seed(5)), params)
    found = align(sym, params, other, gauge="normalized", weighting=weighting)
    gauge = matching_gauge(sym, params, scales=True)
    wanted, reached = (sym.act(gauge, weights) for weights in (params, found.params))
    for key in wanted:
        assert torch.allclose(reached[key], wanted[key], atol=1e-5 * float(wanted[key].abs().max())), key


@pytest.mark.parametrize("weighting", ["even", "directed"])
@pytest.mark.parametrize("name", ["layer norm", "rms norm, tied", "low-rank adapter", "rotary, norms of queries"])
def test_the_objective_is_the_product_of_both_networks_as_they_count(name, weighting):
    """Σ n·⟨D₀θ₀ | D₁·g·θ₁⟩/(‖D₀θ₀‖·‖D₁θ₁‖) over trained weights but gains, each network multiplied out by itself."""
    _, sym, params, _ = setting(name)
    params = sym.without_translations(params)
    other = sym.without_translations(unrelated(params))
    found = align(sym, params, other, weighting=weighting)
    gains = {gain for item in sym.continuous.values() for gain in item.gains}
    ours, theirs = (sym.act(matching_gauge(sym, network), network) for network in (params, other))
    g = sym.compose(matching_gauge(sym, params), sym.compose(found.element, sym.inverse(matching_gauge(sym, other))))
    total = 0.0
    # A rotation g takes D₁θ₁ to D₁'·g·θ₁, with D₁' of the moved network.
    counted = [ours, sym.act(g, theirs)]
    if weighting == "directed":
        counted = [{key: directed(sym, directions(sym, net), key, net[key]) for key in net} for net in counted]
    for key in params.keys() - gains:
        one, two = (net[key] for net in counted)
        on = {item.name for _, item in appearances(sym, key)} - {n for n, item in sym.classes.items() if item.size == 1}
        alone = len(on) == 1 and not any(sym.classes[n].parent for n in on) and on <= sym.continuous.keys()
        if one.norm() > 0 and two.norm() > 0:
            total += (30 if alone else 1) * one.numel() * float((one * two).sum() / (one.norm() * two.norm()))
    assert found.objective == pytest.approx(total, rel=1e-9)


@pytest.mark.parametrize("name", ["layer norm", "rms norm, tied", "low-rank adapter", "rotary halves"])
def test_directions_turn_with_the_network(name):
    """What counts of g·θ is g of what counts of θ, for g that keeps the gauge: the steps find the same g."""
    _, sym, params, _ = setting(name)
    gauged = sym.act(matching_gauge(sym, params), params)
    g = sym.random(torch.Generator().manual_seed(5), spread=0.0)
    g = sym.element(g.permutations, matrices=g.matrices)  # no signs of gains, which are ones in the gauge
    one, two = gauged, sym.act(g, gauged)
    one, two = ({key: directed(sym, directions(sym, net), key, net[key]) for key in net} for net in (one, two))
    wanted = sym.act(g, one)
    assert not all(torch.allclose(one[key], gauged[key]) for key in one)
    for key in one:
        assert torch.allclose(two[key], wanted[key], atol=1e-9), key


def test_directions_are_fourth_roots_of_what_is_read_and_written():
    """Of Gram matrices of mean eigenvalue 1; where nothing is written or read, all directions count alike."""
    _, sym, params, _ = setting("rms norm")
    gauged = sym.act(matching_gauge(sym, params), params)
    (stream,) = (name for name, item in sym.continuous.items() if item.kind == "orthogonal")
    found = directions(sym, gauged)[stream]
    for way, gram in zip((-1, 1), grams(sym, stream, gauged), strict=True):
        fourth = torch.linalg.matrix_power(found[way][0], 4)
        assert torch.allclose(fourth, gram[0] / gram[0].diagonal().mean(), atol=1e-9)
    nothing = {key: torch.zeros_like(tensor) for key, tensor in gauged.items()}
    assert torch.equal(directions(sym, nothing)[stream][1][0], torch.eye(8, dtype=torch.float64))


def test_even_weights_count_entries_whatever_their_size():
    """Of equal networks: all entries that are matched, those that stand on the stream alone 30 times."""
    _, sym, params, _ = setting("rms norm")
    large = params | {"blocks.0.up.weight": 100 * params["blocks.0.up.weight"]}
    alone = 12 * 8 + 6 * 8 + 12 * 8 + 8 + 8  # words, places, read-out, two biases
    others = 4 * 64 + 8 + 2 * 48 + 6  # biases of keys and values are 0 without translations
    for network in (params, large):
        assert align(sym, network, network, weighting="even").objective == pytest.approx(30 * alone + others)
    plain = align(sym.monomial, params, params, weighting="even")
    assert not align(sym.monomial, params, params).notes
    assert align(sym, params, params).objective == align(sym, params, params, weighting="directed").objective
    assert plain.notes == ("parameters were not weighted: that is done over the whole group alone",)
    with pytest.raises(InputError, match="weighting is 'odd'"):
        align(sym, params, params, weighting="odd")
