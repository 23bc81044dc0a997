"""The model a command is about, from its name and options; and inputs to run it on."""

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from coset.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor, nn


LARGEST = 2**28
"""Entries of an example input: a gigabyte in single precision."""


def build_model(
    name: str, options: Sequence[str] | None, shapes: Sequence[str] | None
) -> tuple["nn.Module", tuple["Tensor", ...]]:
    """The model in evaluation mode, and random inputs: of the ``shapes``, or of the one the model is made for."""
    from coset.models import build, example_input

    inputs = tuple(_example(shape) for shape in shapes or ())
    chosen = parse_pairs("--option", options)
    with _blamed_on(name):
        model = build(name, seed=0, **chosen).eval()
        if not inputs and getattr(model, "input_shape", None) is None:
            raise InputError(
                f"the model {name} has no attribute input_shape; give the shape of its inputs with --input"
            )
        return model, inputs or (example_input(model),)


@contextmanager
def _blamed_on(name: str) -> Iterator[None]:
    """Whatever a factory does but return a model, such as to raise or to exit, is said in one line."""
    try:
        yield
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        told = " ".join(str(error).split())
        raise InputError(f"the model {name} could not be built: {type(error).__name__}: {told[:300]}") from error


def parse_pairs(option: str, pairs: Sequence[str] | None) -> dict[str, Any]:
    """NAME=VALUE, the value read as JSON where it is JSON and as text otherwise."""
    result: dict[str, Any] = {}
    for pair in pairs or ():
        name, equals, text = pair.partition("=")
        if not equals or not name.isidentifier():
            raise InputError(f"{option} takes NAME=VALUE, found '{pair}'")
        try:
            result[name] = json.loads(text)
        except json.JSONDecodeError:
            result[name] = text
        except (ValueError, RecursionError) as error:  # numbers of thousands of digits, lists in lists in lists
            raise InputError(f"{option} {name} cannot be read as JSON: {error}") from error
    return result


def gathered(pairs: Sequence[str] | None, **named: Any) -> dict[str, Any]:
    """The settings of a method: those that have options of their own, if given, and NAME=VALUE for others."""
    return {name: value for name, value in named.items() if value is not None} | parse_pairs("--setting", pairs)


def _example(text: str) -> "Tensor":
    """A random tensor of a shape written as 2,3,32,32, or of whole numbers as i:2,16:1000."""
    import torch

    whole = text.startswith("i:")
    words, _, limit = text.removeprefix("i:").partition(":")
    try:
        shape = [int(word) for word in words.split(",")]
        high = int(limit) if limit else 2
        if min(shape) < 1 or not 1 <= high < 2**63:
            raise ValueError(text)
    except ValueError as error:
        raise InputError(f"--input takes a shape such as 2,3,32,32 or i:2,16:1000, found '{text[:60]}'") from error
    if math.prod(shape) > LARGEST:
        raise InputError(f"--input {text[:60]} is too large; expected at most {LARGEST:,} entries")
    generator = torch.Generator().manual_seed(0)
    if whole:
        return torch.randint(0, high, shape, generator=generator)
    return torch.randn(shape, generator=generator)
