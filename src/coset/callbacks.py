"""The one signature of callbacks: training, inference, alignment and curves tell how far they are."""

from collections.abc import Callable
from typing import TypeVar

from coset.errors import InputError

Told = TypeVar("Told")

Callback = Callable[[Told], bool | None]
"""Called after every step with a small frozen value that says where the run is; returning True ends the run there."""


def check_callback(callback: object) -> None:
    """Raise unless ``callback`` is None or can be called."""
    if callback is not None and not callable(callback):
        raise InputError(f"callback is a {type(callback).__name__}; expected a function")
