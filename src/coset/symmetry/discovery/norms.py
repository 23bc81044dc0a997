"""Rules of reductions and normalisations."""

from fractions import Fraction

from coset.errors import InputError
from coset.symmetry.discovery.calls import Call
from coset.symmetry.discovery.relations import Book, Power, Value, broadcast
from coset.symmetry.discovery.rules import output, passed, rule, straight


def normalized_over(book: Book, value: Value, *dims: int) -> None:
    """Statistics over some dimensions exist for all the others, and only for them."""
    book.sees(*(value.dims[i] for i in range(value.ndim) if i not in dims))


@rule("softmax", "log_softmax", "_softmax", "_log_softmax")
def softmax(book: Book, call: Call) -> Value:
    """No scale or sign passes; entries of the normalised dimension may be permuted."""
    x, dim = call.args[0], call.args[1]
    result = output(book, call, x)
    passed(book, x, result, straight(x))
    book.neutral(x)
    normalized_over(book, x, dim % x.ndim)
    return result


@rule("mean", "sum", "amax", "amin", "var", "std", "logsumexp", "linalg_vector_norm", "norm")
def reduced(book: Book, call: Call) -> Value:
    """A reduction over interchangeable positions keeps their permutations, and no scale of theirs."""
    x = call.args[0]
    dims, keep = call.reduction(x)
    result = output(book, call, x)
    kept = [i for i in range(x.ndim) if i not in dims]
    places = [i if i in kept else None for i in range(x.ndim)] if keep else list(kept)
    power = {
        "var": (Fraction(2), 0),
        "std": (Fraction(1), 0),
        "linalg_vector_norm": (Fraction(1), 0),
        "norm": (Fraction(1), 0),
    }
    scale, sign = power.get(call.name, (Fraction(1), 1))
    passed(book, x, result, places, scale=scale, sign=sign)
    blind = call.name in ("linalg_vector_norm", "norm")
    book.neutral(x, dims=dims, sign=not blind)
    if call.name == "logsumexp":
        book.neutral(x)
    if call.name in ("amax", "amin"):
        book.neutral(x, scale=False)
    return result


@rule("layer_norm")
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
    normal = book.like(x.shape, [x])
    passed(book, x, normal, straight(x))
    book.neutral(x, sign=False)
    book.pin(x, range(2, x.ndim))
    book.neutral(x, dims=range(2, x.ndim))
    return _affine(book, call, normal, weight, bias)


@rule("batch_norm", "_native_batch_norm_legit_no_training", "cudnn_batch_norm")
def batch_norm(book: Book, call: Call) -> Value:
    """Eval mode: mean moves with the input, var + ε with its square, the gain takes what is left of it: its sign."""
    x, weight, bias, mean, variance = call.args[:5]
    if mean is None or (call.name == "batch_norm" and call.args[5]):
        raise InputError("batch norm with the statistics of the batch (a model in training mode)")
    channel = tuple(0 if j == 1 else None for j in range(x.ndim))
    passed(book, mean, x, channel)
    book.multiply(x, [Power(variance, channel, scale=Fraction(1, 2))], signs=False)
    book.neutral(variance, scale=False)
    call.shifted(variance, weight, call.args[7] if call.name == "batch_norm" else call.args[6])
    normal = book.like(x.shape, [x])
    # The statistics take the scale away, whatever it is; the sign passes.
    passed(book, x, normal, straight(x), scale=Fraction(0))
    return _affine(book, call, normal, weight, bias)
