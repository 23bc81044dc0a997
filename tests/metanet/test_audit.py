"""Verdicts of audits: readers that are invariant by construction, and readers that are not, against closed forms."""

import json
import math
from itertools import product

import pytest
import torch
from read_networks import first_weight, gradient_step, logits, loss, moments, setting, sorted_norms, stack
from torch import nn

import mixing_networks
import turning_networks
from coset.errors import InputError
from coset.metanet import audit
from coset.symmetry import Symmetry

QUICK = {"draws": 2, "budget": 6, "show": False}


def verdicts(found):
    return {kind: one.verdict for kind, one in found.kinds.items()}


@pytest.mark.parametrize(
    ("reader", "invariant"),
    [
        (logits, {"permutations", "scales", "signs", "all"}),
        (loss, {"permutations", "scales", "signs", "all"}),
        (lambda params: int(loss(params) > 0.5), {"permutations", "scales", "signs", "all"}),
        (sorted_norms, {"permutations", "signs"}),
        (moments, {"permutations"}),
        (first_weight, set()),
        (lambda params: bool(first_weight(params) > 0), {"scales"}),
        (lambda params: float(params["4.bias"].sum()), {"permutations", "scales", "signs", "all"}),
    ],
    ids=["logits", "loss", "label", "norms", "moments", "weight", "sign of a weight", "fixed"],
)
def test_verdicts_are_what_readers_are_made_for(reader, invariant):
    check_verdicts(reader, invariant, torch.float64)


def check_verdicts(reader, invariant, dtype):
    found = audit(reader, setting()[1], stack(3, dtype=dtype), draws=2, budget=4, show=False)
    assert list(found.kinds) == ["permutations", "scales", "signs", "all"]
    assert {kind for kind, verdict in verdicts(found).items() if verdict == "invariant"} == invariant
    assert {kind for kind, verdict in verdicts(found).items() if verdict == "changes"} == set(found.kinds) - invariant
    assert {kind for kind in found.kinds if found.invariant(kind)} == invariant
    assert found.invariant() == (invariant == set(found.kinds))


def test_verdicts_in_single_precision():
    check_verdicts(logits, {"permutations", "scales", "signs", "all"}, torch.float32)
    check_verdicts(moments, {"permutations"}, torch.float32)


@pytest.mark.parametrize(
    ("networks", "name", "kinds"),
    [
        (turning_networks, "siren", {"permutations", "signs", "turns", "all"}),
        (turning_networks, "sigmoid", {"permutations", "turns", "all"}),
        (mixing_networks, "layer norm, tied", {"permutations", "scales", "signs", "matrices", "translations", "all"}),
    ],
)
def test_outputs_are_invariant_under_every_kind_and_weights_under_none(networks, name, kinds):
    model, sym, params, x = networks.setting(name)
    found = audit(lambda given: networks.outputs(model, given, x).flatten(), sym, params, **QUICK)
    assert set(found.kinds) == kinds
    assert verdicts(found) == dict.fromkeys(found.kinds, "invariant")
    assert found["all"].relative is None
    numbers = [key for key, tensor in params.items() if tensor.is_floating_point()]
    weights = audit(lambda given: torch.cat([given[key].flatten() for key in numbers]), sym, params, **QUICK)
    assert verdicts(weights) == dict.fromkeys(kinds, "changes")


def one_layer(units=5):
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(2, units), nn.Tanh(), nn.Linear(units, 1)).double()
    axes = {"0.weight": "h -", "0.bias": "h", "2.weight": "- /h"}
    return Symmetry.from_axes(axes, model, scales={"h": "sign"}), dict(model.state_dict())


def test_changes_of_a_linear_reader_under_signs_have_their_distribution():
    """r(s·θ) − r(θ) = −2·Σ a_i over flipped units i, a_i = the part of r that is theirs: 2^n equally likely sums."""
    sym, params = one_layer()
    parts = params["0.weight"].sum(1) + params["0.bias"] + 3 * params["2.weight"][0]
    every = sorted(abs(2 * sum(float(a) for a, s in zip(parts, signs, strict=True) if s))
                   for signs in product([0, 1], repeat=len(parts)))  # fmt: skip

    def linear(given):
        return given["0.weight"].sum((1, 2)) + given["0.bias"].sum(1) + 3 * given["2.weight"].sum((1, 2))

    copies = {name: tensor.expand(100, *tensor.shape) for name, tensor in params.items()}
    found = audit(linear, sym, copies, kinds=["signs"], draws=15, budget=60, batch=True, show=False)["signs"]
    drawn = found.changes.flatten()
    # Dvoretzky, Kiefer, Wolfowitz: farther than this from the distribution function once in a million audits.
    allowed = math.sqrt(math.log(2e6) / (2 * len(drawn)))
    for number, value in enumerate(every):
        share = float((drawn <= value + 1e-9).double().mean())
        assert abs(share - (number + 1) / len(every)) < allowed
    assert min(float((drawn - value).abs().min()) for value in every) < 1e-12
    # The largest: all units whose parts have one sign.
    assert found.worst.change == pytest.approx(every[-1], rel=1e-12)
    assert found.relative == math.inf  # the networks are copies of each other


def test_labels_flip_as_often_as_signs_do():
    sym, params = one_layer()
    copies = {name: tensor.expand(50, *tensor.shape) for name, tensor in params.items()}
    found = audit(lambda given: given["0.bias"][:, 0] > 0, sym, copies, draws=8, budget=0, batch=True, kinds=["signs"])
    share = found["signs"].typical
    assert abs(share - 0.5) < 5 * math.sqrt(0.25 / 400)
    assert found.output == "labels"
    assert found.between == 0
    assert found["signs"].flipped == float(found["signs"].changes.any(1).double().mean())
    which = audit(lambda given: int(given["0.bias"].argmax()), sym, params, draws=200, budget=0, kinds=["permutations"])
    assert abs(which["permutations"].typical - 0.8) < 5 * math.sqrt(0.16 / 200)


def test_a_label_that_rounding_flips_is_no_evidence():
    sym, networks = setting()[1], stack(3)
    networks["4.bias"][0, 0] = 0.0

    def label(given):  # of the first network the sign of rounding
        return given["4.bias"][0] + 1e-15 * (given["2.weight"][0, 0] * 1e18).sin() > 0

    found = audit(lambda given: bool(label(given)), sym, networks, kinds=["permutations", "signs"], draws=8, budget=8)
    assert float(found["permutations"].rounding[0]) == 1
    assert bool(found["permutations"].changes[0].any())
    assert found.invariant("permutations")
    alone = audit(
        lambda given: bool(label(given)), sym, {name: tensor[0] for name, tensor in networks.items()},
        kinds=["permutations"], draws=8, budget=8,
    )  # fmt: skip
    assert alone["permutations"].verdict == "cannot tell"


def test_a_reader_that_rounding_moves_anywhere_tells_nothing():
    def mixed_up(params):
        return float((params["0.weight"] * 1e18).sin().sum())

    found = audit(mixed_up, setting()[1], stack(4), draws=2, budget=4)
    assert verdicts(found) == {
        "permutations": "cannot tell", "scales": "cannot tell", "signs": "invariant", "all": "cannot tell",
    }  # fmt: skip
    assert not found.invariant()


def test_what_weights_hardly_move_rounds_all_the_same():
    def offset(params):  # one after the other, so that rounding depends on the order
        return float((1e6 / 3 * (1 + 1e-12 * params["0.weight"].square().sum(1))).cumsum(0)[-1])

    found = audit(offset, setting()[1], stack(3), kinds=["permutations"], draws=8, budget=16)
    assert float(found["permutations"].changes.max()) > 1e-11  # it does round
    assert found.invariant()


def test_small_changes_are_told_from_rounding():
    found = audit(lambda params: loss(params) + 1e-9 * first_weight(params), setting()[1], stack(4), **QUICK)
    assert verdicts(found) == dict.fromkeys(found.kinds, "changes")
    assert found["signs"].relative < 1e-6


def test_a_reader_in_single_precision_is_judged_by_it():
    def single(params):
        return float(logits({name: tensor.float() for name, tensor in params.items()}).sum())

    found = audit(single, setting()[1], stack(3), draws=4, budget=8)
    assert found["scales"].quantile(1) > 1e-9  # it does change
    assert found.invariant()


def test_ratios_compare_the_orbit_with_other_networks():
    networks = stack(20)
    networks["2.weight"] *= torch.linspace(0.5, 2, 20, dtype=torch.float64)[:, None, None]
    found = audit(first_weight, setting()[1], networks, kinds=["permutations"], draws=16, budget=0)
    first = networks["2.weight"][:, 0, 0]
    apart = (first[:, None] - first).abs()[tuple(torch.triu_indices(20, 20, 1))]
    assert found.between == float(apart.median())
    assert found["permutations"].relative == found["permutations"].typical / found.between
    assert 0.3 < found["permutations"].relative < 3  # a weight of a random unit is as far as one of another network


@pytest.mark.parametrize(
    ("reader", "invariant"),
    [
        (lambda params: {name: -0.1 * tensor for name, tensor in params.items()}, {"permutations", "scales", "signs"}),
        (gradient_step, {"permutations", "signs"}),
        (lambda params: {"4.bias": params["4.bias"] + 1}, {"permutations", "scales", "signs"}),
        (lambda params: {name: torch.ones_like(tensor) for name, tensor in params.items()}, {"permutations"}),
        # Sums over units that flip; the scales are those of the units that are read.
        (lambda params: {"2.weight": params["2.weight"].cumsum(0)}, {"scales"}),
    ],
    ids=["decay", "gradient", "fixed", "ones", "sums"],
)
def test_edits_of_parameters_are_equivariant_or_not(reader, invariant):
    sym = setting()[1]
    found = audit(reader, sym, stack(2), kinds=["permutations", "scales", "signs"], draws=2, budget=4)
    assert found.output == "parameters"
    assert {kind for kind in found.kinds if found.invariant(kind)} == invariant


def test_edits_follow_affine_moves():
    """−θ/10 goes along with what is linear; biases that half-turns shift have the wrong edit then."""
    _, sym, params, _ = turning_networks.setting("siren")
    found = audit(lambda given: {name: -0.1 * tensor for name, tensor in given.items()}, sym, params, **QUICK)
    assert {kind for kind in found.kinds if found.invariant(kind)} == {"permutations", "signs"}
    target = {name: torch.zeros_like(tensor) for name, tensor in params.items()}
    assert audit(lambda given: target, sym, params, **QUICK).invariant()


def test_batches_are_read_as_single_networks_are():
    sym, networks = setting()[1], stack(3)
    one = audit(sorted_norms, sym, networks, draws=2, budget=4)
    many = audit(
        lambda given: given["0.weight"].norm(dim=2).sort(1).values, sym, networks, draws=2, budget=4, batch=True
    )
    torch.testing.assert_close(one.readings, many.readings)
    for kind in one.kinds:
        torch.testing.assert_close(one[kind].changes, many[kind].changes)
        assert one[kind].verdict == many[kind].verdict
    labels = audit(lambda given: ["a" if w > 0 else "b" for w in given["2.weight"][:, 0, 0]], sym, networks,
                   draws=2, budget=4, batch=True)  # fmt: skip
    same = audit(lambda given: "a" if given["2.weight"][0, 0] > 0 else "b", sym, networks, draws=2, budget=4)
    assert [torch.equal(labels[k].changes, same[k].changes) for k in same.kinds] == [True] * 4


@pytest.mark.parametrize("seed", [0, 2**63 - 1])
def test_the_same_seed_gives_the_same_audit(seed):
    sym, networks = setting()[1], stack(1)
    one, two = (audit(first_weight, sym, networks, kinds=["signs", "scales"], seed=seed, **QUICK) for _ in range(2))
    assert one.to_json() == two.to_json()
    alone = audit(first_weight, sym, networks, kinds=["scales"], seed=seed, **QUICK)
    assert torch.equal(alone["scales"].changes, one["scales"].changes)
    assert alone["scales"].worst.change == one["scales"].worst.change


def test_networks_are_what_they_were():
    networks = stack(2)
    before = {name: tensor.clone() for name, tensor in networks.items()}
    audit(first_weight, setting()[1], networks, **QUICK)
    assert all(torch.equal(networks[name], before[name]) for name in before)


def test_results_print_and_go_to_machines():
    found = audit(first_weight, setting()[1], stack(3), **QUICK)
    lines = str(found).splitlines()
    assert lines[0] == "Changes of a number: 3 networks, 2 random places on each orbit"
    assert [line.split()[:2] for line in lines[3:7]] == [[kind, "changes"] for kind in found.kinds]
    assert lines[7].startswith("between two networks: ")
    told = json.loads(found.to_json())
    assert told["networks"] == 3
    assert told["kinds"]["signs"]["worst"]["change"] == found["signs"].worst.change
    assert told["kinds"]["signs"]["quantiles"]["0.5"] == pytest.approx(found["signs"].quantile(0.5))
    assert repr(found) == "Audit(permutations: changes, scales: changes, signs: changes, all: changes)"
    with pytest.raises(InputError, match="'turns' was not audited; there are permutations, scales, signs, all"):
        found.invariant("turns")
    labels = str(audit(lambda params: bool(first_weight(params) > 0), setting()[1], stack(3), **QUICK))
    assert "labels that flip" in labels
    assert "of pairs of networks have different labels" in labels
    with pytest.raises(AttributeError):
        found.seed = 1


def test_quantiles_are_those_of_numpy():
    found = audit(first_weight, setting()[1], stack(3), draws=7, budget=0, kinds=["signs"])["signs"]
    for share in (0.0, 0.13, 0.5, 0.77, 1.0):
        assert found.quantile(share) == pytest.approx(float(found.changes.flatten().quantile(share)), rel=1e-12)
    with pytest.raises(InputError, match=r"share is 2; expected a number from 0 to 1"):
        found.quantile(2)
