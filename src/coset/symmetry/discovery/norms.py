"""Rules of reductions and normalisations."""

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

from coset.errors import InputError
from coset.symmetry.discovery.calls import Call
from coset.symmetry.discovery.elementwise import added, unary
from coset.symmetry.discovery.ordering import ranked
from coset.symmetry.discovery.relations import Book, Power, Value, broadcast
from coset.symmetry.discovery.rules import output, passed, rule, straight, told_apart


def normalized_over(book: Book, value: Value, *dims: int) -> None:
    """Statistics over some dimensions exist for all the others, and only for them."""
    book.sees(value, (i for i in range(value.ndim) if i not in dims))


@rule("softmax", "log_softmax", "_softmax", "_log_softmax")
def softmax(book: Book, call: Call) -> Value:
    """No scale or sign passes; entries of the normalised dimension may be permuted."""
    x, dim = call.args[0], call.args[1]
    result = output(book, call, x)
    passed(book, x, result, straight(x))
    book.neutral(x)
    normalized_over(book, x, dim % x.ndim)
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
    dims, keep = _reduction(call, x)
    result = output(book, call, x)
    scale, sign = _POWERS.get(call.name, (1, 1))
    order = call.argument("ord", call.argument("p", 2))
    # The number of entries that are not zero, whatever their scales.
    counted = call.name in _COUNTS or (call.name in _NORMS and order == 0)
    passed(book, x, result, _kept(x, dims, keep), scale=0 if counted else scale, sign=sign)
    book.neutral(x, dims=dims, scale=not counted, sign=call.name not in (*_NORMS, *_COUNTS))
    if len(dims) == 2 and call.name in ("linalg_norm", "linalg_matrix_norm", "nuclear_norm"):
        _of_matrices(book, x, dims)
    if call.name == "logsumexp":
        book.neutral(x)
    if call.name in ("amax", "amin"):
        book.neutral(x, scale=False)
    return result


def _reduction(call: Call, x: Value) -> tuple[list[int], bool]:
    dims, keep = call.reduction(x)
    if call.argument("dim") is None and call.name in ("linalg_matrix_norm", "nuclear_norm"):
        dims = [x.ndim - 2, x.ndim - 1]
    return dims, keep


def _kept(x: Value, dims: list[int], keep: bool) -> list[int | None]:
    """The dimensions of a result: those that are not reduced, with None for reduced ones that are kept with size 1."""
    return [None if i in dims else i for i in range(x.ndim) if keep or i not in dims]


def _of_matrices(book: Book, x: Value, dims: list[int]) -> None:
    """A norm of matrices sees whole rows and whole columns: neither moves by itself beside the other."""
    for dim in dims:
        book.sees(x, (j for j in range(x.ndim) if j not in dims or j == dim))


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
    dims, keep = call.reduction(x)
    count = math.prod(x.shape[dim] for dim in dims)
    result = output(book, call, x)
    book.neutral(x, dims=dims)
    book.less((x.dims[dim] for dim in dims), "scales and signs of single units of a product are not looked for")
    return passed(book, x, result, _kept(x, dims, keep), scale=count, sign=count % 2)


@rule("cumprod", "logcumsumexp")
def accumulated(book: Book, call: Call) -> Value:
    """Entries up to each position, multiplied or summed as exponentials: positions are told apart, no scale passes."""
    x = call.args[0]
    dim = call.args[1] % max(x.ndim, 1)
    result = output(book, call, x)
    for value in (x, result):
        told_apart(book, value, [dim] if x.ndim else [], f"positions of {call.name}")
        book.neutral(value)
    book.meet(result, x, [None if j == dim else j for j in range(x.ndim)])
    return result


@rule("layer_norm", "native_layer_norm")
def layer_norm(book: Book, call: Call) -> Value:
    """Input: permutations and a common sign; gain and offset carry whatever the output does."""
    x, shape, weight, bias = (*call.args, None, None)[:4]
    return _standardized(book, call, x, len(shape), weight, bias, centred=True)


@rule("rms_norm", "_fused_rms_norm")
def rms_norm(book: Book, call: Call) -> Value:
    """As layer_norm without the mean: signs of single entries pass as well."""
    x, shape, weight = (*call.args, None)[:3]
    return _standardized(book, call, x, len(shape), weight, None, centred=False)


def _standardized(
    book: Book, call: Call, x: Value, count: int, weight: Value | None, bias: Value | None, *, centred: bool
) -> Value:
    """(x − mean)/√(var + ε)·weight + bias over the last ``count`` dimensions."""
    inner = range(x.ndim - count, x.ndim)
    normal = book.like(x.shape, [x])
    passed(book, x, normal, straight(x))
    book.neutral(x, sign=False)
    if centred:
        book.neutral(x, scale=False, dims=inner)
    normalized_over(book, x, *inner)
    result = output(book, call, x, weight, bias)
    factors = [Power(normal, straight(normal))]
    if weight is not None:
        factors.append(Power(weight, broadcast(x.shape, weight)))
    book.multiply(result, factors)
    if bias is not None:
        passed(book, bias, result, broadcast(result.shape, bias))
    return result


@rule("group_norm")
def group_norm(book: Book, call: Call) -> Value:
    """Channels in groups: groups permute, channels within a group permute, a group's sign passes."""
    x, groups, weight, bias = (*call.args, None, None)[:4]
    apart = book.like([x.shape[0], groups, x.shape[1] // groups, *x.shape[2:]], [x])
    book.regroup(x, apart)
    inner = range(2, apart.ndim)
    normal = book.like(apart.shape, [x])
    passed(book, apart, normal, straight(apart))
    book.neutral(apart, sign=False)
    book.neutral(apart, scale=False, dims=inner)
    normalized_over(book, apart, *inner)
    together = book.like(x.shape, [x])
    book.regroup(normal, together)
    return _affine(book, call, together, weight, bias)


def _affine(book: Book, call: Call, x: Value, weight: Value | None, bias: Value | None) -> Value:
    """x·weight + bias by channel (dimension 1)."""
    result = output(book, call, x, weight, bias)
    channel = tuple(0 if j == 1 else None for j in range(x.ndim))
    factors = [Power(x, straight(x))] + ([Power(weight, channel)] if weight is not None else [])
    book.multiply(result, factors)
    if bias is not None:
        passed(book, bias, result, channel)
    return result


@rule("instance_norm")
def instance_norm(book: Book, call: Call) -> Value:
    """Each channel by itself over its positions: permutations and signs of channels pass."""
    x, weight, bias = (*call.args, None, None)[:3]
    if not call.args[5]:
        return _by_statistics(book, call)
    positions = range(2, x.ndim)
    normal = book.like(x.shape, [x])
    passed(book, x, normal, straight(x))
    book.neutral(x, sign=False)
    book.neutral(x, dims=positions)
    normalized_over(book, x, *positions)
    return _affine(book, call, normal, weight, bias)


@rule("_weight_norm", "_weight_norm_interface")
def weight_norm(book: Book, call: Call) -> list[Value]:
    """gain·v/|v|, the norm over all dimensions but one: along that one v may have any scale."""
    v, gain = call.args[:2]
    dim = call.args[2] if len(call.args) > 2 else 0
    # −1 stands for the norm of the whole tensor, not for its last dimension.
    others = [i for i in range(v.ndim) if i != dim]
    book.neutral(v, sign=False, dims=others)
    normalized_over(book, v, *others)
    result = output(book, call, v, gain)
    book.multiply(result, [Power(v, straight(v), scale=0), Power(gain, broadcast(v.shape, gain))])
    # The fused operation gives the norms, too.
    return [
        result,
        *(passed(book, v, book.like(shape, [v]), broadcast(v.shape, gain), sign=0) for shape in call.shapes[1:]),
    ]


def _by_batch(book: Book, call: Call) -> Value:
    """Each channel by its own mean and variance over all other dimensions, with no statistics kept."""
    x, weight, bias = call.args[:3]
    others = [i for i in range(x.ndim) if i != 1]
    normal = book.like(x.shape, [x])
    passed(book, x, normal, straight(x))
    book.neutral(x, sign=False)
    book.neutral(x, dims=others)
    normalized_over(book, x, *others)
    return _affine(book, call, normal, weight, bias)


@rule("batch_norm", "_native_batch_norm_legit_no_training", "cudnn_batch_norm")
def batch_norm(book: Book, call: Call) -> Value:
    """In eval mode by the statistics kept; without any by those of the batch."""
    if call.args[3] is None:
        return _by_batch(book, call)
    if call.name == "batch_norm" and call.args[5]:
        raise InputError("batch norm with the statistics of the batch (a model in training mode)")
    return _by_statistics(book, call)


def _by_statistics(book: Book, call: Call) -> Value:
    """mean moves with the input, var + ε with its square, the gain takes what is left of it: its sign."""
    x, weight, bias, mean, variance = call.args[:5]
    channel = tuple(0 if j == 1 else None for j in range(x.ndim))
    passed(book, mean, x, channel)
    book.multiply(x, [Power(variance, channel, scale=Fraction(1, 2))], signs=False)
    book.neutral(variance, scale=False)
    call.shifted(variance, weight, call.args[6] if call.name.startswith("_native") else call.args[7])
    normal = book.like(x.shape, [x])
    # The statistics take the scale away, whatever it is; the sign passes.
    passed(book, x, normal, straight(x), scale=0)
    return _affine(book, call, normal, weight, bias)
