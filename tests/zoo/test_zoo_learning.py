"""A zoo as data to learn from: batches of stacks, one symmetry for an architecture, rows that loaders can stack."""

import pytest
import torch
from small_zoos import small
from torch import nn
from torch.utils.data import DataLoader

from coset.errors import InputError
from coset.zoo import Zoo, open_zoo, train_zoo


class Reader(nn.Module):
    """Reads characters by their numbers; knows of no attribute but its layers."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(100, 4)
        self.inside = nn.Linear(4, 5)
        self.head = nn.Linear(5, 100)

    def forward(self, x):
        return self.head(self.inside(self.embed(x)).relu())


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """Three networks of each of two architectures."""
    spec = small(
        {"epochs": 1}, options={"in_features": 30, "out_features": 2}, grid={"options": {"widths": [[3], [2]]}}
    )
    folder = tmp_path_factory.mktemp("mixed") / "zoo"
    train_zoo({**spec, "seeds": 3}, folder)
    return folder


def test_networks_are_grouped_by_architecture(mixed):
    zoo = open_zoo(mixed)
    assert zoo.by_architecture == {0: (0, 1, 2), 1: (3, 4, 5)}
    assert [row["architecture"] for row in zoo.rows()] == [0, 0, 0, 1, 1, 1]
    assert zoo.where(architecture=1) == (3, 4, 5)
    assert zoo.symmetry(3) is zoo.symmetry(5)
    assert zoo.symmetry(3) is not zoo.symmetry(0)
    with pytest.raises(InputError, match="expected networks of one"):
        zoo.symmetry()


def test_a_loader_gives_stacks_of_one_architecture(mixed):
    zoo = open_zoo(mixed)
    dataset = zoo.dataset()
    batches = list(dataset.batches(2, torch.Generator().manual_seed(0)))
    assert sorted(number for batch in batches for number in batch) == list(range(6))
    assert batches != list(dataset.batches(2))
    seen = []
    for stack, row in DataLoader(dataset, batch_sampler=batches):
        seen += row["index"].tolist()
        assert len(set(row["architecture"].tolist())) == 1
        for name, tensor in zoo.stack(row["index"].tolist()).items():
            assert torch.equal(stack[name], tensor)
        assert row["test_accuracy"].shape == (len(row["index"]),)
    assert sorted(seen) == list(range(6))


def test_rows_of_a_dataset_have_what_all_networks_have(mixed):
    zoo = open_zoo(mixed)
    zoo.content["groups"][0]["records"][1]["metrics"]["extra"] = {"loss": 1.0}
    assert "extra_loss" in zoo.dataset([1])[0][1]
    assert "extra_loss" not in zoo.dataset([1, 2])[0][1]


def test_a_dataset_of_what_cannot_be_used_is_refused_at_once(mixed):
    zoo = open_zoo(mixed)
    with pytest.raises(InputError, match="has no network 77; expected 0 to 5"):
        zoo.dataset([0, 77])
    with pytest.raises(InputError, match="has no snapshot after step 9"):
        zoo.dataset(step=9)
    zoo.content["groups"][0]["records"][1]["problem"] = "training diverged"
    with pytest.raises(InputError, match=r"network 1 of .*: training diverged"):
        Zoo(zoo.folder, zoo.content).dataset([0, 1])


def test_the_symmetry_of_a_model_that_reads_tokens(tmp_path, data_folder):
    spec = small(
        {"epochs": 1, "batch_size": 40},
        model=f"{__name__}:Reader",
        options={},
        data={"name": "tinyshakespeare", "window": 8, "subset": 40},
        seeds=1,
    )
    zoo = train_zoo(spec, tmp_path / "zoo")
    assert zoo.indices == (0,)
    assert set(zoo.symmetry().classes) >= {"inside"}
