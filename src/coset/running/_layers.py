"""Named layers of any module: their outputs recorded, or replaced by others, while the module runs.

A layer is named as in ``named_modules()``; '' is the whole module. Three rules, for all functions here:

- A layer that is called several times in one pass (one ReLU in many places) has a name for each call, counted from 0:
  ``'relu#0'``, ``'relu#1'``, … The plain name is then an error that says so.
- Of a layer that returns a tuple or list (attention, recurrent layers) the output is its first part, which must be a
  tensor; what is replaced is that part, and the others stay.
- What is recorded is a copy, and what replaces an output is copied: operations in place, behind the layer, change
  neither.
"""

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor, nn

from coset.errors import InputError
from coset.running._weights import check_model

_LISTED = 12
"""So many names of layers are listed where none is near the one that was given."""


def layer_names(model: nn.Module) -> tuple[str, ...]:
    """The names of all layers of ``model`` in the order of ``named_modules()``, without the model itself.

    A layer that stands in several places has all of its names.
    """
    return tuple(name for name, _ in model.named_modules(remove_duplicate=False) if name)


def check_layers(model: nn.Module, names: Sequence[str]) -> tuple[str, ...]:
    """``names`` as a tuple; raises unless each is the name of a layer, or of a call of one, and none comes twice."""
    check_model(model)
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise InputError(f"layers is {names!r}; expected a sequence of names of layers")
    if not names:
        raise InputError("layers is empty; expected the name of at least one layer")
    for name in names:
        _find(model, name)
        if sum(name == other for other in names) > 1:
            raise InputError(f"layers names '{name}' more than once")
    return tuple(names)


@contextmanager
def recording(model: nn.Module, names: Sequence[str]) -> Iterator[Mapping[str, Tensor]]:
    """While it is open, every pass through ``model`` leaves the outputs of the named layers in the mapping it gives.

    ``with recording(model, ["conv1", "fc"]) as outputs: model(x); outputs["conv1"]``

    Outputs are copies, as differentiable as the pass itself, and those of the last pass; a layer that a pass does not
    reach is an error. Opened inside ``replacing``, it sees what replaces. The hooks are gone when it closes, by
    whatever way.
    """
    outputs: dict[str, Tensor] = {}

    def keep(name: str, output: Tensor) -> None:
        outputs[name] = output.clone()

    with _hooked(model, {name: partial(keep, name) for name in check_layers(model, names)}, outputs.clear):
        yield outputs


@contextmanager
def replacing(model: nn.Module, name: str, function: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """While it is open, what is above the named layer of ``model`` sees ``function(output)`` in place of its output.

    ``with replacing(model, "conv1", lambda _: features): logits = model(x)`` runs the part above on other features.

    Derivatives pass through ``function``. The hooks are gone when it closes, by whatever way.
    """
    with replacing_all(model, {name: function}):
        yield


@contextmanager
def replacing_all(model: nn.Module, functions: Mapping[str, Callable[[Tensor], Tensor]]) -> Iterator[None]:
    """``replacing`` for several layers at once: name of the layer → function of its output."""

    def replace(name: str, output: Tensor) -> Tensor:
        result = functions[name](output)
        if not isinstance(result, Tensor):
            raise InputError(f"what replaces layer '{name}' is a {type(result).__name__}; expected a tensor")
        return result.clone()

    names = check_layers(model, tuple(functions))
    with _hooked(model, {name: partial(replace, name) for name in names}, lambda: None):
        yield


See = Callable[[Tensor], Tensor | None]
"""Called with a layer's output; a tensor that it returns takes the output's place."""


@dataclass
class _Calls:
    """The calls of one module: how many there were in this pass, and who wants to see which (None: the only one)."""

    wanted: list[tuple[str, int | None, See]] = field(default_factory=list)
    count: int = 0

    def hook(self, _module: nn.Module, _args: Any, output: Any) -> Any:
        number, self.count = self.count, self.count + 1
        # A call that no name wants may return anything.
        for name, call, see in self.wanted:
            if call in (None, number):
                new = see(_first_part(output, name))
                output = output if new is None else _with_first_part(output, new)
        return output

    def check(self) -> None:
        """Raise unless every name stood for one call of the pass that ends."""
        for name, call, _ in self.wanted:
            plain = name if call is None else name.rpartition("#")[0]
            if self.count == 0:
                raise InputError(f"layer '{plain}' is not called when the model runs; expected a layer that is")
            if call is None and self.count > 1:
                raise InputError(
                    f"layer '{name}' is called {self.count} times in one pass; expected the name of one call, "
                    f"'{name}#0' … '{name}#{self.count - 1}'"
                )
            if call is not None and call >= self.count:
                raise InputError(
                    f"'{name}' names a call that there is not: layer '{plain}' is called {self.count} times in one pass"
                )


@contextmanager
def _hooked(model: nn.Module, sees: Mapping[str, See], begin: Callable[[], None]) -> Iterator[None]:
    """Hooks that show outputs to ``sees`` (by name), while it is open; ``begin`` is called before each pass."""
    calls: dict[nn.Module, _Calls] = {}
    for name, see in sees.items():
        module, call = _find(model, name)
        calls.setdefault(module, _Calls()).wanted.append((name, call, see))

    def start(_module: nn.Module, _args: Any) -> None:
        for item in calls.values():
            item.count = 0
        begin()

    def end(_module: nn.Module, _args: Any, _output: Any) -> None:
        for item in calls.values():
            item.check()

    with ExitStack() as stack:
        stack.callback(model.register_forward_pre_hook(start).remove)
        for module, item in calls.items():
            stack.callback(module.register_forward_hook(item.hook).remove)
        # Registered last: where the model is itself a layer, its own call has been counted.
        stack.callback(model.register_forward_hook(end).remove)
        yield


def _find(model: nn.Module, name: str) -> tuple[nn.Module, int | None]:
    """The layer of that name, and the number of the call that the name stands for, if it says one."""
    modules = dict(model.named_modules(remove_duplicate=False))
    if name in modules:
        return modules[name], None
    plain, mark, number = name.rpartition("#")
    if mark and plain in modules and number.isdecimal():
        return modules[plain], int(number)
    close = difflib.get_close_matches(plain if mark else name, [other for other in modules if other], n=3)
    listed = close or [other for other in modules if other]
    more = f" and {len(listed) - _LISTED} more" if len(listed) > _LISTED else ""
    expected = ", ".join(f"'{other}'" for other in listed[:_LISTED]) + more
    raise InputError(
        f"'{name}' is no layer of {type(model).__name__}; "
        + (f"near it are {expected}" if close else f"its layers are {expected or 'none'}")
    )


def _first_part(output: Any, name: str) -> Tensor:
    part = output[0] if isinstance(output, tuple | list) and output else output
    if not isinstance(part, Tensor):
        raise InputError(
            f"layer '{name}' returns a {type(output).__name__}; expected a tensor, or a tuple that begins with one"
        )
    return part


def _with_first_part(output: Any, new: Tensor) -> Any:
    if isinstance(output, Tensor):
        return new
    parts = [new, *output[1:]]
    if isinstance(output, tuple) and hasattr(output, "_make"):
        return output._make(parts)
    return type(output)(parts)
