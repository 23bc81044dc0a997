"""Distributions come back from files as they went; files that are something else are refused by name."""

import json

import pytest
import torch
from contract import same
from safetensors.torch import save_file

from coset.checkpoints import read_checkpoint, write_checkpoint
from coset.distribution import (
    Delta,
    Gaussian,
    LowRank,
    MeanField,
    Mixture,
    Samples,
    load_distribution,
    load_metadata,
    save_distribution,
)
from coset.distribution.files import KEY, SCHEMA
from coset.errors import InputError
from coset.symmetry import Symmetry


def every_kind():
    generator = torch.Generator().manual_seed(0)
    shared = torch.randn(3, 2, generator=generator).to(torch.bfloat16)
    params = {
        "out": shared, "in": shared, "b": torch.randn(2, generator=generator, dtype=torch.float64),
        "count": torch.tensor(3),
    }  # fmt: skip
    field = MeanField(params, {"b": torch.rand(2, generator=generator), "in": torch.ones(3, 2)})
    dense = Gaussian(params, torch.eye(8, dtype=torch.float64) + 0.1, ("b", "in"))
    draws = Samples({"w": torch.randn(2, 3, 4, generator=generator), "n": torch.arange(6).reshape(2, 3)})
    thin = LowRank(params, {"b": torch.rand(2, generator=generator)}, {"b": torch.randn(3, 2, generator=generator)})
    mixed = Mixture([field, thin, Mixture([dense, Delta(params)], [0.5, 0.5])], [0.25, 0.5, 0.25])
    return {
        "delta": Delta(params), "mean-field": field, "gaussian": dense, "low-rank": thin, "samples": draws,
        "mixture": mixed,
    }  # fmt: skip


def assert_same(a, b):
    assert type(a) is type(b)
    assert same(a, b)


@pytest.mark.parametrize("kind", every_kind())
def test_every_kind_comes_back(kind, tmp_path):
    q = every_kind()[kind]
    save_distribution(q, tmp_path / "q.safetensors", {"seed": "3"})
    assert_same(q, load_distribution(tmp_path / "q.safetensors"))
    assert load_metadata(tmp_path / "q.safetensors") == {"seed": "3"}
    first = (tmp_path / "q.safetensors").read_bytes()
    save_distribution(q, tmp_path / "q.safetensors", {"seed": "3"})
    assert (tmp_path / "q.safetensors").read_bytes() == first
    assert [path.name for path in tmp_path.iterdir()] == ["q.safetensors"]


def test_tied_tensors_are_stored_once(tmp_path):
    save_distribution(every_kind()["delta"], tmp_path / "q")
    assert set(read_checkpoint(tmp_path / "q").params) == {"params/out", "params/b", "params/count"}


def test_points_among_draws_are_stored_once_and_come_back_as_views(tmp_path):
    """100 draws of a head on a frozen body: the file holds the body once."""
    generator = torch.Generator().manual_seed(0)
    body, count = torch.randn(300, 100, generator=generator), torch.tensor(7)
    frozen = body.expand(4, 25, 300, 100)
    params = {
        "a": frozen, "tied": frozen, "head": torch.randn(4, 25, 6, generator=generator), "count": count.expand(4, 25),
        "per chain": torch.randn(4, 1, 2, generator=generator).expand(4, 25, 2),
    }  # fmt: skip
    path = tmp_path / "q"
    for q in (Samples(params), Samples({"one draw": torch.ones(1, 1, 3)}), Samples(params).thin(2)):
        save_distribution(Mixture([q, q]), path)
        again = load_distribution(path)
        assert_same(Mixture([q, q]), again)
    assert path.stat().st_size < 3 * body.numel() * body.element_size()
    assert again.components[0].params["a"].stride()[:2] == (0, 0)
    assert again.components[0].params["a"] is again.components[0].params["tied"]
    save_distribution(Samples(params), path)
    assert read_checkpoint(path).params["params/a"].shape == body.shape
    assert read_checkpoint(path).params["params/per chain"].shape == (4, 25, 2)


def test_truncated_files(tmp_path):
    path = tmp_path / "q.safetensors"
    save_distribution(every_kind()["mixture"], path)
    whole = path.read_bytes()
    for size in (0, 5, 60, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(InputError, match=r"q.safetensors"):
            load_distribution(path)


def test_foreign_files(tmp_path):
    path = tmp_path / "q.safetensors"
    with pytest.raises(InputError, match=r"q.safetensors does not exist"):
        load_distribution(path)
    save_file({"w": torch.zeros(2)}, path)
    with pytest.raises(InputError, match=r"q.safetensors is not a distribution: there is no 'coset.distribution' in"):
        load_distribution(path)
    torch.save({"w": torch.zeros(2)}, path)
    with pytest.raises(InputError, match=r"q.safetensors is not a distribution"):
        load_distribution(path)
    path.write_text("hello, this is no tensor")
    with pytest.raises(InputError, match=r"q.safetensors is neither a safetensors nor a PyTorch file"):
        load_distribution(path)


OLD = 1


def written(path, content, tensors=None):
    text = content if isinstance(content, str) else json.dumps(content)
    write_checkpoint(path, tensors or {"params/w": torch.zeros(2)}, {KEY: text})


def test_other_schemas_and_damage(tmp_path):
    path = tmp_path / "q"
    good = {"kind": "delta", "params": {"w": "w"}}
    written(path, {"schema": OLD, "content": good})  # as version 0.1 wrote it
    assert load_distribution(path).params["w"].tolist() == [0.0, 0.0]
    cases = {
        "is a distribution of schema 3; expected 1 or 2": {"format": SCHEMA + 1, "content": good},
        "is a distribution of schema None; expected 1 or 2": ["no"],
        "is damaged: its metadata does not have the checksum": {"format": SCHEMA, "content": good},
        "is damaged: its metadata 'coset.distribution' is nested more than 100 levels": "[" * 900 + "]" * 900,
        "is damaged: its metadata 'coset.distribution' is not JSON: ": "[" * 100_000,
        "is damaged: its metadata 'coset.distribution' is not JSON": "{",
        "holds no distribution: its kind is 'cauchy'; expected one of delta": {
            "schema": OLD, "content": {"kind": "cauchy"},
        },
        "holds no distribution: the tensor 'params/v' is missing": {
            "schema": OLD, "content": {"kind": "delta", "params": {"v": "v"}},
        },
        "holds no distribution: names has 'a b', which mean has not$": {
            "schema": OLD, "content": {"kind": "gaussian", "mean": {"w": "w"}, "names": ["a\nb"]},
        },
        "is damaged: KeyError": {"schema": OLD, "content": {"kind": "mean-field"}},
        "holds no distribution: params\\['w'\\] has shape": {
            "schema": OLD, "content": {"kind": "samples", "params": {"w": "w"}},
        },
        "holds no distribution: its points are repeated over \\[3\\]; expected": {
            "schema": OLD,
            "content": {"kind": "samples", "params": {"w": "w"}, "repeated": {"over": [3], "names": ["w"]}},
        },
        "is damaged: KeyError\\('v'\\)": {
            "schema": OLD,
            "content": {"kind": "samples", "params": {"w": "w"}, "repeated": {"over": [3, 1], "names": ["v"]}},
        },
    }  # fmt: skip
    for message, content in cases.items():
        written(path, content, {"params/w": torch.zeros(2), "mean/w": torch.zeros(2), "covariance": torch.eye(2)})
        with pytest.raises(InputError, match=rf"q {message}"):
            load_distribution(path)


def test_what_cannot_be_saved(tmp_path):
    with pytest.raises(InputError, match="a dict cannot be saved; expected one of Delta, MeanField"):
        save_distribution({"w": torch.zeros(2)}, tmp_path / "q")
    with pytest.raises(InputError, match=r"metadata has 'coset.distribution', which is the file's own"):
        save_distribution(Delta({"w": torch.zeros(2)}), tmp_path / "q", {KEY: "mine"})
    with pytest.raises(InputError, match=r"metadata has 'format', which is the file's own; expected other names"):
        save_distribution(Delta({"w": torch.zeros(2)}), tmp_path / "q", {"format": "mine"})
    with pytest.raises(InputError, match=r"'params/w' .* NaN or infinite"):
        save_distribution(Delta({"w": torch.full((2,), torch.nan)}), tmp_path / "q")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(InputError, match=r"metadata 'seed' is 3; expected a text"):
        save_distribution(Delta({"w": torch.zeros(2)}), tmp_path / "q", {"seed": 3})


@pytest.mark.parametrize("kind", every_kind())
def test_every_changed_byte_is_seen(kind, tmp_path):
    """Of the numbers, and of what the file says of itself; a value may be changed into another that is as good."""
    path = tmp_path / "q"
    save_distribution(every_kind()[kind], path, {"seed": "3"})
    whole = path.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    for at in (header, (header + len(whole)) // 2, len(whole) - 1, whole.index(b'"seed":"3"') + 8):
        changed = bytearray(whole)
        changed[at] ^= 1
        path.write_bytes(changed)
        with pytest.raises(InputError, match=r"q is damaged: .* the checksum it was written with"):
            load_distribution(path)
        with pytest.raises(InputError, match=r"q is damaged: .* the checksum it was written with"):
            load_metadata(path)


def test_a_distribution_is_of_the_symmetry_it_was_written_for(tmp_path):
    shapes = {"w": torch.zeros(3, 2)}
    mine, other = (Symmetry.from_axes({"w": text}, shapes) for text in ("h 2", "3 h"))
    path, q = tmp_path / "q", Delta({"w": torch.ones(3, 2)})
    save_distribution(q, path, sym=mine)
    assert_same(load_distribution(path, sym=mine), q)
    assert_same(load_distribution(path), q)
    with pytest.raises(InputError, match=r"q holds no distribution: it belongs to the symmetry with fingerprint '"):
        load_distribution(path, sym=other)
    save_distribution(q, path)
    assert_same(load_distribution(path, sym=other), q)  # nothing said of which
