"""Data in whatever form somebody has them: the same numbers come out, wherever data go in."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from coset.alignment import align, align_many, merge
from coset.canonical import canonicalize
from coset.data import Split, given, given_pair
from coset.distribution import kl, load_distribution, save_distribution, wasserstein2
from coset.errors import InputError
from coset.landscape import loss
from coset.models import MLP
from coset.posterior import fit_ensemble, fit_mean_field, predictive
from coset.represent import features
from coset.symmetry import discover


class Table:
    """What is asked of a ``datasets.Dataset``."""

    def __init__(self, **columns):
        self.columns, self.column_names = columns, list(columns)

    def with_format(self, kind):
        assert kind == "numpy"
        return self

    def __getitem__(self, name):
        return self.columns[name]


def numbers():
    generator = np.random.default_rng(0)
    return generator.normal(size=(12, 4)), generator.integers(0, 3, 12)


def forms(folder):
    """The same data in every form."""
    x, y = numbers()
    tensors = torch.from_numpy(x).float(), torch.from_numpy(y)
    np.savez(folder / "both.npz", x=x, y=y)
    np.savez(folder / "parts.npz", x_train=x, y_train=y, x_test=x[:2], y_test=y[:2])
    torch.save(tensors, folder / "pair.pt")
    torch.save({"inputs": tensors[0], "labels": tensors[1]}, folder / "named.pt")
    (folder / "made.py").write_text(
        "import numpy\n\ndef data():\n    return numpy.load('" + str(folder / "both.npz") + "')\n"
    )
    return {
        "tensors": tensors,
        "arrays": (x, y),
        "list of arrays": [x, y],
        "split": Split(*tensors),
        "loader": DataLoader(TensorDataset(*tensors), batch_size=5),
        "table": Table(idx=np.arange(12), features=x, label=y),
        "npz": folder / "both.npz",
        "npz of parts": str(folder / "parts.npz"),
        "pt": folder / "pair.pt",
        "named pt": folder / "named.pt",
        "function": f"{folder / 'made.py'}:data",
    }


NAMES = (
    "tensors", "arrays", "list of arrays", "split", "loader", "table", "npz", "npz of parts", "pt", "named pt",
    "function",
)  # fmt: skip


@pytest.mark.parametrize("form", NAMES)
def test_every_form_gives_the_same_numbers_everywhere(form, tmp_path):
    data = forms(tmp_path)[form]
    wanted = forms(tmp_path)["tensors"]
    x, y = given_pair(data)
    assert torch.equal(x, wanted[0])
    assert torch.equal(y, wanted[1])
    model = MLP(4, [5], 3)
    params = model.state_dict()
    assert loss(model, data)(params) == pytest.approx(loss(model, wanted)(params), rel=1e-12)
    seen, known = (features(model, what, ["layers.0"])["layers.0"] for what in (data, wanted))
    torch.testing.assert_close(seen, known)


def test_real_numbers_get_the_type_of_the_model():
    x, y = numbers()
    for dtype in (torch.float32, torch.float64):
        assert given((x, y), MLP(4, [5], 3).to(dtype))[0].dtype == dtype
    assert given(x.astype(np.float32)).dtype == torch.get_default_dtype()
    pixels = np.full((2, 3, 3), 255, dtype=np.uint8)
    assert torch.equal(given(pixels), torch.ones(2, 3, 3))
    assert given((pixels, np.array([1, 2], dtype=np.uint8)))[1].dtype == torch.int64


def test_a_posterior_is_fitted_to_arrays_and_to_tensors_alike(tmp_path):
    x, y = numbers()
    model = MLP(4, [5], 3)
    fits = [
        fit_ensemble(model, data, members=2, epochs=2, batch_size=6, learning_rate=0.1)
        for data in ((x, y), forms(tmp_path)["tensors"], tmp_path / "both.npz")
    ]
    for fit in fits[1:]:
        for name, tensor in fits[0].posterior.params.items():
            assert torch.equal(tensor, fit.posterior.params[name])


def test_what_an_inference_gives_stands_for_its_posterior(tmp_path):
    """Wherever a distribution is taken, a ``Fit`` gives the same as its posterior."""
    x, y = numbers()
    model = MLP(4, [5], 3)
    fits = [
        fit_mean_field(model, (x, y), epochs=1, batch_size=6, learning_rate=0.1, seed=seed, show=False)
        for seed in (0, 1)
    ]
    qs = [fit.posterior for fit in fits]
    sym = discover(model, torch.from_numpy(x).float())
    g = sym.random(torch.Generator().manual_seed(0))
    for function in (
        lambda one, two: align(sym, one, two).aligned.mean,
        lambda one, two: merge(sym, [one, two]).network.mean,
        lambda one, two: align_many(sym, [one, two]).aligned[1].mean,
        lambda one, two: {"kl": kl(one, two), "w": wasserstein2(one, two)},
        lambda one, two: sym.act(g, one).mean,
        lambda one, two: canonicalize(sym, one).params.mean,
        lambda one, two: {"p": predictive(model, one, torch.from_numpy(x).float(), samples=3).probabilities},
    ):
        ours, theirs = function(*fits), function(*qs)
        for name, tensor in theirs.items():
            assert torch.equal(ours[name], tensor)
    save_distribution(fits[0], tmp_path / "q.safetensors")
    assert torch.equal(
        load_distribution(tmp_path / "q.safetensors").mean["layers.0.weight"], qs[0].mean["layers.0.weight"]
    )


def test_what_is_no_data_is_refused_in_a_line(tmp_path):
    x, y = numbers()
    with pytest.raises(
        InputError, match="data is a tuple of Tensor, Tensor, Tensor; expected inputs and targets: tensors"
    ):
        given_pair((torch.zeros(2), torch.zeros(2), torch.zeros(2)))
    with pytest.raises(InputError, match=r"data is a tensor of shape \(12, 4\); expected inputs and targets"):
        given_pair(x)
    with pytest.raises(InputError, match=r"none\.npz does not exist"):
        given(tmp_path / "none.npz")
    with pytest.raises(InputError, match="data is 'mnist'; expected tensors or NumPy arrays"):
        given("mnist")
    with pytest.raises(InputError, match="inputs of data are of type <U1"):
        given(np.array(["a", "b"]))
    with pytest.raises(InputError, match=r"data has \['a', 'b'\]; expected inputs called one of x, inputs"):
        given({"a": x, "b": y})
    np.savez(tmp_path / "objects.npz", x=np.array([{}], dtype=object))
    with pytest.raises(InputError, match="pickled objects"):
        given(tmp_path / "objects.npz")
    torch.save({"x": [1, 2]}, tmp_path / "lists.pt")
    with pytest.raises(InputError, match=r"lists\.pt holds a dict; expected tensors"):
        given(tmp_path / "lists.pt")
