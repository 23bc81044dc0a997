"""The fuzzer of models: its networks are determined by their seed, and it finds what is wrong."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import coset
from coset.symmetry import Symmetry
from coset.symmetry.discovery.rules import RULES

ROOT = Path(__file__).parents[2]


@pytest.fixture
def fuzz(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    import fuzz.eager
    import fuzz.models
    import fuzz.networks
    import fuzz.orbit
    import fuzz.scaling

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # matrices this small lose time to threads
    yield fuzz
    torch.set_num_threads(threads)


def flat(fuzz, *names, seed=0, features=4):
    """A network of given pieces."""
    return fuzz.networks.Plan(seed, fuzz.networks.Kind("flat", features), tuple(enumerate(names)), "plain")


def with_text(fuzz, text, *names):
    """The first network of given pieces in whose source a text stands."""
    plans = (flat(fuzz, *names, seed=seed) for seed in range(500))
    return next(p for p in plans if text in fuzz.networks.write(p).text())


def test_a_dozen_networks_are_sound(fuzz, capsys):
    assert fuzz.models.run(60, 100, cases=12)
    assert "models: 12 cases" in capsys.readouterr().out


def test_the_seed_alone_decides(fuzz):
    def made(seed):
        plan = fuzz.networks.plan(seed)
        source = fuzz.networks.write(plan)
        return plan, source.text(), fuzz.networks.build(source, seed).state_dict()

    texts = set()
    for seed in range(40):
        one = made(seed)
        torch.manual_seed(12345)
        two = made(seed)
        assert one[:2] == two[:2]
        assert one[2].keys() == two[2].keys()
        assert all(torch.equal(tensor, two[2][name]) for name, tensor in one[2].items())
        texts.add(one[1])
    assert len(texts) == 40


def test_every_piece_is_used_and_every_network_runs(fuzz):
    used, generator = set(), torch.Generator().manual_seed(0)
    for seed in range(700):
        plan = fuzz.networks.plan(seed)
        used.update(plan.names)
        if seed < 60:
            model = fuzz.networks.build(fuzz.networks.write(plan), seed)
            with torch.no_grad():
                model(fuzz.networks.draw_input(plan.start, 2, generator))
    assert used == {*fuzz.networks.PIECES, *fuzz.networks.HEADS}


def test_a_wrong_rule_is_found(fuzz, monkeypatch):
    plan = with_text(fuzz, "= torch.tanh", "mlp")
    assert fuzz.models.examine(plan).status == "sound"
    monkeypatch.setitem(RULES, "tanh", RULES["clone"])  # as if every scale passed
    outcome = fuzz.models.examine(plan, verify=False)
    assert outcome.status == "unsound"
    assert outcome.failed
    assert "outputs change" in outcome.reason
    assert fuzz.models.examine(plan).status == "caught"


def test_failures_are_made_smaller(fuzz, monkeypatch):
    least = with_text(fuzz, "= torch.tanh", "mlp")
    plan = replace(least, pieces=(*least.pieces, (1, "detour"), (2, "softmax")))
    monkeypatch.setitem(RULES, "tanh", RULES["clone"])
    monkeypatch.setattr(fuzz.models.coset, "discover", _unverified(coset.discover))
    outcome = fuzz.models.examine(plan)
    assert outcome.status == "unsound"
    assert fuzz.models.shrunk(plan, outcome)[0] == least


def _unverified(discover):
    return lambda model, x, verify=True: discover(model, x, verify=False)


def test_errors_that_are_no_input_errors_fail(fuzz, monkeypatch):
    def broken(model, x, verify=True):
        raise KeyError("lost")

    monkeypatch.setattr(fuzz.models.coset, "discover", broken)
    outcome = fuzz.models.examine(flat(fuzz, "dense"))
    assert (outcome.status, outcome.reason) == ("traceback", "KeyError: 'lost'")

    def wordy(model, x, verify=True):
        raise coset.errors.InputError("one line\nand another")

    monkeypatch.setattr(fuzz.models.coset, "discover", wordy)
    assert fuzz.models.examine(flat(fuzz, "dense")).status == "traceback"


def test_weights_over_one_storage_cannot_be_moved_apart(fuzz):
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3)).double()
    model[2].weight.data = model[0].weight.data
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with fuzz.eager.holding(model, before) as held:
        assert held
    with fuzz.eager.holding(model, before | {"0.weight": 2 * before["0.weight"]}) as held:
        assert not held
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


class Product(nn.Module):
    """relu(x·a)·b·c: a's columns scale against b's rows, and b against c as a whole."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (nn.Parameter(torch.ones(s, dtype=torch.float64)) for s in ((3, 4), (4, 2), ()))
        self.unread = nn.Parameter(torch.ones(5, dtype=torch.float64))

    def forward(self, x):
        return torch.relu(x @ self.a) @ self.b * self.c


def test_diagonal_scalings_are_counted(fuzz):
    kind = fuzz.networks.Kind("flat", 3)
    assert fuzz.scaling.diagonal_scalings(Product(), kind, {}, 0)[0] == 4 + 1
    norm = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2)).double().eval()
    # Each unit's row, bias, mean and √(variance + ε) scale together, or variance and gain, or gain and shift onwards.
    assert fuzz.scaling.diagonal_scalings(norm, kind, {"1.running_var": norm[1].eps}, 0)[0] == 3 * 4
    curved = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    assert fuzz.scaling.diagonal_scalings(curved, kind, {}, 0)[0] == 0


def test_scales_that_depend_on_each_other_are_counted_once(fuzz):
    weights = {"a": 0.5 + torch.rand(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))}
    # Rows and columns scale by 4 + 3 numbers; a factor common to all rows is one common to all columns.
    assert fuzz.scaling.jacobian_rank(Symmetry.from_axes({"a": "h k"}, weights, scales="positive"), weights) == 6


def test_the_null_space_bounds_the_orbit_of_the_whole_group(fuzz):
    kind = fuzz.networks.Kind("flat", 5)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 3, bias=False), nn.Linear(3, 6, bias=False), nn.Tanh(), nn.Linear(6, 4)).double()
    sym = coset.discover(model, torch.randn(3, 5, dtype=torch.float64))
    nullity, read = fuzz.orbit.null_space(model, kind, 0)
    # GL(3), and nothing else is continuous behind tanh.
    assert nullity == fuzz.orbit.orbit_dimension(sym, dict(model.state_dict()), read) == sym.continuous_dimension == 9
    assert fuzz.orbit.orbit_dimension(sym.monomial, dict(model.state_dict()), read) == 3


def test_networks_have_streams_that_turn_and_a_wrong_kind_is_found(fuzz, monkeypatch):
    plan = with_text(fuzz, "nn.RMSNorm", "stream")
    found = fuzz.models.examine(plan)
    assert (found.status, found.mixing) == ("sound", 1)
    monkeypatch.setattr(fuzz.models, "null_space", lambda *_: (0, {}))
    monkeypatch.setattr(fuzz.models, "orbit_dimension", lambda *_: 1)
    assert fuzz.models.examine(plan).status == "unsound"
