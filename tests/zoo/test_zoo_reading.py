"""What a zoo gives back: weights, tables, data sets; what is damaged or does not fit is reported."""

import json
import shutil

import h5py
import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file
from small_zoos import small

from coset import align, discover
from coset.errors import InputError
from coset.models import MLP, build
from coset.train import evaluate
from coset.zoo import (
    ZooSpec,
    align_zoo,
    canonicalize_zoo,
    evaluate_zoo,
    export_zoo,
    import_zoo,
    open_zoo,
    save_zoo,
    train_zoo,
    zoo_task,
)
from coset.zoo._data import load_data

OPTIONS = {"in_features": 30, "out_features": 2, "widths": [4, 3]}


@pytest.fixture
def copied(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "copied")


def test_networks_come_as_weights_stacks_rows_and_a_dataset(trained):
    zoo = open_zoo(trained)
    assert len(zoo) == 6
    stack = zoo.stack([5, 0, 3])
    assert list(stack) == list(zoo.model().state_dict())
    for name, tensor in stack.items():
        assert torch.equal(tensor[0], zoo[5][name])
    dataset = zoo.dataset()
    weights, row = dataset[4]
    assert len(dataset) == 6
    assert row["seed"] == 4
    assert torch.equal(weights["layers.0.bias"], zoo[4]["layers.0.bias"])
    assert zoo.where(seed=2) == (2,)
    with pytest.raises(InputError, match="have no 'sed'"):
        zoo.where(sed=2)
    with pytest.raises(InputError, match="has no network 6; expected 0 to 5"):
        zoo[6]


def spoil(path, row):
    """Change one bit of one network of a shard."""
    content = bytearray(path.read_bytes())
    start = 8 + int.from_bytes(content[:8], "little")
    begin, _ = json.loads(content[8:start])["layers.0.bias"]["data_offsets"]
    content[start + begin + 8 * 4 * row] ^= 1  # of four biases with eight bytes each
    path.write_bytes(content)


def test_a_damaged_member_is_reported_and_left_out(copied):
    path = copied / "shards" / "00000.safetensors"
    spoil(path, 2)
    zoo = open_zoo(copied)
    assert zoo.problems == {2: "damaged: it does not have the checksum it was written with"}
    assert zoo.indices == (0, 1, 3, 4, 5)
    assert len(zoo.stack()["layers.0.bias"]) == len(zoo.dataset()) == 5
    with pytest.raises(InputError, match=r"network 2 of .*damaged"):
        zoo.stack([1, 2])
    path.unlink()
    assert open_zoo(copied).indices == (4, 5)


def test_a_damaged_index_is_refused(copied, tmp_path):
    path = copied / "zoo.json"
    path.write_text(path.read_text().replace('"seed": 5', '"seed": 6'))
    with pytest.raises(InputError, match=r"zoo\.json is damaged"):
        open_zoo(copied)
    with pytest.raises(InputError, match=r"is not a zoo: it has no zoo\.json"):
        open_zoo(tmp_path)


def test_evaluation_is_that_of_single_networks(copied):
    zoo = evaluate_zoo(copied)
    data = load_data(ZooSpec.from_dict(zoo.content["spec"]).data[0], torch.float64)
    for index in (0, 5):
        for part in ("train", "test"):
            alone = evaluate(zoo.model(), data.parts[part].x, data.parts[part].y, params=zoo[index])
            row = zoo.rows()[index]
            assert row[f"{part}_loss"] == pytest.approx(alone.loss, abs=1e-12)
            assert row[f"{part}_accuracy"] == alone.accuracy


def outputs(zoo, index, step, x):
    params = {name: tensor[0] for name, tensor in zoo.stack([index], step=step).items()}
    return torch.func.functional_call(zoo.model(index), params, (x,))


def test_aligned_and_canonical_zoos_have_the_same_functions(trained, tmp_path):
    zoo = open_zoo(trained)
    x = torch.randn(5, 30, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    sym = zoo.symmetry()
    moved = {"aligned": align_zoo(zoo, tmp_path / "aligned", reference=1, symmetry=sym)}
    moved["canonical"] = canonicalize_zoo(zoo, tmp_path / "canonical", symmetry=sym)
    for name, other in moved.items():
        assert other.snapshots == zoo.snapshots
        for index in zoo.indices:
            for step in (None, *zoo.snapshots):
                there, here = (outputs(one, index, step, x) for one in (other, zoo))
                torch.testing.assert_close(there, here, rtol=0.0, atol=1e-10)
        assert any(not torch.equal(other[i]["layers.0.weight"], zoo[i]["layers.0.weight"]) for i in (2, 3)), name
        assert other.content["made"]["symmetries"] == [sym.fingerprint]
    assert torch.equal(moved["aligned"][1]["layers.0.weight"], zoo[1]["layers.0.weight"])
    # Each snapshot by its own element, which is that of one alignment.
    for index, step in ((4, None), (4, 0), (2, 3)):
        alone = align(sym, zoo[1], {name: t[0] for name, t in zoo.stack([index], step=step).items()})
        for name, tensor in moved["aligned"].stack([index], step=step).items():
            torch.testing.assert_close(tensor[0], alone.params[name], rtol=0.0, atol=1e-12)
    given = {"symmetry": sym, "method": "activations", "model": zoo.model(), "data": x}
    looped = align_zoo(zoo, tmp_path / "looped", reference=1, **given)
    alone = align(sym, zoo[1], zoo[5], method="activations", model=zoo.model(), data=x)
    assert torch.equal(looped[5]["layers.0.weight"], alone.params["layers.0.weight"])
    with pytest.raises(InputError, match="the symmetry is that of another model than networks of"):
        align_zoo(zoo, tmp_path / "other", symmetry=discover(MLP(30, [5, 3], 2), torch.randn(2, 30)))
    assert not (tmp_path / "other").exists()
    with pytest.raises(InputError, match="aligned is a zoo made by align; expected a new one, or one in training"):
        train_zoo(zoo.content["spec"], tmp_path / "aligned")


def test_factors_of_canonical_classifiers_are_in_the_table(trained, tmp_path):
    zoo = open_zoo(trained)
    x = torch.randn(5, 30, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    scaled = canonicalize_zoo(zoo, tmp_path / "scaled", classifier=True)
    row = scaled.rows()[3]
    assert "test_loss" not in row
    there, here = (outputs(one, 3, None, x) for one in (scaled, zoo))
    torch.testing.assert_close(there, row["logit_factor"] * here, rtol=0.0, atol=1e-10)


def test_what_cannot_be_used_stays_out_of_a_frame(copied, tmp_path):
    spoil(copied / "shards" / "00000.safetensors", 2)
    (copied / "shards" / "00001.safetensors").write_bytes(b"nothing")
    spoil(copied / "shards" / "00000-3.safetensors", 1)
    (copied / "shards" / "00000-0.safetensors").unlink()
    zoo = open_zoo(copied)
    aligned = align_zoo(zoo, tmp_path / "aligned")
    assert aligned.problems == zoo.problems
    assert aligned.indices == (0, 1, 3)
    assert aligned.snapshots == (3,)
    assert aligned.readable(aligned.indices, step=3) == [0, 3]
    assert aligned.content["made"]["notes"] == ["weights after step 0 are damaged from network 0 on, and left out"]
    with pytest.raises(InputError, match=r"network 1 of .*: weights are not finite"):
        aligned.stack([0, 1], step=3)
    for shard in ("00000", "00001"):
        (copied / "shards" / f"{shard}.safetensors").unlink()
    with pytest.raises(InputError, match=r"no network of .* can be used: shard .*missing"):
        canonicalize_zoo(open_zoo(copied), tmp_path / "canonical")


def test_mixed_architectures_are_refused_where_one_is_needed(tmp_path):
    spec = small(options={"in_features": 30, "out_features": 2}, seeds=2)
    zoo = train_zoo({**spec, "grid": {"options": {"widths": [[4], [3]]}}}, tmp_path / "zoo")
    for call in (zoo.stack, zoo.model, lambda: canonicalize_zoo(zoo, tmp_path / "out", reference=0)):
        with pytest.raises(InputError, match=r"networks 0 and 2 .* have architectures .*4.* and .*3.*; expected"):
            call()
    assert zoo.where(widths=[3]) == (2, 3)
    assert zoo.stack(zoo.where(widths=[3]))["layers.0.weight"].shape == (2, 3, 30)
    aligned = align_zoo(zoo, tmp_path / "aligned")
    assert aligned.content["made"]["references"] == [0, 2]
    x = torch.randn(5, 30, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for index in (1, 3):
        there, here = (outputs(one, index, None, x) for one in (aligned, zoo))
        torch.testing.assert_close(there, here, rtol=0.0, atol=1e-10)


def test_exported_zoos_are_imported_again(trained, tmp_path):
    zoo = open_zoo(trained)
    for out in ("folder", "stack.npz", "stack.h5"):
        export_zoo(zoo, tmp_path / out)
        again = import_zoo(tmp_path / out, tmp_path / f"from-{out}", model="mlp", options=OPTIONS)
        for name, tensor in zoo.stack().items():
            assert torch.equal(again.stack()[name], tensor)
    export_zoo(zoo, tmp_path / "stack.safetensors")
    assert torch.equal(load_file(tmp_path / "stack.safetensors")["layers.0.bias"], zoo.stack()["layers.0.bias"])
    export_zoo(zoo, tmp_path / "table.csv")
    assert len((tmp_path / "table.csv").read_text().splitlines()) == 7
    with pytest.raises(InputError, match=r"does not say which data its networks are for; expected data"):
        evaluate_zoo(tmp_path / "from-folder")
    with pytest.raises(InputError, match=r"cannot be measured on digits: x: the model cannot take inputs"):
        evaluate_zoo(tmp_path / "from-folder", data="digits")
    with pytest.raises(InputError, match=r"loss is 'cross'; expected one of cross-entropy"):
        evaluate_zoo(tmp_path / "from-folder", data="breast-cancer", loss="cross")
    measured = evaluate_zoo(tmp_path / "from-folder", data="breast-cancer", parts=["test"])
    assert measured.rows()[3]["test_loss"] == pytest.approx(zoo.rows()[3]["test_loss"], abs=1e-12)


def test_a_stack_becomes_a_zoo_of_the_same_model(trained, tmp_path):
    zoo = open_zoo(trained)
    stack = {name: -tensor for name, tensor in zoo.stack().items()}
    stack["layers.0.bias"][2, 0] = torch.nan
    made = save_zoo(stack, tmp_path / "made", like=zoo, made={"by": "a test"})
    assert made.content["made"] == {"by": "a test"}
    assert made.problems == {2: "weights are not finite"}
    assert [row["source"] for row in made.rows()] == ["0", "1", "2", "3", "4", "5"]
    assert all(torch.equal(made[3][name], tensor[3]) for name, tensor in stack.items())
    assert made.symmetry().fingerprint == zoo.symmetry().fingerprint
    for change, message in (
        (
            {"layers.0.bias": stack["layers.0.bias"][:, :1]},
            r"'layers\.0\.bias' of networks is \(1,\) float64; expected",
        ),
        ({"more": torch.zeros(6, 2)}, r"'more' of networks is \(2,\) float32; expected no such tensor"),
        ({"layers.0.bias": stack["layers.0.bias"][:4]}, r"networks has leading axes of \[4, 6\]; expected a stack"),
    ):
        with pytest.raises(InputError, match=message):
            save_zoo({**stack, **change}, tmp_path / "none", like=zoo)
    with pytest.raises(InputError, match="there are 1 sources and 6 networks; expected one for each"):
        save_zoo(stack, tmp_path / "none", like=zoo, sources=["one"])
    with pytest.raises(InputError, match="made is not empty; expected a new folder"):
        save_zoo(stack, tmp_path / "made", like=zoo)
    assert not (tmp_path / "none").exists()


def test_the_examples_and_the_loss_of_a_zoo(trained, tmp_path):
    zoo = open_zoo(trained)
    part, loss = zoo_task(zoo)
    known = evaluate(zoo.model(), part.x, part.y, params=zoo[1], loss=loss)
    assert loss == "cross-entropy"
    assert known.loss == pytest.approx(zoo.rows()[1]["test_loss"], abs=1e-12)
    assert len(zoo_task(zoo, "train")[0]) == 128
    assert len(zoo_task(zoo, data="breast-cancer", part="train", loss="mse")[0]) == 455
    with pytest.raises(InputError, match="part is 'validation', which breast-cancer has not; expected one of train, t"):
        zoo_task(zoo, "validation")
    made = save_zoo(zoo.stack(), tmp_path / "made", like=zoo)
    with pytest.raises(InputError, match="made does not say which data its networks are for; expected data"):
        zoo_task(made)


def test_hdf5_files_of_others_have_groups_and_names_of_their_own(tmp_path):
    networks = [build("mlp", seed=seed, **OPTIONS).state_dict() for seed in range(3)]
    with h5py.File(tmp_path / "theirs.hdf5", "w") as file:
        for name in networks[0]:
            stack = np.stack([one[name].numpy() for one in networks])
            file.create_dataset(f"weights/{name}", data=stack, compression="gzip")
        file["labels"] = np.array(["a", "b", "c"], dtype=h5py.string_dtype())  # left out, as names say what is wanted
    names = {name: f"weights/{name}" for name in networks[0]}
    given = {"model": "mlp", "options": OPTIONS}
    zoo = import_zoo(tmp_path / "theirs.hdf5", tmp_path / "zoo", names=names, **given)
    for index, network in enumerate(networks):
        for name, tensor in network.items():
            assert torch.equal(zoo[index][name], tensor)
    with pytest.raises(InputError, match=r"theirs\.hdf5 has 'labels', which the model has not; expected"):
        import_zoo(tmp_path / "theirs.hdf5", tmp_path / "other", **given)
    (tmp_path / "broken.h5").write_bytes(b"\x89HDF\r\n")
    with pytest.raises(InputError, match=r"broken\.h5 cannot be read"):
        import_zoo(tmp_path / "broken.h5", tmp_path / "other", **given)
    assert not (tmp_path / "other").exists()


def test_the_table_is_a_data_frame(trained):
    zoo = open_zoo(trained)
    table = zoo.table()
    assert isinstance(table, pd.DataFrame)
    assert list(table["seed"]) == [0, 1, 2, 3, 4, 5]
    assert table["test_loss"].dtype == np.float64
    assert list(table["test_loss"]) == [row["test_loss"] for row in zoo.rows()]
    assert table["problem"].isna().all()


def test_foreign_names_and_members_that_are_not_finite(tmp_path):
    networks = [build("mlp", seed=seed, **OPTIONS).state_dict() for seed in range(3)]
    arrays = {f"w/{name}": np.stack([one[name].numpy() for one in networks]) for name in networks[0]}
    arrays["w/layers.1.bias"][1, 0] = np.nan
    np.savez(tmp_path / "theirs.npz", **arrays)
    names = {name: f"w/{name}" for name in networks[0]}
    zoo = import_zoo(tmp_path / "theirs.npz", tmp_path / "zoo", model="mlp", options=OPTIONS, names=names)
    assert zoo.problems == {1: "weights are not finite"}
    assert torch.equal(zoo[2]["layers.0.weight"], networks[2]["layers.0.weight"])
    with pytest.raises(InputError, match=r"theirs\.npz has 'w/layers\.0\.bias', which the model has not"):
        import_zoo(tmp_path / "theirs.npz", tmp_path / "other", model="mlp", options=OPTIONS)
    given = {"model": "mlp", "options": OPTIONS, "names": {"layers.0.wight": "w/layers.0.weight"}}
    with pytest.raises(InputError, match=r"which the model has not; did you mean 'layers\.0\.weight'\?"):
        import_zoo(tmp_path / "theirs.npz", tmp_path / "other", **given)
    (tmp_path / "files").mkdir()
    save_file(networks[0], tmp_path / "files" / "a.safetensors")
    save_file(build("mlp", seed=0, **{**OPTIONS, "widths": [4, 4]}).state_dict(), tmp_path / "files" / "b.safetensors")
    with pytest.raises(InputError, match=r"b\.safetensors"):
        import_zoo(tmp_path / "files", tmp_path / "other", model="mlp", options=OPTIONS)
    assert not (tmp_path / "other").exists()


def test_methods_that_need_data_get_those_of_the_zoo(trained, tmp_path):
    zoo = open_zoo(trained)
    aligned = align_zoo(zoo, tmp_path / "aligned", method="activations")
    train = load_data(ZooSpec.from_dict(zoo.content["spec"]).data[0], torch.float64).train
    alone = align(zoo.symmetry(), zoo[0], zoo[3], method="activations", model=zoo.model(), data=train.x)
    assert all(torch.equal(aligned[3][name], tensor) for name, tensor in alone.params.items())


def test_nothing_is_exported_of_a_zoo_that_cannot_be_used(copied, tmp_path):
    for path in (copied / "shards").iterdir():
        path.unlink()
    with pytest.raises(InputError, match=r"no network of .* can be used: shard .* is missing"):
        export_zoo(open_zoo(copied), tmp_path / "out")
    assert not (tmp_path / "out").exists()
