"""What a model reads while it runs: every contraction, in the order of execution, shows its arguments."""

from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from coset.errors import InputError
from coset.running import outputs_with, suited
from coset.symmetry.layers import CONTRACTIONS
from coset.train.metrics import evaluation_mode

See = Callable[[int, int, str, Tensor], None]
"""Called with the number of the call, that of the tensor among those it reads, the operation's name and the tensor."""

_OPERATORS = {"__matmul__": "matmul", "__rmatmul__": "matmul"}


def _opened(function: Any) -> FunctionType:
    """A function of torch that is written in Python, so that a mode sees the calls inside it and not only itself."""
    within = {**function.__globals__, "has_torch_function": lambda _tensors: False}
    copy = FunctionType(function.__code__, within, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


_COMPOSED = {F.multi_head_attention_forward: _opened(F.multi_head_attention_forward)}


class Watch(TorchFunctionMode):
    """Shows the floating tensors that contractions read to ``see``; calls are numbered in the order of execution."""

    def __init__(self, see: See) -> None:
        super().__init__()
        self.see = see
        self.calls = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _COMPOSED:
            with self:
                return _COMPOSED[func](*args, **kwargs)
        name = getattr(func, "__name__", "")
        name = _OPERATORS.get(name, name)
        if name in CONTRACTIONS:
            tensors = (item for item in tree_leaves((args, kwargs)) if isinstance(item, Tensor))
            for number, item in enumerate(item for item in tensors if item.is_floating_point()):
                self.see(self.calls, number, name, item)
            self.calls += 1
        return func(*args, **kwargs)


def run(model: nn.Module, weights: Mapping[str, Tensor], inputs: Tensor, watch: Watch) -> None:
    """Run ``model`` with all its weights in evaluation mode, without derivatives, while ``watch`` looks on."""
    with evaluation_mode(model), torch.no_grad(), watch:
        try:
            outputs_with(model, weights, suited(inputs, weights))
        except InputError:
            raise
        except Exception as error:
            reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
            raise InputError(
                f"{type(model).__name__} cannot be run on data of shape {tuple(inputs.shape)} and type {inputs.dtype}: "
                f"{reason}"
            ) from error
