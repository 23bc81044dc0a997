"""Two networks cut at a layer and joined: the first one below the cut, the second one above it.

The rule, for any two modules: whatever has been computed when the layer has spoken is the first network's, whatever
comes after is the second's. So a skip connection that passes the layer by carries the first network's values, which is
how stitching inside a residual block is defined, and why it fails there (Godfrey et al. 2022, E.52-E.54).
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from coset.errors import InputError
from coset.represent._anatomy import Crossing, borrowing, crossing
from coset.running import check_layers, outputs_with, recording, replacing, suited
from coset.train.metrics import evaluation_mode

Change = Callable[[Tensor], Tensor]

# So many examples tell what crosses the cut.
_PROBED = 4

KEPT_BYTES = 2**30
"""So much is kept unless told."""

CHUNK = 500
"""Examples at a time where no gradients are kept."""


@dataclass(frozen=True)
class Cut:
    """The first network below a layer, a copy of the second one above it; made by ``cut``.

    ``kept``: layers beside ``layer`` whose outputs reach what is above (skip connections). ``skipped``: layers of
    ``above`` that are below the cut and need not run, with the shape of their outputs for one example. ``borrowed``:
    weights of ``below`` that are read below the cut outside any skipped layer. ``norms``: the batch normalisations
    that are called above the cut.
    """

    below: nn.Module
    above: nn.Module
    layer: str
    upper_layer: str
    kept: tuple[str, ...]
    skipped: Mapping[str, torch.Size]
    borrowed: Mapping[str, Tensor]
    norms: tuple[nn.Module, ...]

    @torch.no_grad()
    def features(self, inputs: Tensor) -> dict[str, Tensor]:
        """What crosses the cut for ``inputs`` (N, …): the outputs (N, …) of ``layer`` and of those in ``kept``.

        On the device, and of the type, of the part above.
        """
        found = layer_outputs(self.below, (self.layer, *self.kept), inputs)
        return {name: suited_to(self.above, output) for name, output in found.items()}

    def run(self, inputs: Tensor, features: Mapping[str, Tensor], change: Change) -> Tensor:
        """The outputs of the part above, where ``change(features[layer])`` takes the place of its layer's output.

        ``inputs`` (N, …) are those of ``features``. Derivatives pass through ``change``; the copy ``above`` is in
        whichever mode it is in, and as it was when this returns or raises.
        """
        inputs = suited_to(self.above, inputs)
        zero = features[self.layer].new_zeros(())
        answers = {name: zero.expand(len(inputs), *shape) for name, shape in self.skipped.items()}
        answers |= {name: features[name] for name in self.kept}
        with ExitStack() as stack:
            give_back = stack.enter_context(borrowing(self.above, self.borrowed))
            stack.enter_context(_answering(self.above, answers))

            def speak(_own: Tensor) -> Tensor:
                give_back()
                return change(features[self.layer])

            stack.enter_context(replacing(self.above, self.upper_layer, speak))
            outputs: Tensor = self.above(inputs)
        return outputs


def cut(below: nn.Module, above: nn.Module, layer: str, inputs: Tensor, *, upper_layer: str | None = None) -> Cut:
    """Cut ``below`` behind ``layer`` and ``above`` behind ``upper_layer`` (the same name unless told), and join them.

    ``inputs`` (N, …): some examples; with four of them it is found out what crosses the cut. Neither module is changed.
    Where more than the layer's output crosses the cut of ``above``, it must come from ``below``: then the two must be
    of one architecture and cut at the same layer, anything else is an error.
    """
    upper_layer = layer if upper_layer is None else upper_layer
    check_layers(below, [layer])
    check_layers(above, [upper_layer])
    if not isinstance(inputs, Tensor) or inputs.ndim == 0 or len(inputs) < 1:
        raise InputError("inputs of the cut must be a tensor of at least one example (N, …)")
    # A copy, of which the frozen weights need no gradients; of the inputs, too: hooks count writes in place to it.
    above = copy.deepcopy(above).eval().requires_grad_(False)
    probe = suited_to(above, inputs[:_PROBED].detach().clone())
    found = crossing(above, upper_layer, probe)
    alike = layer == upper_layer and _one_architecture(below, above, probe)
    if not alike and (found.kept or found.weights):
        beside = ", ".join(f"'{name}'" for name in (*found.kept, *found.weights))
        raise InputError(
            f"beside layer '{upper_layer}', {beside} of the second model reach what is above it; expected a layer "
            f"through which everything passes, or two models of one architecture cut at the same layer"
        )
    _check_self(_joined(above, above, upper_layer, upper_layer, found), probe)
    return _joined(below, above, layer, upper_layer, found)


class CrossingFeatures:
    """What crosses a cut for the examples of x (N, …), by their numbers.

    Computed once where it fits in ``kept_bytes``, otherwise when it is asked for.
    """

    def __init__(self, joined: Cut, x: Tensor, kept_bytes: int = KEPT_BYTES) -> None:
        self._cut, self._x = joined, x
        self._kept: dict[str, Tensor] | None = None
        one = joined.features(x[:1])
        size = sum(part.numel() * part.element_size() for part in one.values())
        if size * len(x) <= kept_bytes:
            self._kept = {name: part.new_empty((len(x), *part.shape[1:])) for name, part in one.items()}
            for indices in index_batches(len(x), CHUNK):
                for name, part in joined.features(x[indices]).items():
                    self._kept[name][indices] = part

    @property
    def kept(self) -> bool:
        """Whether they were computed once."""
        return self._kept is not None

    def __len__(self) -> int:
        return len(self._x)

    def at(self, indices: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The inputs of the examples ``indices`` (n) and what crosses the cut for them, n rows each."""
        inputs = self._x[indices]
        if self._kept is None:
            return inputs, self._cut.features(inputs)
        return inputs, {name: part[indices] for name, part in self._kept.items()}


def index_batches(count: int, size: int, generator: torch.Generator | None = None) -> list[Tensor]:
    """The numbers of ``count`` examples in batches of ``size``, shuffled if there is a generator."""
    order = torch.arange(count) if generator is None else torch.randperm(count, generator=generator)
    return [order[start : start + size] for start in range(0, count, size)]


@torch.no_grad()
def layer_outputs(model: nn.Module, layers: Sequence[str], inputs: Tensor) -> dict[str, Tensor]:
    """The outputs of the named layers of ``model`` in evaluation mode; ``inputs`` (N, …) are made to suit it."""
    with evaluation_mode(model), recording(model, layers) as outputs:
        model(suited_to(model, inputs))
    return dict(outputs)


def suited_to(model: nn.Module, inputs: Tensor) -> Tensor:
    """``inputs`` on the device of the model and, if they are real numbers, of the type of its first real parameter."""
    first = next((tensor for tensor in model.parameters() if tensor.is_floating_point()), None)
    return inputs if first is None else suited(inputs, {"": first})


def _joined(below: nn.Module, above: nn.Module, layer: str, upper_layer: str, found: Crossing) -> Cut:
    own = {**dict(below.named_parameters()), **dict(below.named_buffers())}
    borrowed = {name: suited_to(above, own[name].detach()) for name in found.weights}
    return Cut(below, above, layer, upper_layer, found.kept, found.skipped, borrowed, found.norms)


def _one_architecture(below: nn.Module, above: nn.Module, probe: Tensor) -> bool:
    """Whether ``above`` with the weights of ``below`` is the function ``below``, under the same names."""
    weights = {**dict(below.named_parameters()), **dict(below.named_buffers())}
    expected = {**dict(above.named_parameters()), **dict(above.named_buffers())}
    if {name: t.shape for name, t in weights.items()} != {name: t.shape for name, t in expected.items()}:
        return False
    inputs = suited_to(below, probe)
    with torch.no_grad(), evaluation_mode(below):
        return _agree(outputs_with(above, weights, inputs), below(inputs))


@torch.no_grad()
def _check_self(joined: Cut, probe: Tensor) -> None:
    """A network joined to itself must be itself: nothing else crosses the cut by ways that have no derivative."""
    if not _agree(joined.run(probe, joined.features(probe), lambda features: features), joined.above(probe)):
        raise InputError(
            f"the second model cannot be cut at layer '{joined.upper_layer}': joined to itself there, it is another "
            f"function; expected that what crosses the cut are outputs of layers, not changed in place later, and that "
            f"gradients flow through them"
        )


def _agree(found: Tensor, expected: Tensor) -> bool:
    """Equal up to rounding; half of the digits, since a path that is missed changes the first ones."""
    if found.shape != expected.shape:
        return False
    rounding = torch.finfo(expected.dtype).eps ** 0.5
    return bool((found - expected).abs().max() <= rounding * expected.abs().max())


@contextmanager
def _answering(model: nn.Module, answers: Mapping[str, Tensor]) -> Iterator[None]:
    """While it is open, the named layers do not run, and return what ``answers`` says."""
    with ExitStack() as stack:
        for name, answer in answers.items():
            # Not by setattr, which would register an answer that is a module.
            own = model.get_submodule(name).__dict__
            if "forward" in own:
                stack.callback(own.__setitem__, "forward", own["forward"])
            else:
                stack.callback(own.pop, "forward")
            own["forward"] = _giving(answer)
        yield


def _giving(answer: Tensor) -> Callable[..., Tensor]:
    # A copy: what comes behind may write to it in place.
    return lambda *_args, **_kwargs: answer.clone()
