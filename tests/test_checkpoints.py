"""Weights in files: what is read comes back, what is not right is refused by name, nothing is half-written."""

import hashlib
import io
import json
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path

import pytest
import safetensors.torch
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

from coset._files import tensors as tensor_files
from coset.checkpoints import (
    as_stored,
    match_checkpoint,
    output_file,
    read_checkpoint,
    write_checkpoint,
    write_checkpoints,
)
from coset.errors import InputError


def weights():
    generator = torch.Generator().manual_seed(0)
    return {
        "a.weight": torch.randn(3, 2, generator=generator),
        "a.half": torch.randn(4, generator=generator).half(),
        "a.brain": torch.randn(4, generator=generator).bfloat16(),
        "a.double": torch.randn(2, generator=generator, dtype=torch.float64),
        "count": torch.tensor(7),
    }


def same(found, expected):
    assert list(found) == list(expected) or set(found) == set(expected)
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)


def legacy(content, path):
    torch.save(content, path, _use_new_zipfile_serialization=False)


# Reading ------------------------------------------------------------------------------------------------------------


def test_a_written_checkpoint_comes_back(tmp_path):
    path = tmp_path / "new" / "w.safetensors"
    write_checkpoint(path, weights(), {"made": "here"})
    read = read_checkpoint(path)
    same(read.params, weights())
    assert read.metadata == {"format": "pt", "made": "here"}
    assert read.where == path
    assert read.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert [item.name for item in path.parent.iterdir()] == ["w.safetensors"]


@pytest.mark.parametrize("save", [torch.save, legacy])
@pytest.mark.parametrize("key", [None, "state_dict", "model_state_dict", "model"])
def test_pytorch_files_old_and_new_plain_and_nested(tmp_path, save, key):
    """What a file is is told by its content: here its name lies."""
    content = OrderedDict(weights())
    content["a.weight"] = nn.Parameter(content["a.weight"])
    if key:
        optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1, momentum=0.9)
        content = {
            "epoch": 3,
            "optimizer": optimizer.state_dict(),
            key: content,
            "name": "x",
            "best": torch.tensor(1.0),
        }
    save(content, tmp_path / "w.safetensors")
    read = read_checkpoint(tmp_path / "w.safetensors")
    same(read.params, weights())
    assert not any(tensor.requires_grad for tensor in read.params.values())
    assert read.metadata == {}


def test_the_key_chooses_where_there_are_several(tmp_path):
    path = tmp_path / "w.pt"
    a, b = {"w": torch.zeros(2)}, {"w": torch.ones(2)}
    torch.save({"model": a, "model_ema": b, "epoch": 1}, path)
    with pytest.raises(InputError, match=r"w\.pt holds tensors under 'model', 'model_ema'; choose with key"):
        read_checkpoint(path)
    assert torch.equal(read_checkpoint(path, key="model_ema").params["w"], b["w"])
    with pytest.raises(InputError, match=r"no state dict under 'ema', only 'model', 'model_ema', 'epoch'"):
        read_checkpoint(path, key="ema")
    with pytest.raises(InputError, match=r"no state dict under 'epoch', a int there"):
        read_checkpoint(path, key="epoch")
    torch.save({"encoder": a, "epoch": 1}, path)
    with pytest.raises(InputError, match=r"holds tensors under 'encoder'; choose"):
        read_checkpoint(path)
    write_checkpoint(tmp_path / "w.safetensors", a)
    with pytest.raises(InputError, match=r"safetensors file, which has no parts; 'model' cannot be chosen"):
        read_checkpoint(tmp_path / "w.safetensors", key="model")


class Code:
    def __reduce__(self):
        return (Path.touch, (Path("ran"),))


@pytest.mark.parametrize("save", [torch.save, legacy])
def test_code_in_a_pickle_is_refused_and_not_run(tmp_path, monkeypatch, save):
    monkeypatch.chdir(tmp_path)
    for content in ({"w": torch.ones(2), "x": Code()}, nn.Linear(2, 2)):
        save(content, "w.pt")
        with pytest.raises(InputError, match=r"^w\.pt holds pickled code \(it asks for [\w.]+\), which is not run"):
            read_checkpoint("w.pt")
    assert not Path("ran").exists()


def archive(**members):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name, text in members.items():
            file.writestr(name, text)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "neither a safetensors nor a PyTorch file"),
        (b"some text, no weights", "neither a safetensors nor a PyTorch file; it begins with b'some tex'"),
        (b"\x10\0\0\0\0\0\0\0{not JSON at all}", "is not a whole safetensors file"),
        (b"\xff\xff\xff\xff\xff\xff\xff\xff{", "is not a whole safetensors file"),
        (archive(a="b"), "is damaged or not a PyTorch file"),
        (pickle.dumps({"w": 1}, protocol=2), "is damaged or not a PyTorch file"),
        (pickle.dumps({"w": 1}, protocol=5), "not a PyTorch file"),
        (b"\x80", "not a PyTorch file"),
    ],
)
def test_foreign_files_are_refused_in_one_line(tmp_path, content, message):
    path = tmp_path / "w.pt"
    path.write_bytes(content)
    with pytest.raises(InputError) as refused:
        read_checkpoint(path)
    assert str(refused.value).startswith(f"{path} ")
    assert message in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize("form", ["safetensors", "zip", "legacy"])
def test_truncated_files_are_refused_wherever_they_end(tmp_path, form):
    path = tmp_path / "w"
    save = {"safetensors": lambda w, p: safetensors.torch.save_file(w, p), "zip": torch.save, "legacy": legacy}[form]
    save({"w": torch.randn(40), "v": torch.randn(3, 5)}, path)
    whole = path.read_bytes()
    for length in {*range(0, len(whole), max(1, len(whole) // 40)), len(whole) - 1}:
        path.write_bytes(whole[:length])
        with pytest.raises(InputError, match=str(path)):
            read_checkpoint(path)


def test_what_is_no_file_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"gone\.pt does not exist; expected a file of weights"):
        read_checkpoint(tmp_path / "gone.pt")
    with pytest.raises(InputError, match="is a folder without weights"):
        read_checkpoint(tmp_path)
    if Path("/dev/null").exists():
        with pytest.raises(InputError, match="/dev/null is not a regular file"):
            read_checkpoint("/dev/null")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([torch.ones(2)], r"holds a list; expected a state dict"),
        (torch.ones(2), r"holds a Tensor; expected a state dict"),
        ({}, r"holds no tensors"),
        ({"w": torch.ones(2), "lr": 0.1}, r"'lr' of .*w\.pt is a float; expected a tensor"),
        ({"w": torch.ones(2), 3: torch.ones(2)}, r"holds something under 3; expected names"),
        ({"w": torch.ones(2).to_sparse()}, r"'w' of .*w\.pt is not a dense tensor with values \(torch\.sparse_coo"),
        ({"w": torch.ones(2), "m": torch.ones(2, device="meta")}, r"'m' of .* on meta"),
        ({"v": torch.ones(2), "w": torch.tensor([1.0, float("nan")])}, r"'w' of .* has 1 of 2 entries that are NaN"),
        ({"w": torch.tensor([1.0, -float("inf"), float("inf")]).half()}, r"'w' of .* has 2 of 3 entries"),
        ({"w": torch.tensor([1.0, float("nan")]).to(torch.float8_e4m3fn)}, r"'w' of .* has 1 of 2 entries"),
    ],
)  # fmt: skip
def test_what_is_no_network_is_refused_by_name(tmp_path, content, message):
    torch.save(content, tmp_path / "w.pt")
    with pytest.raises(InputError, match=message):
        read_checkpoint(tmp_path / "w.pt")


def test_nan_in_safetensors_is_refused(tmp_path):
    safetensors.torch.save_file({"w": torch.tensor([float("nan")])}, tmp_path / "w.safetensors")
    with pytest.raises(InputError, match=r"'w' of .*w\.safetensors has 1 of 1 entries that are NaN or infinite"):
        read_checkpoint(tmp_path / "w.safetensors")


# Matching -----------------------------------------------------------------------------------------------------------


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embed.weight


def stored(tmp_path, params, **options):
    path = tmp_path / "w.safetensors"
    safetensors.torch.save_file(params, path)
    return read_checkpoint(path, **options)


def test_a_matching_checkpoint_takes_the_order_of_the_model(tmp_path):
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    params = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    matched = match_checkpoint(stored(tmp_path, params), model.state_dict())
    assert list(matched) == list(model.state_dict())
    same(matched, params)


def test_what_differs_is_named(tmp_path):
    state = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4)).state_dict()
    other = {"0.weight": torch.zeros(3, 5), "0.bias": torch.zeros(3), "1.weight": torch.zeros(4, 3)}
    with pytest.raises(InputError) as refused:
        match_checkpoint(stored(tmp_path, {**other, "2.bias": torch.zeros(4)}), state, "the model mlp")
    assert str(refused.value) == (
        f"{tmp_path / 'w.safetensors'} does not fit the model mlp: it lacks '1.bias'; the model mlp does not have its "
        f"'2.bias'; '0.weight' is (3, 5) where (3, 2) is expected"
    )
    with pytest.raises(InputError, match=r"it lacks '0\.weight', '0\.bias', '1\.weight' and 1 more; "):
        match_checkpoint(stored(tmp_path, {"x": torch.ones(2)}), state)
    whole = {name: tensor.to(torch.int8) for name, tensor in state.items()}
    with pytest.raises(InputError, match=r"'0\.weight' of .* is of type torch\.int8; the model has torch\.float32"):
        match_checkpoint(stored(tmp_path, whole), state)


def test_a_prefix_is_hinted_at_and_stripped_only_when_told(tmp_path):
    state = nn.Sequential(nn.Linear(2, 3)).state_dict()
    wrapped = {f"module.{name}": tensor for name, tensor in state.items()}
    with pytest.raises(InputError, match=r"its names fit without 'module\.': .*--strip-prefix module\."):
        match_checkpoint(stored(tmp_path, wrapped), state)
    checkpoint = stored(tmp_path, wrapped, strip_prefix="module.")
    same(match_checkpoint(checkpoint, state), state)
    same(as_stored(checkpoint, state, "it"), wrapped)
    with pytest.raises(InputError, match=r"its names lack the prefix 'module\.'"):
        match_checkpoint(stored(tmp_path, dict(state)), wrapped)
    bare = stored(tmp_path, dict(state), strip_prefix="module.")
    same(as_stored(bare, state, "it"), state)
    with pytest.raises(InputError, match=r"'module\.' begins 'module\.0\.bias' but not 'x' of .*; expected it on all"):
        stored(tmp_path, {**wrapped, "x": torch.ones(1)}, strip_prefix="module.")


def test_tied_weights_are_tied_again_and_may_be_stored_once(tmp_path):
    state = Tied().state_dict()
    values = torch.randn(5, 3)
    for names in (["embed.weight", "head.weight"], ["embed.weight"], ["head.weight"]):
        checkpoint = stored(tmp_path, {name: values.clone() for name in names})
        matched = match_checkpoint(checkpoint, state)
        assert matched["embed.weight"] is matched["head.weight"]
        assert torch.equal(matched["head.weight"], values)
        assert list(as_stored(checkpoint, matched, "it")) == names
    with pytest.raises(InputError, match=r"'embed\.weight' and 'head\.weight' are one tensor in the model, but differ"):
        match_checkpoint(stored(tmp_path, {"embed.weight": values, "head.weight": values + 1}), state)


def test_as_stored_keeps_dtypes_and_refuses_what_does_not_fit(tmp_path):
    checkpoint = stored(tmp_path, weights())
    wide = {name: tensor.double() if tensor.is_floating_point() else tensor for name, tensor in weights().items()}
    same(as_stored(checkpoint, wide, "it"), weights())
    wide["a.half"] = wide["a.half"] * 1e6
    with pytest.raises(InputError, match=r"'a\.half' of the result reaches [\d.e+]+, too large for torch\.float16"):
        as_stored(checkpoint, wide, "the result")


# Writing ------------------------------------------------------------------------------------------------------------


def test_shared_memory_and_strides_are_written_out(tmp_path):
    whole = torch.randn(4, 3)
    params = {"a": whole, "tied": whole, "row": whole[1], "turned": whole.T, "one": whole[:1].expand(5, 3)}
    write_checkpoint(tmp_path / "w.safetensors", params)
    same(read_checkpoint(tmp_path / "w.safetensors").params, params)


def test_bad_content_is_refused_before_anything_is_written(tmp_path):
    path = tmp_path / "w.safetensors"
    with pytest.raises(InputError, match=r"'w' of what is to be written to .* has 1 of 1 entries that are NaN"):
        write_checkpoint(path, {"w": torch.tensor([float("nan")])})
    with pytest.raises(InputError, match=r"metadata 'seed' is 3; expected a text"):
        write_checkpoint(path, {"w": torch.ones(1)}, {"seed": 3})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("stop", [KeyboardInterrupt, RuntimeError])
def test_an_interrupted_write_leaves_what_was_there(tmp_path, monkeypatch, stop):
    path = tmp_path / "w.safetensors"
    path.write_bytes(b"earlier")

    def interrupted(tensors, target, metadata):
        Path(target).write_bytes(b"half")
        raise stop

    monkeypatch.setattr(tensor_files, "save_file", interrupted)
    with pytest.raises(stop):
        write_checkpoint(path, weights())
    assert path.read_bytes() == b"earlier"
    assert list(tmp_path.iterdir()) == [path]


def test_the_header_is_plain_safetensors_and_the_same_content_the_same_bytes(tmp_path):
    odd = "".join(map(chr, [*range(1, 0x80), 0xFC, 0x2028, 0x1F600]))
    texts = {"format": "mine", "notes": json.dumps(["ü"]), odd: odd, **{f"text {n}": str(n) for n in range(9)}}
    contents = set()
    for _ in range(4):
        write_checkpoint(tmp_path / "w", weights(), texts)
        contents.add((tmp_path / "w").read_bytes())
    assert len(contents) == 1
    with safe_open(tmp_path / "w", "pt") as file:
        assert file.metadata() == texts
    same(load_file(tmp_path / "w"), weights())


def test_an_output_is_tried_before_the_work(tmp_path):
    source = tmp_path / "a.safetensors"
    source.write_bytes(b"x")
    link = tmp_path / "link"
    link.symlink_to(source)
    hard = tmp_path / "hard"
    hard.hardlink_to(source)
    for path in (source, link, hard, tmp_path / "b" / ".." / "a.safetensors"):
        with (
            pytest.raises(InputError, match=r"would overwrite .*a\.safetensors; expected another file"),
            output_file(path, [source]),
        ):
            pytest.fail("not refused")
    for path, message in ((tmp_path, "is a folder"), (source / "b", "found the file"), ("/dev/null", "not a regular")):
        with pytest.raises(InputError, match=message), output_file(path):
            pytest.fail("not refused")
    with output_file(tmp_path / "new" / "deep" / "w", [source]) as path:
        assert path.parent.is_dir()


def test_folders_made_for_an_output_go_when_the_work_fails(tmp_path):
    with pytest.raises(RuntimeError), output_file(tmp_path / "new" / "deep" / "w"):
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["a\nb", "a\u2028b", "a\x85b"])
def test_names_of_several_lines_are_told_in_one(tmp_path, name):
    path = tmp_path / "w.safetensors"
    safetensors.torch.save_file({name: torch.tensor([torch.nan])}, path)
    with pytest.raises(InputError) as caught:
        read_checkpoint(path)
    assert len(str(caught.value).splitlines()) == 1
    safetensors.torch.save_file({name: torch.tensor([1.0])}, path)
    with pytest.raises(InputError) as caught:
        match_checkpoint(read_checkpoint(path), {"a": torch.zeros(1)})
    assert len(str(caught.value).splitlines()) == 1


def test_a_stack_is_a_folder_of_files_or_nothing(tmp_path):
    stack = {"a": torch.arange(6.0).reshape(3, 2), "n": torch.arange(3)}
    files = write_checkpoints(tmp_path / "new" / "here", stack, {"made": "by a test"})
    assert [file.name for file in files] == ["000000.safetensors", "000001.safetensors", "000002.safetensors"]
    same(load_file(files[1]), {"a": torch.tensor([2.0, 3.0]), "n": torch.tensor(1)})
    with safe_open(files[2], "pt") as file:
        assert file.metadata() == {"format": "pt", "made": "by a test"}
    with pytest.raises(InputError, match="here is not empty; expected a new folder"):
        write_checkpoints(tmp_path / "new" / "here", stack)
    stack["a"][2, 0] = torch.nan
    with pytest.raises(InputError, match="000002"):
        write_checkpoints(tmp_path / "other" / "here", stack)
    assert not (tmp_path / "other").exists()
