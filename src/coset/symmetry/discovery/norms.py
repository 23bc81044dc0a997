"""Rules of reductions and normalisations."""

import math
from collections.abc import Collection
from dataclasses import replace
from fractions import Fraction
from typing import Any

from coset.errors import InputError
from coset.symmetry.discovery.calls import Call
from coset.symmetry.discovery.elementwise import added, unary
from coset.symmetry.discovery.ordering import ranked
from coset.symmetry.discovery.relations import Book, Power, Value, broadcast
from coset.symmetry.discovery.rules import output, passed, rule, straight, told_apart, without


@rule("softmax", "log_softmax", "_softmax", "_log_softmax")
def softmax(book: Book, call: Call) -> Value:
    """No scale or sign passes; entries of the normalised dimension may be permuted."""
    x, dim = call.args[0], call.args[1]
    result = output(book, call, x)
    passed(book, x, result, straight(x))
    book.neutral(x)
    book.sees_beside(x, [dim % x.ndim])
    return result


@rule("max", "min")
def extreme(book: Book, call: Call) -> Any:
    """The largest entries of one dimension, of all, or of two tensors; where they stand, if anybody asks."""
    if len(call.tensors()) > 1:
        return added(book, replace(call, name=f"{call.name}imum"))
    if len(call.shapes) > 1 and 1 in call.used:
        return ranked(book, call)
    largest = reduced(book, replace(call, name=f"a{call.name}"))
    return [largest, *(book.like(shape, [largest]) for shape in call.shapes[1:])]


_NORMS = ("linalg_vector_norm", "norm", "linalg_norm", "linalg_matrix_norm", "frobenius_norm", "nuclear_norm")
_COUNTS = ("any", "all", "count_nonzero")

# (power of the scale, power of the sign) that a reduction passes; (1, 1) for others.
_POWERS = {"var": (2, 0), "std": (1, 0), **dict.fromkeys(_NORMS, (1, 0)), **dict.fromkeys(_COUNTS, (0, 0))}


@rule("mean", "sum", "nansum", "nanmean", "amax", "amin", "var", "std", "logsumexp", *_NORMS, *_COUNTS)
def reduced(book: Book, call: Call) -> Value:
    """A reduction over interchangeable positions keeps their permutations, and no scale of theirs."""
    x = call.args[0]
    by_default = (-2, -1) if call.name in ("linalg_matrix_norm", "nuclear_norm") else None
    dims, kept = call.reduction(x, by_default)
    result = output(book, call, x)
    scale, sign = _POWERS.get(call.name, (1, 1))
    order = call.argument("ord", call.argument("p", 2))
    # The number of entries that are not zero, whatever their scales.
    counted = call.name in _COUNTS or (call.name in _NORMS and order == 0)
    passed(book, x, result, kept, scale=0 if counted else scale, sign=sign)
    book.neutral(x, dims=dims, scale=not counted, sign=call.name not in (*_NORMS, *_COUNTS))
    if len(dims) == 2 and call.name in ("linalg_norm", "linalg_matrix_norm", "nuclear_norm"):
        # A norm of matrices sees whole rows and whole columns: neither moves by itself beside the other.
        for dim in dims:
            book.sees_beside(x, [other for other in dims if other != dim])
    if call.name == "logsumexp":
        book.neutral(x)
    if call.name in ("amax", "amin"):
        book.neutral(x, scale=False)
    return result


@rule("var_mean", "std_mean", "aminmax")
def both_reduced(book: Book, call: Call) -> list[Value]:
    """Two reductions at once."""
    names = {"var_mean": ("var", "mean"), "std_mean": ("std", "mean"), "aminmax": ("amin", "amax")}[call.name]
    return [reduced(book, replace(call, name=name)) for name in names]


@rule("prod")
def product(book: Book, call: Call) -> Value:
    """The product of n entries has n times their scale.

    One unit may also be scaled or flipped alone, if what reads the product takes that up. No axis says so: of all the
    scales of a class the reader would have the product.
    """
    x = call.args[0]
    if not x.ndim:
        return unary(book, call)
    dims, kept = call.reduction(x)
    count = math.prod(x.shape[dim] for dim in dims)
    result = output(book, call, x)
    book.neutral(x, dims=dims)
    book.less((x.dims[dim] for dim in dims), "scales and signs of single units of a product are not looked for")
    return passed(book, x, result, kept, scale=count, sign=count % 2)


@rule("cumprod", "logcumsumexp")
def accumulated(book: Book, call: Call) -> Value:
    """Entries up to each position, multiplied or summed as exponentials: positions are told apart, no scale passes."""
    x = call.args[0]
    dim = call.args[1] % max(x.ndim, 1)
    result = output(book, call, x)
    for value in (x, result):
        told_apart(book, value, [dim] if x.ndim else [], f"positions of {call.name}")
        book.neutral(value)
    book.meet(result, x, without(x, [dim]))
    return result


@rule("layer_norm", "native_layer_norm")
def layer_norm(book: Book, call: Call) -> Value:
    """Input: permutations and a common sign; gain and offset carry whatever the output does."""
    x, shape, weight, bias = (*call.args, None, None)[:4]
    normal = _normalized(book, x, range(x.ndim - len(shape), x.ndim))
    return _affine(book, call, normal, weight, bias, x.ndim - len(shape))


@rule("rms_norm", "_fused_rms_norm")
def rms_norm(book: Book, call: Call) -> Value:
    """As layer_norm without the mean: signs of single entries pass as well."""
    x, shape, weight = (*call.args, None)[:3]
    normal = _normalized(book, x, range(x.ndim - len(shape), x.ndim), centred=False)
    return _affine(book, call, normal, weight, None, x.ndim - len(shape))


def _normalized(book: Book, x: Value, dims: Collection[int], *, centred: bool = True) -> Value:
    """(x − mean)/√(var + ε) over some dimensions, whose statistics exist for all the others, and only for them."""
    normal = passed(book, x, book.like(x.shape, [x]), straight(x))
    book.neutral(x, sign=False)
    if centred:
        book.neutral(x, scale=False, dims=dims)
    book.sees_beside(x, dims)
    return normal


def _affine(book: Book, call: Call, x: Value, weight: Value | None, bias: Value | None, first: int = 1) -> Value:
    """x·weight + bias by channel (dimension 1), or by some dimensions from ``first`` on."""
    result = output(book, call, x, weight, bias)
    factors = [Power(x, straight(x))]
    if weight is not None:
        factors.append(Power(weight, _from(first, weight, x)))
    book.multiply(result, factors)
    return result if bias is None else passed(book, bias, result, _from(first, bias, x))


def _from(first: int, value: Value, x: Value) -> tuple[int | None, ...]:
    """For each dimension of x that of a value whose dimensions stand beside those of x from ``first`` on."""
    return tuple(j - first if first <= j < first + value.ndim else None for j in range(x.ndim))


@rule("group_norm")
def group_norm(book: Book, call: Call) -> Value:
    """Channels in groups: groups permute, channels within a group permute, a group's sign passes."""
    x, groups, weight, bias = (*call.args, None, None)[:4]
    apart = book.reshaped(x, [x.shape[0], groups, x.shape[1] // groups, *x.shape[2:]])
    normal = _normalized(book, apart, range(2, apart.ndim))
    return _affine(book, call, book.reshaped(normal, x.shape), weight, bias)


@rule("instance_norm")
def instance_norm(book: Book, call: Call) -> Value:
    """Each channel by itself over its positions: permutations and signs of channels pass."""
    x, weight, bias = (*call.args, None, None)[:3]
    if not call.args[5]:
        return _by_statistics(book, call)
    return _affine(book, call, _normalized(book, x, range(2, x.ndim)), weight, bias)


@rule("_weight_norm", "_weight_norm_interface")
def weight_norm(book: Book, call: Call) -> list[Value]:
    """gain·v/|v|, the norm over all dimensions but one: along that one v may have any scale."""
    v, gain = call.args[:2]
    dim = call.args[2] if len(call.args) > 2 else 0
    # −1 stands for the norm of the whole tensor, not for its last dimension.
    others = [i for i in range(v.ndim) if i != dim]
    book.neutral(v, sign=False, dims=others)
    book.sees_beside(v, others)
    result = output(book, call, v, gain)
    book.multiply(result, [Power(v, straight(v), scale=0), Power(gain, broadcast(v.shape, gain))])
    # The fused operation gives the norms, too.
    return [
        result,
        *(passed(book, v, book.like(shape, [v]), broadcast(v.shape, gain), sign=0) for shape in call.shapes[1:]),
    ]


@rule("batch_norm", "_native_batch_norm_legit_no_training", "cudnn_batch_norm")
def batch_norm(book: Book, call: Call) -> Value:
    """In eval mode by the statistics kept; without any by those of the batch."""
    x, weight, bias, mean = call.args[:4]
    if mean is None:
        return _affine(book, call, _normalized(book, x, [i for i in range(x.ndim) if i != 1]), weight, bias)
    if call.name == "batch_norm" and call.args[5]:
        raise InputError("batch norm with the statistics of the batch (a model in training mode)")
    return _by_statistics(book, call)


def _by_statistics(book: Book, call: Call) -> Value:
    """mean moves with the input, var + ε with its square, the gain takes what is left of it: its sign."""
    x, weight, bias, mean, variance = call.args[:5]
    channel = _from(1, mean, x)
    passed(book, mean, x, channel)
    book.multiply(x, [Power(variance, channel, scale=Fraction(1, 2))], signs=False)
    book.neutral(variance, scale=False)
    # What scales is variance + ε; the gain takes up the rest.
    eps = float(call.args[6] if call.name.startswith("_native") else call.args[7])
    call.variances.append((variance, weight, eps))
    # The statistics take the scale away, whatever it is; the sign passes.
    normal = passed(book, x, book.like(x.shape, [x]), straight(x), scale=0)
    return _affine(book, call, normal, weight, bias)
