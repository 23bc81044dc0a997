"""Folders of ``save_pretrained`` through the command line: aligned and merged folders open again, the function kept."""

import json

import pytest
import torch

from coset.errors import InputError
from coset.models import build, example_input

transformers = pytest.importorskip("transformers")

SMALL = {"num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 8, "intermediate_size": 12}
TEXT = {**SMALL, "vocab_size": 20, "max_position_embeddings": 24, "bos_token_id": 1, "eos_token_id": 2}
KINDS = {
    "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**TEXT, num_key_value_heads=1)),
    "bert": lambda: transformers.BertForMaskedLM(transformers.BertConfig(**TEXT)),
    "vit": lambda: transformers.ViTForImageClassification(
        transformers.ViTConfig(**SMALL, image_size=8, patch_size=4, num_labels=3)
    ),
}


@pytest.fixture
def folders(tmp_path):
    """Two networks of a kind, each in a folder; in shards where they are larger than 2 kB."""

    transformers.utils.logging.disable_progress_bar()

    def save(kind, shard="5GB"):
        for seed, name in enumerate("ab"):
            torch.manual_seed(seed)
            KINDS[kind]().eval().save_pretrained(tmp_path / name, max_shard_size=shard)
        return tmp_path / "a", tmp_path / "b"

    return save


def opened(kind, folder):
    return type(KINDS[kind]()).from_pretrained(folder).eval()


@pytest.mark.parametrize(("kind", "shard"), [("llama", "2KB"), ("vit", "5GB")])
def test_a_folder_is_aligned_into_a_folder_of_the_same_form(here, folders, kind, shard, tmp_path):
    a, b = folders(kind, shard)
    code, out, _ = here("align", a, b, "--model", f"hf:{a}", "-o", tmp_path / "out", "--json")
    assert code == 0
    assert json.loads(out)["objective"]["after"] > json.loads(out)["objective"]["before"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(path.name for path in b.iterdir())
    x = example_input(build(f"hf:{a}"))
    was, now = (opened(kind, folder)(x).logits for folder in (b, tmp_path / "out"))
    torch.testing.assert_close(now, was, rtol=1e-4, atol=1e-5)
    index = "model.safetensors.index.json"
    if shard != "5GB":
        assert len(list(b.glob("*.safetensors"))) > 1
        assert (
            json.loads((tmp_path / "out" / index).read_text())["weight_map"]
            == json.loads((b / index).read_text())["weight_map"]
        )


def test_a_folder_is_merged_into_a_folder(here, folders, tmp_path):
    a, b = folders("bert")
    code, _, err = here("merge", a, b, "--model", f"hf:{a}", "--no-align", "-o", tmp_path / "out")
    assert (code, err) == (0, "")
    merged, one, two = (opened("bert", folder).state_dict() for folder in (tmp_path / "out", a, b))
    for name, tensor in merged.items():
        torch.testing.assert_close(tensor, (one[name] + two[name]) / 2, rtol=1e-6, atol=1e-7)
    assert json.loads((tmp_path / "out" / "config.json").read_text())["architectures"] == ["BertForMaskedLM"]


def test_a_pytorch_file_is_written_where_it_is_asked_for(here, ab):
    model = ["--model", "mlp", "--option", "in_features=6", "--option", "widths=[5,4]", "--option", "out_features=3"]
    code, _, err = here("align", "a.safetensors", "b.pt", *model, "-o", "out.pt")
    assert (code, err) == (0, "")
    assert all(isinstance(tensor, torch.Tensor) for tensor in torch.load("out.pt", weights_only=True).values())


def test_models_answer_with_one_tensor(folders):
    for kind, shape in (("llama", (2, 16, 20)), ("bert", (2, 16, 20)), ("vit", (2, 3))):
        a, _ = folders(kind)
        model = build(f"hf:{a}")
        assert model(example_input(model)).shape == shape
        assert model.state_dict().keys() == KINDS[kind]().state_dict().keys()
        for path in (*a.parent.glob("a/*"), *a.parent.glob("b/*")):
            path.unlink()


def test_bad_folders_are_refused_in_a_line(here, folders, tmp_path):
    a, b = folders("bert")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"no folder; expected one that save_pretrained wrote"):
        build(f"hf:{tmp_path / 'none'}")
    with pytest.raises(InputError, match="cannot be loaded"):
        build(f"hf:{tmp_path / 'empty'}")
    for other, out, message in (
        (tmp_path / "empty", "out", "is a folder without weights"),
        (b, "b", "is not empty; expected a new folder"),
        (b, "a/config.json", "is a file; expected a new folder"),
    ):
        code, _, err = here("align", a, other, "--model", f"hf:{a}", "-o", tmp_path / out)
        assert (code, len(err.strip().splitlines())) == (2, 1)
        assert message in err
    (a / "config.json").write_text(json.dumps({"model_type": "bert", "architectures": ["OfTheFolderItself"]}))
    with pytest.raises(InputError, match="is a OfTheFolderItself, which this version of transformers does not have"):
        build(f"hf:{a}")


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ("{", "is not JSON"),
        ("{}", "has no weight_map"),
        ('{"weight_map": {"w": "../w.safetensors"}}', "expected a file of the same folder"),
        ('{"weight_map": {"w": "model.safetensors"}}', "other than the index of the folder says"),
    ],
)
def test_damaged_indices_are_refused(here, folders, index, message):
    a, b = folders("bert")
    (b / "model.safetensors.index.json").write_text(index)
    code, _, err = here("align", a, b, "--model", f"hf:{a}", "-o", "out")
    assert (code, len(err.strip().splitlines())) == (2, 1)
    assert message in err
