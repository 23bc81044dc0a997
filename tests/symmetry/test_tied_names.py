"""Dicts as users have them: named_parameters() names a tied tensor once, named_buffers() has buffers nobody saves."""

import pytest
import torch
from torch import nn

from coset.errors import InputError
from coset.symmetry import Symmetry, discover


class Tied(nn.Module):
    """An encoder and a decoder with one table, and a constant that no state dict has."""

    def __init__(self):
        super().__init__()
        self.embed, self.middle, self.head = nn.Linear(6, 4), nn.Linear(4, 5), nn.Linear(4, 6, bias=False)
        self.back = nn.Linear(5, 4)
        self.head.weight = nn.Parameter(torch.randn(6, 4))
        self.table = self.head.weight
        self.register_buffer("constant", torch.randn(1), persistent=False)

    def forward(self, x):
        return self.head(self.back(torch.relu(self.middle(x @ self.table)))) * self.constant


@pytest.fixture(name="case")
def _case():
    torch.manual_seed(0)
    model = Tied().double()
    x = torch.randn(3, 6, dtype=torch.float64)
    return model, x, discover(model, x)


def test_missing_names_of_tied_tensors_are_filled_in(case):
    model, _, sym = case
    named = dict(model.named_parameters())
    assert {"table", "head.weight"} - named.keys()
    moved = sym.act(sym.random(torch.Generator().manual_seed(0)), named)
    assert moved["table"] is moved["head.weight"]
    model.load_state_dict({name: tensor.detach() for name, tensor in moved.items()})
    assert sym.parameters["head.weight"].tied == "table" or sym.parameters["table"].tied == "head.weight"


def test_buffers_that_are_not_saved_pass(case):
    model, x, sym = case
    everything = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    assert sym.unsaved == ("constant",)
    moved = sym.act(sym.random(torch.Generator().manual_seed(0)), everything)
    assert moved["constant"] is everything["constant"]
    given = {name: moved[name] for name in everything}
    with torch.no_grad():
        assert torch.allclose(torch.func.functional_call(model, given, (x,)), model(x), rtol=1e-12)


def test_a_name_that_is_really_missing_is_an_error(case):
    model, _, sym = case
    named = {name: tensor for name, tensor in model.named_parameters() if name != "middle.weight"}
    with pytest.raises(InputError, match=r"'middle.weight' moves under this symmetry but is not among"):
        sym.act(sym.identity(), named)
    with pytest.raises(InputError, match="'other' is not a parameter of this symmetry"):
        sym.act(sym.identity(), {**dict(model.named_parameters()), "other": torch.ones(1)})


def test_files_keep_what_is_known_of_names(case, tmp_path):
    _, _, sym = case
    sym.save(tmp_path / "sym.json")
    loaded = Symmetry.load(tmp_path / "sym.json")
    assert loaded == sym
    assert loaded.unsaved == sym.unsaved
    assert [item.tied for item in loaded.parameters.values()] == [item.tied for item in sym.parameters.values()]
    told = sym.annotated(unverified=("'a': nobody looked",))
    assert Symmetry.from_json(told.to_json()).unverified == told.unverified
    assert told.fingerprint == sym.fingerprint
