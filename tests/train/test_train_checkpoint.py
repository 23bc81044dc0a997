"""Interrupted and resumed runs: the same bits as uninterrupted ones, and nothing resumed that should not be."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from coset.errors import InputError
from coset.train import Moment, Recipe, TrainResult, fit

EVERYTHING = Recipe(
    epochs=4,
    batch_size=8,
    learning_rate=0.02,
    optimizer="adam",
    schedule="cosine",
    warmup_epochs=1,
    weight_decay=1e-3,
    label_smoothing=0.1,
    mixup=0.4,
    cutmix=1.0,
    augmentation="shift-flip",
    shift=1,
    clip=1.0,
    keep="best",
)
SGD = replace(EVERYTHING, optimizer="sgd", momentum=0.9, nesterov=True, keep="last", schedule="linear")


class Network(nn.Module):
    """Dropout, batch normalisation, shared weights, and a buffer outside the ``state_dict`` that training changes."""

    def __init__(self, outputs: int = 3, dropout: float = 0.3) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(2, 4, 3, padding=1)
        self.again = nn.Conv2d(4, 4, 1)
        self.twin = nn.Conv2d(4, 4, 1)
        self.twin.weight = self.again.weight
        self.norm = nn.BatchNorm2d(4)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(4 * 25, outputs)
        self.seen: Tensor
        self.register_buffer("seen", torch.zeros(()), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen += 1
        hidden = self.twin(self.again(self.norm(self.conv(x)).relu())).relu()
        outputs: Tensor = self.head(self.dropout(hidden.flatten(1))) / (1 + 0.01 * self.seen)
        return outputs


GENERATOR = torch.Generator().manual_seed(3)
X, Y = torch.randn(30, 2, 5, 5, generator=GENERATOR), torch.randint(3, (30,), generator=GENERATOR)
HELD_OUT = X[:10].flip(3), Y[:10]


def train(path: Path | None, recipe: Recipe = EVERYTHING, model: nn.Module | None = None, **more: Any) -> TrainResult:
    arguments: dict[str, Any] = {"x": X, "y": Y, "seed": 7, "validation": HELD_OUT, "checkpoint": path} | more
    return fit(model or Network(), arguments.pop("x"), arguments.pop("y"), recipe, **arguments)


def stop_when(condition: Callable[[Moment], bool]) -> Callable[[Moment], None]:
    def callback(moment: Moment) -> None:
        if condition(moment):
            raise KeyboardInterrupt

    return callback


def same(a: TrainResult, b: TrainResult) -> bool:
    """Equal in everything but the seconds."""
    timeless = [[replace(epoch, seconds=0.0) for epoch in result.history] for result in (a, b)]
    tensors = all(torch.equal(a.params[name], b.params[name]) for name in b.params)
    rest = (a.params.keys(), a.best_epoch, a.steps) == (b.params.keys(), b.best_epoch, b.steps)
    return tensors and rest and timeless[0] == timeless[1]


STOPS = {
    "first epoch": lambda moment: moment.step == 2,
    "middle of an epoch": lambda moment: moment.step == 10,
    "end of an epoch": lambda moment: moment.epoch == 1 and moment.record is not None,
    "last step": lambda moment: moment.step == 16,
    "after the last epoch": lambda moment: moment.epoch == 3 and moment.record is not None,
}


@pytest.mark.parametrize("where", STOPS)
@pytest.mark.parametrize("recipe", [EVERYTHING, SGD], ids=["adam", "sgd"])
@pytest.mark.parametrize("channels_last", [False, True])
def test_resumed_runs_have_the_same_bits(where: str, recipe: Recipe, channels_last: bool, tmp_path: Path) -> None:
    whole = train(None, recipe, channels_last=channels_last)
    path = tmp_path / "run.safetensors"
    with pytest.raises(KeyboardInterrupt):
        train(path, recipe, channels_last=channels_last, callback=stop_when(STOPS[where]))
    torch.rand(5)
    assert same(train(path, recipe, channels_last=channels_last), whole)


def test_a_run_interrupted_in_every_epoch(tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    for epoch in range(4):
        with pytest.raises(KeyboardInterrupt):
            train(path, callback=stop_when(lambda moment, epoch=epoch: moment.step == 4 * epoch + 3))  # type: ignore[misc]
        if epoch < 3:
            with pytest.raises(KeyboardInterrupt):
                train(path, callback=stop_when(lambda moment: moment.record is not None))
    assert same(train(path), train(None))


def test_shared_weights_are_shared_after_a_resume(tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    train(path)
    params = train(path).params
    assert params["again.weight"] is params["twin.weight"]


def test_a_finished_checkpoint_stays_and_answers_without_training(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "run.safetensors"
    first = train(path)
    assert [file.name for file in path.parent.iterdir()] == ["run.safetensors"]
    again = train(path, callback=stop_when(lambda moment: True))
    assert same(again, first)
    assert again.history == first.history


def test_a_finished_checkpoint_can_lie_where_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.safetensors"
    first = train(path)

    def refuse(*arguments: Any, **options: Any) -> None:
        raise PermissionError("read-only file system")

    monkeypatch.setattr("tempfile.NamedTemporaryFile", refuse)
    monkeypatch.setattr("tempfile.mkdtemp", refuse)
    assert same(train(path), first)
    with pytest.raises(InputError, match="cannot be written"):
        train(tmp_path / "other.safetensors")


def test_checkpoints_can_be_spaced_and_the_last_is_always_written(tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    with pytest.raises(KeyboardInterrupt):
        train(path, checkpoint_seconds=3600, callback=stop_when(lambda moment: moment.epoch == 3))
    assert not path.exists()
    train(path, checkpoint_seconds=3600)
    assert path.exists()


def test_the_file_says_what_wrote_it(tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    train(path)
    header = path.read_bytes()
    content = json.loads(
        json.loads(header[8 : 8 + int.from_bytes(header[:8], "little")])["__metadata__"]["coset.train"]
    )
    assert content["versions"]["torch"] == torch.__version__
    assert content["run"]["seed"] == 7
    assert len(content["history"]) == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"recipe": replace(EVERYTHING, epochs=5)}, "recipe epochs is 4 there and 5 here"),
        ({"recipe": replace(EVERYTHING, learning_rate=0.5)}, "recipe learning_rate is 0.02 there and 0.5 here"),
        (
            {"recipe": replace(EVERYTHING, betas=(0.5, 0.9))},
            r"recipe betas is \[0.9, 0.999\] there and \[0.5, 0.9\] here",
        ),
        ({"seed": 8}, "seed is 7 there and 8 here"),
        ({"channels_last": True}, "channels_last is False there and True here"),
        ({"model": Network(outputs=4)}, r"model head.weight is '\(3, 100\) float32 trained' there and '\(4, 100\)"),
        ({"model": Network(dropout=0.4)}, "model structure is"),
        ({"x": X[:20], "y": Y[:20]}, r"data x is '\(30, 2, 5, 5\) float32 checksum \w+' there and '\(20, 2, 5, 5\)"),
        ({"x": X + 1}, r"data x is .* checksum \w+' there"),
        ({"y": (Y + 1) % 3}, "data y is"),
        ({"validation": (HELD_OUT[0] + 1, HELD_OUT[1])}, "data validation x is"),
        ({"validation": None, "recipe": replace(EVERYTHING, keep="last")}, "data validation x is .* and 'absent' here"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    with pytest.raises(KeyboardInterrupt):
        train(path, callback=stop_when(lambda moment: moment.record is not None))
    before = path.read_bytes()
    with pytest.raises(InputError, match=f"{path} belongs to another run: .*{message}"):
        train(path, **change)
    assert path.read_bytes() == before


def test_other_initial_weights_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    train(path)
    model = Network()
    nn.init.zeros_(model.head.bias)
    with pytest.raises(InputError, match="model initial weights is"):
        train(path, model=model)
    frozen = Network()
    frozen.head.requires_grad_(False)
    with pytest.raises(InputError, match=r"model head\.weight is .* trained' there and .* fixed' here"):
        train(path, model=frozen)


@pytest.mark.parametrize("length", [0, 5, 100, -1])
def test_a_truncated_file_is_refused(length: int, tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    train(path)
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(InputError, match=f"{path} is not a whole safetensors file"):
        train(path)


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    with pytest.raises(InputError, match="is not a file"):
        train(tmp_path)
    save_file({"a": torch.zeros(1)}, path)
    with pytest.raises(InputError, match=r"without 'coset\.train' in its metadata"):
        train(path)
    save_file({"a": torch.zeros(1)}, path, {"coset.train": "{"})
    with pytest.raises(InputError, match="is damaged: its metadata is not JSON"):
        train(path)
    save_file({"a": torch.zeros(1)}, path, {"coset.train": '{"format": 99}'})
    with pytest.raises(InputError, match="has format 99, expected 2"):
        train(path)
    save_file({"a": torch.zeros(1)}, path, {"coset.train": "[]"})
    with pytest.raises(InputError, match="has format None, expected 2"):
        train(path)


def contents(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the metadata of a safetensors file."""
    header = path.read_bytes()
    return load_file(path), json.loads(header[8 : 8 + int.from_bytes(header[:8], "little")])["__metadata__"]


@pytest.mark.parametrize("name", ["model.head.bias", "optimizer.0.exp_avg", "optimizer.3.step", "best.conv.weight"])
def test_a_missing_tensor_is_named(name: str, tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    train(path)
    tensors, metadata = contents(path)
    del tensors[name]
    save_file(tensors, path, metadata)
    with pytest.raises(InputError, match=f"is damaged: it lacks {re.escape(name)}$"):
        train(path)


def test_a_tensor_too_many_is_named(tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    train(path)
    tensors, metadata = contents(path)
    save_file({**tensors, "best.guest": torch.zeros(1)}, path, metadata)
    with pytest.raises(InputError, match=r"is damaged: it has best\.guest, which was not written"):
        train(path)


@pytest.mark.parametrize("name", ["model.head.bias", "optimizer.0.exp_avg", "best.norm.running_mean"])
def test_a_changed_bit_is_found(name: str, tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    train(path)
    tensors, metadata = contents(path)
    tensors[name].view(torch.uint8).reshape(-1)[0] ^= 1
    save_file(tensors, path, metadata)
    with pytest.raises(InputError, match=f"is damaged: {re.escape(name)} does not have the checksum it was written"):
        train(path)


def test_a_changed_shape_is_found(tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    train(path)
    tensors, metadata = contents(path)
    tensors["model.head.weight"] = tensors["model.head.weight"].reshape(100, 3)
    save_file(tensors, path, metadata)
    with pytest.raises(InputError, match=r"is damaged: model\.head\.weight does not have the checksum"):
        train(path)


def test_a_changed_history_is_found(tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    train(path)
    tensors, metadata = contents(path)
    metadata["coset.train"] = metadata["coset.train"].replace('"best_epoch": ', '"best_epoch": 1')
    save_file(tensors, path, metadata)
    with pytest.raises(InputError, match="is damaged: its metadata does not have the checksum it was written with"):
        train(path)


def test_addresses_in_the_text_of_a_model_do_not_matter(tmp_path: Path) -> None:
    class Strange(nn.Linear):
        def extra_repr(self) -> str:
            return f"{object()!r}"

    path = tmp_path / "run.safetensors"
    recipe = Recipe(epochs=1, batch_size=8, learning_rate=0.1)
    results = []
    for _ in range(2):
        torch.manual_seed(0)
        results.append(fit(Strange(50, 3), X.flatten(1), Y, recipe, seed=0, checkpoint=path))
    assert same(*results)
