"""Architectures by name: build one, reproducibly, from a name and options; or from the user's own factory."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from coset._callables import load_callable
from coset._checks import is_seed
from coset.errors import InputError
from coset.models._arguments import check_count
from coset.models._cct import CCT
from coset.models._hugging_face import PREFIX, from_hugging_face
from coset.models._mlp import MLP, ResidualMLP
from coset.models._plain_cnn import MyrtleCNN, Tiny10
from coset.models._resnet import ResNet, ResNet18, ResNet20
from coset.models._siren import Siren
from coset.models._transformer import Transformer
from coset.models._vision_transformer import VisionTransformer


@dataclass(frozen=True)
class BuiltIn:
    """An architecture of this package: its factory, the shape of one input (default options), a line about it."""

    make: Callable[..., nn.Module]
    input_shape: tuple[int, ...]
    summary: str


MODELS: dict[str, BuiltIn] = {
    "mlp": BuiltIn(MLP, (784,), "multilayer perceptron 784-512-512-512-10"),
    "residual_mlp": BuiltIn(ResidualMLP, (784,), "residual perceptron, stream of 30, two blocks with 50 inside"),
    "myrtle": BuiltIn(MyrtleCNN, (3, 32, 32), "Myrtle CNN, four convolutions 64-128-256-512 (Godfrey et al. 2022)"),
    "tiny10": BuiltIn(Tiny10, (3, 32, 32), "eight convolutions without padding (Csiszárik et al. 2021)"),
    "resnet": BuiltIn(ResNet, (3, 32, 32), "residual network of basic blocks with any stages"),
    "resnet20": BuiltIn(ResNet20, (3, 32, 32), "ResNet20, stages 16-32-64 of three blocks (He et al. 2016)"),
    "resnet18": BuiltIn(ResNet18, (3, 32, 32), "ResNet18, stages 64-128-256 of two blocks (Godfrey et al. 2022)"),
    "cct": BuiltIn(CCT, (3, 32, 32), "Compact Convolutional Transformer CCT-6/3x1 (Hassani et al. 2021)"),
    "siren": BuiltIn(Siren, (2,), "network of sines 2-32-32-1 on coordinates (Sitzmann et al. 2020)"),
    "transformer": BuiltIn(Transformer, (128,), "pre-norm transformer on tokens, two blocks, stream of 128"),
    "vit": BuiltIn(VisionTransformer, (3, 32, 32), "Vision Transformer, patches of 4×4, two blocks, stream of 64"),
}


def build(name: str, /, *, seed: int | None = None, **options: Any) -> nn.Module:
    """Return a new model: ``name``: in MODELS, ``module.path:factory``, ``path/to/file.py:factory``, ``hf:FOLDER``.

    ``options`` go to the factory by name. With a ``seed`` the initial weights depend on it and on torch's default dtype
    alone: they are drawn on the CPU, and the state of the global generator is put back, so that the caller's random
    numbers do not change. A factory with a parameter ``seed`` of its own is given the seed as well.
    """
    if not isinstance(name, str):
        raise InputError(f"model must be a name, found {name!r} of type {type(name).__name__}")
    if name.startswith(PREFIX):
        return from_hugging_face(name, **options)
    if name in MODELS:
        factory = MODELS[name].make
    elif ":" in name:
        factory = load_factory(name)
    else:
        raise InputError(
            f"model must be one of {', '.join(MODELS)}, 'module:factory', 'file.py:factory' or 'hf:FOLDER'; "
            f"found {name!r}"
        )
    parameters = _parameters(name, factory)
    if seed is not None and any(parameter.name == "seed" for parameter in _named(parameters)):
        options["seed"] = seed
    _check_options(name, parameters, options)
    with _seeded(seed):
        model = factory(**options)
    if not isinstance(model, nn.Module):
        raise InputError(f"model {name!r}: the factory returned {type(model).__name__}, expected a torch.nn.Module")
    return model


def example_input(model: nn.Module, batch: int = 2, *, seed: int = 0) -> Tensor:
    """Return random inputs that ``model`` accepts, (batch, *model.input_shape), on its device.

    Standard normal numbers in its dtype; of a model on tokens, which says by ``vocabulary`` how many there are, whole
    numbers below it. The models of this package have ``input_shape``; any other can be given these attributes.
    """
    check_count("batch", batch)
    shape = getattr(model, "input_shape", None)
    if shape is None:
        raise InputError(f"{type(model).__name__} has no attribute input_shape (the shape of one input, without batch)")
    # Drawn on the CPU, whatever the default device, so that a seed means the same everywhere.
    generator = torch.Generator("cpu").manual_seed(_check_seed(seed))
    like = next((p for p in model.parameters() if p.is_floating_point()), None)
    vocabulary = getattr(model, "vocabulary", None)
    if vocabulary is not None:
        tokens = torch.randint(check_count("vocabulary", vocabulary), (batch, *shape), generator=generator)
        return tokens if like is None else tokens.to(like.device)
    numbers = torch.randn(batch, *shape, generator=generator, device="cpu")
    return numbers if like is None else numbers.to(like)


def _parameters(name: str, factory: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(factory).parameters.values())
    except ValueError as error:
        raise InputError(f"model {name!r}: the arguments of its factory cannot be read ({error})") from error


def _named(parameters: Sequence[inspect.Parameter]) -> list[inspect.Parameter]:
    """Those that can be given by name."""
    return [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]


def _check_options(name: str, parameters: Sequence[inspect.Parameter], options: Mapping[str, Any]) -> None:
    """Raise on options that the factory does not take and on those that it cannot do without."""
    named = _named(parameters)
    accepted = [p.name for p in named]
    unknown = [option for option in options if option not in accepted]
    if unknown and not any(p.kind is p.VAR_KEYWORD for p in parameters):
        raise InputError(
            f"model {name!r} has no option {', '.join(map(repr, unknown))}; it takes {', '.join(accepted) or 'none'}"
        )
    missing = [p.name for p in named if p.default is p.empty and p.name not in options]
    if missing:
        raise InputError(f"model {name!r} needs the option {', '.join(map(repr, missing))}")


@contextmanager
def _seeded(seed: int | None) -> Iterator[None]:
    """Draw from ``seed`` inside, on the CPU whatever the default device, and put the generator's state back after."""
    if seed is None:
        yield
        return
    _check_seed(seed)
    with torch.device("cpu"), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def _check_seed(seed: int) -> int:
    if not is_seed(check_count("seed", seed, minimum=0)):
        raise InputError(f"seed must be below 2**63, found {seed}")
    return seed


def load_factory(reference: str) -> Callable[..., Any]:
    """Return the factory of ``module.path:factory`` or ``path/to/file.py:factory``, as ``load_callable`` does."""
    return load_callable(reference, "model", "a class or function that returns a model", modules=False)
