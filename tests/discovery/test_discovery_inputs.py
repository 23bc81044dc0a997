"""Example inputs in every form in which people have them, and models that are hard to export."""

import os
from collections import OrderedDict, UserDict

import pytest
import torch
import torch.nn.functional as F
from groups import found_group, group
from probes import Function
from torch import nn

from coset.errors import InputError
from coset.symmetry import discover

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
PLAIN = {"a": (5, 4), "b": (3, 5)}
GPT2 = {"vocab_size": 50, "n_embd": 24, "n_layer": 1, "n_head": 4, "n_positions": 16}


def _model(function, shapes=PLAIN):
    torch.manual_seed(0)
    return Function(function, shapes)


class Named(nn.Module):
    """A function of two inputs by name."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 5), nn.Linear(5, 2)

    def forward(self, x, shift=None):
        hidden = torch.relu(self.first(x))
        return self.last(hidden if shift is None else hidden * shift)


SHIFT = torch.rand(3, 1) + 1


@pytest.mark.parametrize(
    ("inputs", "kwargs"),
    [
        (X, {"shift": SHIFT}),
        ((X, SHIFT), None),
        ([X, SHIFT], None),
        ({"x": X, "shift": SHIFT}, None),
        (OrderedDict(x=X), {"shift": SHIFT}),
        (UserDict(x=X, shift=SHIFT), None),
        (None, {"x": X, "shift": SHIFT}),
    ],
)
def test_forms_of_inputs(inputs, kwargs):
    assert found_group(discover(Named(), inputs, kwargs=kwargs)) == group("5", scales=5, signs=0)


def test_what_a_tokenizer_returns():
    transformers = pytest.importorskip("transformers")
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT2, use_cache=False)).eval()
    encoding = transformers.BatchEncoding({"input_ids": torch.randint(2, 50, (2, 7))})
    assert found_group(discover(model, encoding)) == found_group(discover(model, encoding["input_ids"]))


def test_an_input_that_is_given_twice():
    with pytest.raises(InputError, match="'x' is given in example_inputs and in kwargs; expected once"):
        discover(Named(), {"x": X}, kwargs={"x": X})


def test_a_model_that_returns_a_cache_is_called_without():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT2)).eval()
    ids = torch.randint(2, 50, (2, 7))
    sym = discover(model, ids)
    assert "the model is called with use_cache=False: with a cache it cannot be exported" in sym.notes
    assert found_group(sym) == found_group(discover(model, ids, kwargs={"use_cache": False}))
    with pytest.raises(InputError, match=r"torch.export cannot trace GPT2LMHeadModel"):
        discover(model, ids, kwargs={"use_cache": True})


def test_wrapped_models():
    class DistributedDataParallel(nn.parallel.DistributedDataParallel):
        """As it comes out of training; without a process group it cannot be made in the ordinary way."""

        def __init__(self, module):
            nn.Module.__init__(self)
            self.module = module

        def _get_ddp_logging_data(self):
            return {}

    with pytest.raises(InputError, match=r"the model is wrapped in DistributedDataParallel: pass model.module"):
        discover(DistributedDataParallel(Named()), X)
    with pytest.raises(InputError, match=r"'0' is wrapped in DataParallel: pass model.module"):
        discover(nn.Sequential(nn.DataParallel(Named())), X)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        # A number from the input is a constant, one from the units has their common scale.
        (lambda x, a, b: (F.relu(x @ a.T) * x.max().item()) @ b.T, group("5", scales=5, signs=0)),
        (lambda x, a, b: (F.relu(x @ a.T) * (x @ a.T).abs().max().item()) @ b.T, group("5", scales=1, signs=0)),
        (lambda x, a, b: F.relu(x @ a.T).clamp(max=(x @ a.T).max().item()) @ b.T, group("5", scales=1, signs=0)),
        # A function of a number lets nothing through.
        (lambda x, a, b: (F.relu(x @ a.T) * ((x @ a.T).max().item() * 2 + 1)) @ b.T, group("5", scales=0, signs=0)),
    ],
)
def test_numbers_read_off_tensors(function, expected):
    assert found_group(discover(_model(function), X)) == expected


def test_indices_read_off_tensors_pin():
    sym = discover(_model(lambda x, a, b: (F.relu(x @ a.T) @ b.T)[(x.sum() > 0).long().item()]), X)
    assert found_group(sym) == group("5", scales=5, signs=0)
    assert sym.pinned == ("select: select with a number that depends on data",)


def test_control_flow_by_a_number_is_refused_in_one_line(capsys):
    model = _model(lambda x, a, b: (F.relu(x @ a.T) if x.sum().item() > 0 else x @ a.T) @ b.T)
    with pytest.raises(InputError, match="the control flow of Function depends on its data") as refused:
        discover(model, X)
    assert "\n" not in str(refused.value)
    assert capsys.readouterr() == ("", "")


def test_what_a_model_says_itself_is_heard(capsys):
    import sys

    def talking(x, a, b):
        print("I am exported", file=sys.stderr)
        return F.relu(x @ a.T) @ b.T

    discover(_model(talking), X)
    assert capsys.readouterr().err == "I am exported\n"


MASK = torch.tensor([True, False, True, True, False])


@pytest.mark.parametrize(
    "function",
    [
        lambda x, a, b, m: F.relu(x @ a.T)[:, m] @ b[:, :3].T,
        lambda x, a, b, m: F.relu(x @ a.T)[:, torch.tensor([True, False, True, True, False])] @ b[:, :3].T,
        lambda x, a, b, m: F.relu(x @ a[m].T) @ b[:, :3].T,
    ],
)
def test_constant_masks_as_indices(function):
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Parameter(torch.randn(5, 4)), nn.Parameter(torch.randn(3, 5))
            self.register_buffer("m", MASK)

        def forward(self, x):
            return function(x, self.a, self.b, self.m)

    torch.manual_seed(0)
    sym = discover(Masked(), X)
    # What is picked is told apart; a scale common to all of it passes.
    assert found_group(sym) == group("", scales=1, signs=0)


def test_complex_outputs_and_parameters():
    """Weights in the frequency domain: real scales and signs pass as through real ones."""

    class Spectral(nn.Module):
        def __init__(self):
            super().__init__()
            self.lift, self.last = nn.Conv1d(2, 5, 1), nn.Conv1d(5, 3, 1)
            self.weight = nn.Parameter(torch.randn(5, 5, 4, dtype=torch.complex64))

        def forward(self, x):
            modes = torch.fft.rfft(torch.relu(self.lift(x)))[..., :4]
            mixed = torch.fft.irfft(torch.einsum("bim,iom->bom", modes, self.weight), n=x.shape[-1])
            return self.last(torch.relu(mixed)), torch.fft.rfft(self.last(torch.relu(mixed)))

    torch.manual_seed(0)
    sym = discover(Spectral(), torch.randn(2, 2, 8))
    assert found_group(sym) == group("5 5", scales=10, signs=0)
    assert not sym.pinned
    with pytest.raises(InputError, match="does not preserve"):
        _tampered(Spectral(), torch.randn(2, 2, 8))


def _tampered(model, x):
    """The phase of complex outputs is looked at, too: a sign of the last layer's outputs is no symmetry."""
    from coset.symmetry import Symmetry
    from coset.symmetry.discovery.exporting import export
    from coset.symmetry.discovery.verification import verify

    sym = Symmetry.from_axes({"last.weight": "o", "last.bias": "o"}, model, scales={"o": "sign"}, ordered=["o"])
    verify(sym, export(model.eval(), (x,), {})[0], dict(model.state_dict(keep_vars=True)), [x])


def test_buffers_can_be_kept_as_they_are():
    class Pruned(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(4, 5), nn.Linear(5, 2)
            self.register_buffer("mask", (torch.rand(5, 4) > 0.5).float())
            self.norm = nn.BatchNorm1d(5)

        def forward(self, x):
            return self.last(torch.relu(self.norm(F.linear(x, self.first.weight * self.mask, self.first.bias))))

    torch.manual_seed(0)
    model = Pruned().eval()
    assert discover(model, X).parameters["mask"].moves
    sym = discover(model, X, fixed_buffers=["mask"])
    # Rows of the mask tell units apart; they keep their scales before the norm and behind it.
    assert found_group(sym) == group("", scales=10, signs=5)
    assert not sym.parameters["mask"].moves
    assert sym.parameters["norm.running_var"].moves
    fixed = discover(model, X, fixed_buffers=True)
    assert found_group(fixed) == group("", scales=5, signs=0)
    with pytest.raises(InputError, match=r"fixed_buffers names 'first.weight'; the buffers are: mask, norm"):
        discover(model, X, fixed_buffers=["first.weight"])


def test_strict_needs_verification():
    with pytest.raises(InputError, match="strict asks for a verification"):
        discover(Named(), X, strict=True, verify=False)


@pytest.mark.parametrize(
    ("function", "shapes", "expected"),
    [
        # A learned number in the place of entries, or as a factor inside of an operation, has no scale of its own.
        (lambda x, a, b, s: (x @ a.T).masked_fill(x[:, :1] > 0, s) @ b.T, {"s": ()}, group("5", scales=0, signs=0)),
        (lambda x, a, b, s: torch.add(x @ a.T, x @ a.T.exp(), alpha=s.item()) @ b.T, {"s": ()},
         group("5", scales=0, signs=0)),
        (lambda x, a, b, s: F.relu(torch.addcmul(x @ a.T, x @ a.T, x @ a.T, value=s.item())) @ b.T, {"s": ()},
         group("5", scales=0, signs=0)),
        # In a tensor of its own it is what it was; filled into one it is not followed.
        (lambda x, a, b, s: (F.relu(x @ a.T) * torch.tensor([s.item(), 1.0])[0]) @ b.T, {"s": ()},
         group("5", scales=6, signs=1)),
        (lambda x, a, b, s: F.relu(torch.addmm(torch.zeros(5).double(), x, a.T, alpha=s.item())) @ b.T, {"s": ()},
         group("5", scales=5, signs=0)),
    ],
)  # fmt: skip
def test_learned_numbers_as_arguments(function, shapes, expected):
    assert found_group(discover(_model(function, PLAIN | shapes).double(), X.double())) == expected


def test_weights_that_are_written_without_gradients():
    class Renormed(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(4, 5), nn.Linear(5, 2)

        def forward(self, x):
            with torch.no_grad():
                self.first.weight.div_(self.first.weight.norm(dim=1, keepdim=True))
            return self.last(torch.relu(self.first(x)))

    torch.manual_seed(0)
    model = Renormed().double()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    sym = discover(model, X.double())
    assert found_group(sym).classes == group("5", scales=0, signs=0).classes
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kwargs": [1, 2]}, "kwargs is a list; expected a mapping of names to arguments"),
        ({"kwargs": "ab"}, "kwargs is a str; expected a mapping"),
        ({"fixed_buffers": 5}, "fixed_buffers is 5; expected True, False or names of buffers"),
        ({"fixed_buffers": None}, "fixed_buffers is None; expected True, False or names of buffers"),
    ],
)
def test_options_of_another_kind(options, message):
    with pytest.raises(InputError, match=message):
        discover(Named(), X, **options)


def test_models_that_leave_and_buffers_that_are_not_dense():
    import sys

    with pytest.raises(InputError, match="Function cannot be called with these example inputs: 3"):
        discover(_model(lambda x, a, b: sys.exit(3)), X)
    model = Named()
    model.register_buffer("edges", torch.eye(3).to_sparse())
    with pytest.raises(InputError, match=r"'edges' is a tensor of layout torch.sparse_coo; expected dense ones"):
        discover(model, X)


def test_a_part_of_an_order_is_no_inverse():
    def part(x, a, b):
        order = (x @ a.T).argmax(1).sort()[1]
        places = torch.zeros(10).long()
        places[order] = torch.arange(3)
        return x[places % 3]

    assert found_group(discover(_model(part), X)).classes == ()
