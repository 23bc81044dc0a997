"""What a model reads while it runs: every contraction, in the order of execution, shows its arguments."""

from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from coset.errors import InputError
from coset.train.metrics import evaluation_mode

CONTRACTIONS = frozenset(
    {"linear", "bilinear", "einsum", "tensordot", "scaled_dot_product_attention", "inner", "dot", "vdot", "vecdot"}
    | {"matmul", "__matmul__", "__rmatmul__", "mm", "bmm", "mv", "addmm", "addbmm", "baddbmm", "addmv", "multi_dot"}
    | {"conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "convolution"}
    | {"lstm", "gru", "rnn_tanh", "rnn_relu", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell", "cdist"}
)
"""Names of the functions that sum products over an axis, however they are reached: x @ w, torch.mm, Tensor.mm, …"""

See = Callable[[int, int, str, Tensor], None]
"""Called with the number of the call, the number of the argument, the function's name and the argument."""

_NARROW = (torch.float32, torch.float16, torch.bfloat16)
_NARROWING = {"float", "half", "bfloat16"}


def _opened(function: Any) -> FunctionType:
    """A function of torch that is written in Python, so that a mode sees the calls inside it and not only itself."""
    within = {**function.__globals__, "has_torch_function": lambda _tensors: False}
    copy = FunctionType(function.__code__, within, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


_COMPOSED = {F.multi_head_attention_forward: _opened(F.multi_head_attention_forward)}


class Watch(TorchFunctionMode):
    """Shows the floating tensors that contractions read to ``see``; calls are numbered in the order of execution.

    ``widen``: run in float64 throughout, casts to narrower types inside the model included.
    """

    def __init__(self, see: See, *, widen: bool = False) -> None:
        super().__init__()
        self.see = see
        self.widen = widen
        self.calls = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _COMPOSED:
            with self:
                return _COMPOSED[func](*args, **kwargs)
        name = getattr(func, "__name__", "")
        contracts = name in CONTRACTIONS
        if self.widen:
            func = Tensor.double if name in _NARROWING else func
            args, kwargs = tree_map(_wide if contracts else _wide_type, (args, kwargs))
        if contracts:
            for number, item in enumerate(tree_leaves((args, kwargs))):
                if isinstance(item, Tensor) and item.is_floating_point():
                    self.see(self.calls, number, name, item)
            self.calls += 1
        result = func(*args, **kwargs)
        return tree_map(_wide, result) if self.widen else result


def _wide_type(item: Any) -> Any:
    return torch.float64 if isinstance(item, torch.dtype) and item in _NARROW else item


def _wide(item: Any) -> Any:
    return item.double() if isinstance(item, Tensor) and item.dtype in _NARROW else _wide_type(item)


def run(model: nn.Module, params: Mapping[str, Tensor], inputs: Tensor, watch: Watch) -> None:
    """Run ``model`` with ``params`` in evaluation mode, without derivatives, while ``watch`` looks on."""
    with evaluation_mode(model), torch.no_grad(), watch:
        try:
            functional_call(model, dict(params), (inputs,))
        except InputError:
            raise
        except Exception as error:
            reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
            raise InputError(
                f"{type(model).__name__} cannot be run on data of shape {tuple(inputs.shape)} and type {inputs.dtype}: "
                f"{reason}"
            ) from error


def fitted(model: nn.Module, params: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """``params`` with one tensor under all names that are one tensor in ``model``, as ``functional_call`` wants it."""
    result = dict(params)
    first: dict[int, str] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        other = first.setdefault(id(tensor), name) if name in params else name
        if other == name:
            continue
        if not torch.equal(params[other], params[name]):
            raise InputError(f"'{name}' and '{other}' are one tensor in {type(model).__name__}, but differ here")
        result[name] = params[other]
    return result
