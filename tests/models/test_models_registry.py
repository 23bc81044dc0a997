"""Building by name, from the user's own module or file, with clear errors; describing what was built."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from coset.errors import InputError
from coset.models import MLP, MODELS, build, describe, example_input

OWN = """
from dataclasses import dataclass
from torch import nn
from {neighbour} import WIDTH

@dataclass
class Options:
    width: int = WIDTH

def make(out: int, bias: bool = True):
    return nn.Linear(Options().width, out, bias=bias)

def anything(**options):
    return nn.Linear(options["a"], options["b"])

def nothing():
    return 3

model = nn.Linear(2, 2)
number = 3
"""


@pytest.fixture
def own(tmp_path: Path) -> str:
    """A user's file that imports another one beside it."""
    (tmp_path / "own_width.py").write_text("WIDTH = 5\n")
    path = tmp_path / "own.py"
    path.write_text(OWN.format(neighbour="own_width"))
    return str(path)


@pytest.mark.parametrize("name", MODELS)
def test_input_shapes_are_those_of_the_built_models(name: str) -> None:
    model = build(name)
    assert model.input_shape == MODELS[name].input_shape
    assert example_input(model, batch=3).shape == (3, *MODELS[name].input_shape)
    assert MODELS[name].summary


def test_options_reach_the_model() -> None:
    model = build("mlp", in_features=3, widths=[4], out_features=2)
    assert isinstance(model, MLP)
    assert [tuple(p.shape) for p in model.parameters()] == [(4, 3), (4,), (2, 4), (2,)]


def test_seed_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    build("mlp", in_features=3, widths=(4,), seed=1)
    assert torch.equal(torch.rand(3), expected)


def test_without_seed_the_global_generator_decides() -> None:
    options = {"in_features": 3, "widths": (4,)}
    torch.manual_seed(5)
    first = build("mlp", **options)
    second = build("mlp", **options)
    torch.manual_seed(5)
    again = build("mlp", **options)
    assert torch.equal(first.layers[0].weight, again.layers[0].weight)
    assert not torch.equal(first.layers[0].weight, second.layers[0].weight)


def test_seed_means_the_same_whatever_the_default_device() -> None:
    here = build("mlp", in_features=3, widths=(4,), seed=1)
    with torch.device("meta"):
        there = build("mlp", in_features=3, widths=(4,), seed=1)
        x = example_input(there)
    assert torch.equal(here.layers[0].weight, there.layers[0].weight)
    assert torch.equal(example_input(here), x)


def test_own_module() -> None:
    model = build("torch.nn:Linear", in_features=3, out_features=2, seed=0)
    again = build("torch.nn:Linear", in_features=3, out_features=2, seed=0)
    assert isinstance(model, nn.Linear)
    assert torch.equal(model.weight, again.weight)


def test_own_file(own: str) -> None:
    model = build(f"{own}:make", out=2, bias=False)
    assert isinstance(model, nn.Linear)
    assert (model.in_features, model.out_features, model.bias) == (5, 2, None)
    assert build(f"{own}:anything", a=1, b=4).out_features == 4


def test_two_own_files_of_one_name_stay_apart(tmp_path: Path) -> None:
    for folder, width in (("one", 1), ("two", 2)):
        (tmp_path / folder).mkdir()
        code = f"from torch import nn\ndef make():\n    return nn.Linear({width}, 1)\n"
        (tmp_path / folder / "net.py").write_text(code)
    widths = [build(f"{tmp_path / folder / 'net.py'}:make").in_features for folder in ("one", "two", "one")]
    assert widths == [1, 2, 1]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("resnet", {"widht": 2}, r"model 'resnet' has no option 'widht'; it takes stages, blocks, width, norm"),
        ("resnet20", {"widht": 2}, r"model 'resnet20' has no option 'widht'; it takes width, norm, activation"),
        ("resnet20", {"stages": (8,)}, r"model 'resnet20' has no option 'stages'; it takes width, norm, activation"),
        ("resnet18", {"blocks": 3}, r"model 'resnet18' has no option 'blocks'; it takes stages, width, norm"),
        ("tiny", {}, r"model must be one of mlp, residual_mlp, myrtle, .* found 'tiny'"),
        ("mlp", {"seed": -1}, r"seed must be an integer of at least 0, found -1"),
        ("mlp", {"seed": 2**63}, r"seed must be below 2\*\*63"),
        ("torch.nn:Linear", {"in_features": 3}, r"model 'torch.nn:Linear' needs the option 'out_features'"),
        ("torch.nn:Linaer", {}, r"torch.nn has no attribute 'Linaer'"),
        ("no_such_module:make", {}, r"module 'no_such_module' cannot be imported \(ModuleNotFoundError: "),
        ("no/such/file.py:make", {}, r"there is no file 'no/such/file.py'"),
        (":make", {}, r"expected 'module.path:factory' or 'path/to/file.py:factory'"),
        ("torch.nn:", {}, r"expected 'module.path:factory' or 'path/to/file.py:factory'"),
        ("math:pi", {}, r"'pi' is float, expected a class or function that returns a model"),
        ("builtins:dict", {}, r"model 'builtins:dict': the arguments of its factory cannot be read"),
    ],
)
def test_bad_names_and_options(name: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build(name, **options)


@pytest.mark.parametrize(
    ("factory", "options", "message"),
    [
        ("make", {}, r":make' needs the option 'out'"),
        ("make", {"out": 1, "width": 2}, r":make' has no option 'width'; it takes out, bias"),
        ("nothing", {}, r"the factory returned int, expected a torch.nn.Module"),
        ("nothing", {"a": 1}, r"has no option 'a'; it takes none"),
        ("model", {}, r"'model' is Linear, expected a class or function that returns a model"),
        ("number", {}, r"'number' is int, expected a class or function"),
        ("absent", {}, r"has no attribute 'absent'"),
    ],
)
def test_bad_factories_in_an_own_file(own: str, factory: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build(f"{own}:{factory}", **options)


def test_own_file_that_fails_is_named_and_can_be_mended(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("def make(:\n")
    with pytest.raises(InputError, match=r"running '.*broken.py' failed \(SyntaxError: "):
        build(f"{path}:make")
    path.write_text("from torch import nn\nmake = nn.Identity\n")
    assert isinstance(build(f"{path}:make"), nn.Identity)


@pytest.mark.parametrize("ending", ["sys.exit('usage: own')", "raise KeyboardInterrupt"])
def test_own_file_that_stops_halfway_leaves_nothing_behind(ending: str, tmp_path: Path) -> None:
    path = tmp_path / "half.py"
    before = set(sys.modules)
    path.write_text(f"import sys\nfrom torch import nn\n{ending}\nmake = nn.Identity\n")
    for _ in range(2):
        if ending.startswith("sys"):
            with pytest.raises(InputError, match=r"running '.*half.py' failed \(SystemExit: usage: own\)"):
                build(f"{path}:make")
        else:
            with pytest.raises(KeyboardInterrupt):
                build(f"{path}:make")
        assert set(sys.modules) == before
    path.write_text("from torch import nn\nmake = nn.Identity\n")
    assert isinstance(build(f"{path}:make"), nn.Identity)


def test_own_module_that_exits_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "module_that_exits.py").write_text("raise SystemExit(3)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match=r"module 'module_that_exits' cannot be imported \(SystemExit: 3\)"):
        build("module_that_exits:make")
    assert "module_that_exits" not in sys.modules


def test_a_factory_with_a_seed_of_its_own_is_given_it(tmp_path: Path) -> None:
    path = tmp_path / "seeded.py"
    path.write_text(
        "import torch\nfrom torch import nn\n\n"
        "def make(seed=0):\n"
        "    model = nn.Linear(2, 2)\n"
        "    model.own = seed\n"
        "    return model\n\n"
        "def needs(seed):\n    return make(seed)\n\n"
        "def other(**options):\n    return make(options.get('seed', 'none'))\n"
    )
    first, second = build(f"{path}:make", seed=3), build(f"{path}:needs", seed=3)
    assert (first.own, second.own, build(f"{path}:make").own) == (3, 3, 0)
    assert torch.equal(first.weight, second.weight)
    # A name that the factory does not spell out stays between the caller and the generator.
    assert build(f"{path}:other", seed=3).own == "none"
    with pytest.raises(InputError, match="needs the option 'seed'"):
        build(f"{path}:needs")


@pytest.mark.parametrize("name", [3, None, ["mlp"], nn.ReLU()])
def test_a_name_that_is_no_text_is_refused(name: Any) -> None:
    with pytest.raises(InputError, match=f"^model must be a name, found .* of type {type(name).__name__}$"):
        build(name)


@pytest.mark.parametrize("name", MODELS)
def test_every_model_can_be_built_without_memory_for_its_weights(name: str) -> None:
    with torch.device("meta"):
        model = build(name)
        assert {tensor.device.type for tensor in model.state_dict().values()} == {"meta"}
        tokens = getattr(model, "vocabulary", None)
        x = torch.empty(2, *model.input_shape, dtype=None if tokens is None else torch.int64)
        outputs = 1 if name == "siren" else 10  # a signal, not classes
        assert model(x).shape == ((2, outputs) if tokens is None else (*x.shape, tokens))
    shapes = {key: tensor.shape for key, tensor in build(name).state_dict().items()}
    assert {key: tensor.shape for key, tensor in model.state_dict().items()} == shapes


def test_example_input_needs_a_shape() -> None:
    model = nn.Linear(3, 2).double()
    with pytest.raises(InputError, match=r"Linear has no attribute input_shape"):
        example_input(model)
    model.input_shape = (3,)
    assert example_input(model, batch=4).shape == (4, 3)
    assert example_input(model).dtype == torch.float64
    assert torch.equal(example_input(model, seed=1), example_input(model, seed=1))
    assert not torch.equal(example_input(model, seed=1), example_input(model, seed=2))
    with pytest.raises(InputError, match=r"batch must be an integer of at least 1, found 0"):
        example_input(model, batch=0)


def test_describe_counts_shared_tensors_once() -> None:
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3), nn.BatchNorm1d(3))
    model[1].weight = model[0].weight
    model[2].bias.requires_grad_(False)
    description = describe(model)
    assert [(row.name, row.kind, row.parameters, row.buffers) for row in description.layers] == [
        ("0", "Linear", 9, 0),
        ("1", "Linear", 3, 0),
        ("2", "BatchNorm1d", 6, 7),
    ]
    assert description.layers[0].shapes == {"weight": (3, 3)}
    assert (description.parameters, description.trainable, description.buffers) == (18, 15, 7)


def test_description_prints_as_a_table() -> None:
    assert str(describe(MLP(3, (40,), 30))).splitlines() == [
        "layer     kind    shapes                 parameters",
        "────────  ──────  ─────────────────────  ──────────",
        "layers.0  Linear  weight 40×3, bias 40          160",
        "layers.1  Linear  weight 30×40, bias 30       1,230",
        "          MLP                                 1,390",
    ]
