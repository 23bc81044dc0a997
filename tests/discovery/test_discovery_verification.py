"""The numerical proof: what it catches, on what it is tried, and how much memory it takes."""

import gc

import pytest
import torch
from torch import Tensor, nn

from coset.errors import InputError
from coset.models import MLP, ResNet20
from coset.symmetry import Symmetry, discover
from coset.symmetry.discovery import evaluation, influence
from coset.symmetry.discovery.evaluation import evaluate
from coset.symmetry.discovery.exporting import export
from coset.symmetry.discovery.general_position import general_position
from coset.symmetry.discovery.verification import difference, verify


def _exported(model, x):
    model.eval()
    return export(model, (x,), {})[0], dict(model.state_dict(keep_vars=True))


X = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))


def _relu_network():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return MLP(4, [6, 5], 3)


AXES = {
    "layers.0.weight": "a", "layers.0.bias": "a", "layers.1.weight": "b /a", "layers.1.bias": "b",
    "layers.2.weight": "- /b",
}  # fmt: skip


def test_a_true_symmetry_passes():
    model = _relu_network()
    program, params = _exported(model, X)
    sym = Symmetry.from_axes(AXES, model, scales="positive")
    assert verify(sym, program, params, [X]) == set()


@pytest.mark.parametrize(
    ("change", "scales", "culprit"),
    [
        ({}, {"a": "positive", "b": "nonzero"}, "b"),
        ({"layers.1.bias": "-"}, "positive", "b"),
        ({"layers.1.weight": "b -"}, "positive", "a"),
        ({"layers.1.weight": "b /a^2"}, "positive", "a"),
    ],
)
def test_a_wrong_one_is_named(change, scales, culprit):
    model = _relu_network()
    program, params = _exported(model, X)
    sym = Symmetry.from_axes(AXES | change, model, scales=scales)
    with pytest.raises(InputError, match=rf"the class '{culprit}' .* does not preserve the function"):
        verify(sym, program, params, [X])


def test_zeros_of_an_initialisation_hide_nothing():
    """Biases start at zero and gains at one: a class that forgets them is wrong all the same."""
    model = _relu_network()
    with torch.no_grad():
        model.layers[0].bias.zero_()
    program, params = _exported(model, X)
    sym = Symmetry.from_axes(AXES | {"layers.0.bias": "-"}, model, scales="positive")
    with pytest.raises(InputError, match="the class 'a'"):
        verify(sym, program, params, [X])


def test_inputs_that_hide_a_mistake_are_not_the_only_ones():
    """Equal inputs may be exchanged without notice; others may not."""
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    equal = torch.ones(2, 4)
    program, params = _exported(model, equal)
    wrong = Symmetry.from_axes({"0.weight": "- i"}, model)
    with pytest.raises(InputError, match="the class 'i'"):
        verify(wrong, program, params, [equal])


def test_general_position_keeps_ties_and_variances():
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3))
    model[2].weight = model[0].weight
    params = dict(model.eval().state_dict(keep_vars=True))
    sym = discover(model, torch.ones(2, 3))
    moved = general_position(params, sym, torch.Generator().manual_seed(0))
    assert moved["0.weight"] is moved["2.weight"]
    assert bool((moved["1.running_var"] > 0).all())
    assert bool(moved["1.running_mean"].any())
    assert moved["1.num_batches_tracked"] is params["1.num_batches_tracked"]


def test_casts_inside_a_model_stay_wide():
    class Casting(nn.Module):
        def forward(self, x):
            return x.to(torch.float16).float() + torch.zeros(2, dtype=torch.float32)

    program = export(Casting().eval(), (torch.full((2,), 1 / 3),), {})[0]
    (out,) = evaluate(program, {}, [torch.full((2,), 1 / 3, dtype=torch.float64)])
    assert torch.equal(out, torch.full((2,), 1 / 3, dtype=torch.float64))


def test_difference():
    assert difference([torch.tensor([2.0, -4.0])], [torch.tensor([2.0, -3.0])]) == 0.25
    assert difference([torch.tensor([1.0])], [torch.tensor([float("nan")])]) == float("inf")
    assert difference([torch.tensor([1, 2])], [torch.tensor([1, 3])]) == float("inf")
    assert difference([torch.zeros(0)], [torch.zeros(0)]) == 0


def test_one_copy_in_double_precision_at_a_time(monkeypatch):
    """Whenever the model is evaluated, no more float64 entries are alive than it has parameters, and a few."""
    model = ResNet20(width=0.5).eval()
    x = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    sym = discover(model, x)
    program, params = _exported(model, x)
    total = sum(tensor.numel() for tensor in params.values())
    alive = []
    original = evaluation.run

    def double():
        return [item for item in gc.get_objects() if type(item) is Tensor and item.dtype == torch.float64]

    # What other tests left alive is held here, so that no new tensor can take one's place in memory and be overlooked.
    earlier = double()
    known = {id(item) for item in earlier}

    def watched(*args, **kwargs):
        tensors = (item for item in double() if id(item) not in known)
        alive.append(sum({item.untyped_storage().data_ptr(): item.numel() for item in tensors}.values()))
        return original(*args, **kwargs)

    monkeypatch.setattr(evaluation, "run", watched)
    monkeypatch.setattr(influence, "run", watched)
    verify(sym, program, params, [x])
    assert len(alive) >= 7
    assert max(alive) < 1.1 * total
