"""What an audit may be given: networks in every form, readers that misbehave, and one line for each mistake."""

import re

import numpy as np
import pytest
import torch
from read_networks import first_weight, setting, stack
from torch import nn

from coset.distribution import Samples
from coset.errors import InputError
from coset.metanet import audit
from coset.symmetry import Symmetry

QUICK = {"draws": 1, "budget": 1, "show": False}


def one(number=0):
    return {name: tensor[number] for name, tensor in stack(2).items()}


def test_networks_come_in_every_form():
    networks, sym = stack(4), setting()[1]
    singles = [{name: tensor[number] for name, tensor in networks.items()} for number in range(4)]
    whole = audit(first_weight, sym, networks, **QUICK)
    draws = Samples({name: tensor.reshape(2, 2, *tensor.shape[1:]) for name, tensor in networks.items()})
    for same in (singles, tuple(singles), draws):
        assert audit(first_weight, sym, same, **QUICK).to_json() == whole.to_json()
    alone = audit(first_weight, sym, singles[2], **QUICK)
    assert torch.equal(alone.readings, whole.readings[2:3])
    assert alone.between is None
    assert "–" in str(alone)


def test_tied_weights_stay_one_tensor():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(3, 4), nn.Linear(3, 4)
            self.two.weight = self.one.weight

    model = Tied()
    sym = Symmetry.from_axes({"one.weight": "h -", "one.bias": "h", "two.bias": "h"}, model, scales={"h": "sign"})
    other = Tied()
    networks = [dict(model.state_dict()), dict(other.state_dict())]
    seen = []

    def reader(params):
        seen.append(params["one.weight"] is params["two.weight"])
        return params["one.weight"].sum()

    audit(reader, sym, networks, **QUICK)
    assert len(seen) > 10
    assert all(seen)
    seen.clear()
    networks[1]["two.weight"] = networks[1]["two.weight"].clone() + 1
    audit(reader, sym, networks, **QUICK)
    assert not any(seen)


def test_weights_that_share_memory_by_accident_move_apart():
    model = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    axes = {"0.weight": "h -", "0.bias": "h", "2.weight": "k /h", "2.bias": "k", "4.weight": "- /k"}
    sym = Symmetry.from_axes(axes, model, scales={"h": "sign", "k": "sign"})
    bias = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    shared = {**model.state_dict(), "0.bias": bias, "2.bias": bias}
    apart = {name: tensor.clone() for name, tensor in shared.items()}

    def reader(params):
        return torch.cat([params["0.bias"], 10 * params["2.bias"]])

    found = [audit(reader, sym, one, **QUICK) for one in (shared, apart)]
    assert found[0].to_json() == found[1].to_json()


@pytest.mark.parametrize(
    ("networks", "message"),
    [
        ([], "networks is empty; expected at least one network"),
        (3, "networks is a int; expected a dict of parameters, a list of them, a stack"),
        ([one(), 3], "network 1 is a int; expected a dict of parameters"),
        ({}, "'0.weight' moves under this symmetry but is not among the parameters given"),
        ({**one(), "0.weight": torch.zeros(7, 5)}, "'0.weight' has shape (7, 5); expected (6, 5)"),
        ([one(), {**one(), "0.weight": torch.zeros(7, 5)}], "'0.weight' of network 1 has shape (7, 5); this symmetry"),
        ([one(), {**one(), "more": torch.zeros(1)}], "network 1 has 'more', which this symmetry does not know"),
        ({**one(), "0.bias": torch.full((6,), torch.nan)}, "'0.bias' of the network has 6 entries that are NaN"),
        ([one(), {**one(), "0.bias": torch.full((6,), torch.inf)}], "'0.bias' of network 1 has 6 entries that are NaN"),
        ({**stack(2), "0.bias": torch.tensor([[0.0], [torch.nan]]).expand(2, 6)}, "'0.bias' of network 1 has 6"),
        ([one(), {name: t.float() for name, t in one().items()}], "network 1 is torch.float32 on cpu and that of"),
        ({**stack(2), "0.bias": torch.zeros(3, 6)}, "'0.weight' of networks has the leading axes (2,) and '0.bias'"),
        ({name: tensor[:0] for name, tensor in stack(2).items()}, "networks holds no network"),
        ({name: tensor.long() for name, tensor in one().items()}, "networks have no numbers in floating point"),
    ],
)
def test_networks_that_are_none(networks, message):
    with pytest.raises(InputError, match=re.escape(message)):
        audit(first_weight, setting()[1], networks, **QUICK)


def changing(change):
    def reader(params):
        change(params)
        return 1.0

    return reader


def alternating(*answers):
    waiting = list(answers)

    def reader(params):
        return waiting.pop(0) if len(waiting) > 1 else waiting[0]

    return reader


@pytest.mark.parametrize(
    ("reader", "message"),
    [
        (3, "reader is a int; expected a function of parameters"),
        (lambda params: float("nan"), "the reader gives nan for network 0; expected finite numbers"),
        (lambda params: torch.tensor([1.0, torch.inf]), "the reader gives inf for network 0"),
        (lambda params: None, "the reader gives NoneType for network 0; expected a number, a vector, a label or a"),
        (lambda params: params["0.weight"], "gives a tensor of shape (6, 5) for each network (network 0); expected a"),
        (lambda params: torch.zeros(0), "the reader gives a tensor of shape (0,) for each network"),
        (lambda params: 1j, "the reader gives complex for network 0"),
        (lambda params: torch.tensor(1j), "the reader gives complex numbers for network 0"),
        (lambda params: params["nothing"], "the reader failed on network 0: KeyError: 'nothing'"),
        (
            lambda params: {"nothing": torch.zeros(1)},
            "gives 'nothing' for network 0, which is no parameter of floating",
        ),
        (lambda params: {"0.bias": torch.zeros(1)}, "gives '0.bias' of (1,) for network 0; expected (6,)"),
        (lambda params: {"0.bias": 1.0}, "gives '0.bias' of float for network 0; expected (6,)"),
        (alternating(1.0, torch.tensor(1.0)), "gives (float, float) at first and (Tensor, torch.float32, ()) for"),
        (alternating(1.0, 1), "the reader gives (float, float) at first and (int, int) for network 1"),
        (alternating(torch.zeros(2), torch.zeros(3)), "(Tensor, torch.float32, (2,)) at first and (Tensor"),
        (alternating("a", 0), "the reader gives (str, str) at first and (int, int)"),
        (lambda params: float(torch.rand(())), "gives other answers when it reads network 0 again; expected the same"),
        (lambda params: int(torch.randint(10**6, ())), "gives other answers when it reads network 0 again"),
        (
            changing(lambda params: params["0.weight"].mul_(2)),
            "the reader changes '0.weight' of the network that it is",
        ),
        (changing(lambda params: params["0.bias"].numpy().fill(1)), "the reader changes '0.bias' of the network"),
        (changing(lambda params: params.pop("0.bias")), "the reader changes the dict that it is given"),
        (changing(lambda params: params.update(more=0)), "the reader changes the dict that it is given"),
        (changing(lambda params: params.update({"0.bias": torch.zeros(6)})), "the reader changes the dict that it is"),
    ],
)
def test_readers_that_misbehave(reader, message):
    torch.manual_seed(0)
    with pytest.raises(InputError, match=re.escape(message)) as error:
        audit(reader, setting()[1], stack(2), **QUICK)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("reader", "message"),
    [
        (
            lambda params: torch.zeros(3),
            "gives a tensor of shape (3,) for a stack of 2 networks (network 0 and 1 more)",
        ),
        (lambda params: torch.tensor(1.0), "gives a tensor of shape () for a stack of 2 networks"),
        (lambda params: torch.zeros(2, 3, 4), "gives a tensor of shape (3, 4) for each network"),
        (lambda params: ["a"], "the reader gives 1 answers for 2 networks (network 0 and 1 more); expected as many"),
        (lambda params: ["a", 1], "the reader gives int and str for network 0 and 1 more"),
        (lambda params: 1.0, "the reader gives 1 answers for 2 networks"),
        (lambda params: torch.tensor([1.0, torch.nan]), "the reader gives nan for network 1; expected finite numbers"),
    ],
)
def test_readers_of_stacks_that_misbehave(reader, message):
    with pytest.raises(InputError, match=re.escape(message)):
        audit(reader, setting()[1], stack(2), batch=True, **QUICK)


def test_a_module_with_dropout_is_refused_unless_it_evaluates():
    module = nn.Sequential(nn.Linear(30, 4), nn.Dropout(), nn.Linear(4, 1)).double()

    def reader(params):
        return module(params["0.weight"].flatten())

    with pytest.raises(InputError, match="in evaluation mode"):
        audit(reader, setting()[1], stack(1), **QUICK)
    module.eval()
    assert audit(reader, setting()[1], stack(1), **QUICK)["permutations"].verdict == "changes"


@pytest.mark.parametrize(
    ("reader", "output"),
    [
        (lambda params: np.float32(params["0.bias"].sum()), "numbers"),
        (lambda params: params["0.bias"].numpy()[:2], "numbers"),
        (lambda params: params["0.bias"].tolist(), "numbers"),
        (lambda params: np.int64(3), "labels"),
        (lambda params: np.bool_(True), "labels"),
        (lambda params: torch.tensor([1, 2]), "labels"),
        (lambda params: "name", "labels"),
    ],
)
def test_answers_come_in_many_types(reader, output):
    assert audit(reader, setting()[1], stack(1), kinds=["signs"], **QUICK).output == output


def test_counts_are_numbers_if_one_says_so():
    def count(params):
        return int((params["2.bias"] > 0).sum())

    found = audit(count, setting()[1], stack(2), kinds=["signs"], kind_of_output="numbers", **QUICK)
    assert found.output == "numbers"
    assert found.readings.dtype == torch.float64
    for reader, asked, gives in (
        (lambda params: "name", "numbers", "texts"),
        (first_weight, "labels", "numbers"),
        (first_weight, "parameters", "numbers"),
        (dict, "numbers", "parameters"),
    ):
        with pytest.raises(InputError, match=f"kind_of_output is '{asked}', and the reader gives {gives}"):
            audit(reader, setting()[1], stack(1), kind_of_output=asked, **QUICK)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kinds": ["turns"]}, "kinds has 'turns'; this symmetry has permutations, scales, signs"),
        ({"kinds": "signs"}, "kinds is the string 'signs'; expected a list of kinds, as ['signs']"),
        ({"kinds": []}, "kinds is empty; expected some of permutations, scales, signs"),
        ({"draws": 0}, "draws is 0; expected a whole number ≥ 1"),
        ({"budget": -1}, "budget is -1; expected a whole number ≥ 0"),
        ({"spread": 0}, "spread is 0; expected a number > 0"),
        ({"seed": -1}, "seed is -1; expected a whole number from 0 to 2^63 - 1"),
        ({"kind_of_output": "text"}, "kind_of_output is 'text'; expected one of numbers, labels, parameters"),
        ({"spread": 400.0, "kinds": ["scales"]}, "moved by scales has NaN or infinite entries after"),
    ],
)
def test_options_that_are_none(options, message):
    if options.get("spread") == 400.0:
        message = "expected numbers that torch.float32 holds: give a smaller spread"
    with pytest.raises(InputError, match=re.escape(message)):
        audit(first_weight, setting()[1], stack(2, dtype=torch.float32), **QUICK | options)


def test_nothing_that_moves_and_no_symmetry():
    sym = setting()[1].restrict([])
    with pytest.raises(InputError, match="nothing moves under this symmetry"):
        audit(first_weight, sym, stack(1), **QUICK)
    with pytest.raises(InputError, match="sym is a dict; expected a Symmetry"):
        audit(first_weight, {}, stack(1), **QUICK)
