"""Rules of operations that act entry by entry."""

from fractions import Fraction
from typing import Any

from coset.symmetry._linear import quotient
from coset.symmetry.discovery.calls import Call
from coset.symmetry.discovery.relations import Book, Power, Value, broadcast
from coset.symmetry.discovery.rules import added_to, beside, output, passed, rule, straight


@rule(
    "contiguous", "clone", "detach", "alias", "_to_copy", "to", "type_as", "float", "lift_fresh",
    "lift_fresh_copy", "dropout", "feature_dropout", "alpha_dropout", "identity",
)  # fmt: skip
def same_values(book: Book, call: Call) -> Value:
    """Casts, copies, and dropout in eval mode; a cast to whole numbers or truth values is a function like any other."""
    x = call.args[0]
    if not call.floating and not x.inert:
        return unmarked(book, call)
    return passed(book, x, output(book, call, x), straight(x))


def unary(book: Book, call: Call, group: Any = None) -> Value:
    """An elementwise function of one tensor passes what its intertwiner group allows, found from its values."""
    (x,) = call.tensors()
    result = output(book, call, x)
    if group is None:
        group = call.intertwiner()
    power = Fraction(group.scale_power).limit_denominator(64)
    # Powers that are no simple fraction cannot be balanced by whole powers elsewhere.
    scales = group.scales and abs(float(power) - group.scale_power) < 1e-12
    sign = group.sign_power % 2 if group.signs else 0
    passed(book, x, result, straight(x), scale=quotient(power, Fraction(1)) if scales else 0, sign=sign)
    book.neutral(x, scale=not scales, sign=not group.signs)
    return result


def pointwise(book: Book, call: Call) -> Value:
    """Any other elementwise operation of several tensors: dimensions meet, no scale or sign passes."""
    tensors = call.tensors()
    result = beside(book, output(book, call, *tensors), *tensors)
    book.neutral(result)
    return result


_EXTREMES = frozenset({"maximum", "minimum", "fmax", "fmin", "clamp", "clamp_min", "clamp_max", "clip"})


@rule("add", "sub", "subtract", "rsub", "complex", *_EXTREMES)
def added(book: Book, call: Call) -> Value:
    """x ± y, x + iy: both have the scale of the result; with a number instead of y it is a function of x.

    Extremes, and bounds that are tensors: no signs.
    """
    tensors = call.tensors()
    if len(tensors) == 1:
        return unary(book, call)
    result = added_to(book, output(book, call, *tensors), *tensors)
    if call.name in _EXTREMES:
        book.neutral(result, scale=False)
    return result


@rule("lerp")
def lerp(book: Book, call: Call) -> Value:
    """x + w·(y − x): both as in a sum; the weight lets nothing through."""
    x, y, *weight = call.tensors()
    return beside(book, added_to(book, output(book, call, *call.tensors()), x, y), *weight)


@rule("where")
def where(book: Book, call: Call) -> Value:
    """where(c, x, y): x and y as in a sum; the condition passes nothing, nor does a number other than 0."""
    condition, *branches = call.tensors()
    result = beside(book, output(book, call, condition, *branches), condition)
    added_to(book, result, *branches)
    if any(isinstance(number, int | float) and number != 0 for number in call.args):
        book.neutral(result)
    return result


@rule("masked_fill")
def masked_fill(book: Book, call: Call) -> Value:
    """Entries under a mask become a number: 0 and infinities keep positive scales, others keep none."""
    x, mask, number = call.args[:3]
    result = beside(book, added_to(book, output(book, call, *call.tensors()), x), mask)
    if isinstance(number, Value):
        book.neutral(number)
    if number != 0:
        book.neutral(result, scale=isinstance(number, Value) or abs(number) != float("inf"))
    return result


@rule("mul", "multiply", "div", "divide", "true_divide")
def multiplied(book: Book, call: Call) -> Value:
    """x·y and x/y: scales multiply; with a number in place of y they pass."""
    tensors = call.tensors()
    if any(isinstance(number, complex) for number in call.args):
        return passed(book, tensors[0], output(book, call, *tensors), straight(tensors[0]))
    if len(tensors) == 1 or call.kwargs.get("rounding_mode"):
        return unmarked(book, call)
    return _product(book, call, output(book, call, *tensors), *tensors)


def _product(book: Book, call: Call, result: Value, x: Value, y: Value) -> Value:
    """x·y, or x/y, with broadcasting."""
    power = -1 if "div" in call.name else 1
    factors = [Power(x, broadcast(result.shape, x)), Power(y, broadcast(result.shape, y), scale=power)]
    book.multiply(result, factors)
    return result


@rule("__and__", "__or__", "__xor__", "floor_divide")
def unmarked(book: Book, call: Call) -> Value:
    """Elementwise operations that torch does not mark as such."""
    return unary(book, call) if len(call.tensors()) == 1 else pointwise(book, call)


_EQUALITIES = frozenset({"eq", "ne"})


@rule("gt", "lt", "ge", "le", "greater", "less", "greater_equal", "less_equal", *_EQUALITIES)
def compared(book: Book, call: Call) -> Value:
    """x > y does not change if both have one positive scale; whether x = y not even under a sign."""
    tensors = call.tensors()
    if len(tensors) == 1:
        return unary(book, call)
    result = output(book, call, *tensors)
    difference = added_to(book, book.like(result.shape, tensors), *tensors)
    return _truth(book, difference, result, signs=call.name in _EQUALITIES)


def _truth(book: Book, difference: Value, result: Value, *, signs: bool) -> Value:
    """What is known of the sign of a difference, or (``signs``) of its being 0; it carries nothing itself."""
    book.neutral(difference, scale=False, sign=not signs)
    book.meet(result, difference, straight(result))
    book.neutral(result)
    return result


@rule("bucketize")
def binned(book: Book, call: Call) -> Value:
    """Between which of a few numbers each entry lies: these are told apart, and have one positive scale with it."""
    x, bounds = call.args[:2]
    difference = book.like([*x.shape, *bounds.shape], [x, bounds])
    passed(book, x, difference, [*range(x.ndim), None])
    passed(book, bounds, difference, [*(None,) * x.ndim, 0])
    book.pin(bounds, reason="bounds in order")
    return _truth(book, difference, output(book, call, x, bounds), signs=False)


@rule("addcmul", "addcdiv")
def addcmul(book: Book, call: Call) -> Value:
    """x + number·y·z, or x + number·y/z."""
    x, y, z = call.args[:3]
    return _product(book, call, added_to(book, output(book, call, x, y, z), x), y, z)


@rule("prelu", "_prelu_kernel")
def prelu(book: Book, call: Call) -> Value:
    """Slopes move with their channel and carry no scale; positive scales pass."""
    x, slopes = call.args
    result = output(book, call, x)
    passed(book, x, result, straight(x), sign=0)
    book.neutral(x, scale=False)
    book.neutral(slopes)
    if slopes.shape and max(slopes.shape) > 1:
        book.same(result, 1, slopes, 0 if slopes.ndim == 1 else 1)
    return result


@rule("real", "imag", "_conj", "conj", "conj_physical", "_conj_physical", "resolve_conj", "resolve_neg", "_neg_view")
def part(book: Book, call: Call) -> Value:
    """Real part, imaginary part, conjugate: real scales and signs pass."""
    x = call.args[0]
    return passed(book, x, output(book, call, x), straight(x))


@rule("polar")
def polar(book: Book, call: Call) -> Value:
    """r·exp(iφ): r passes, φ lets nothing through."""
    length, angle = call.args[:2]
    return added_to(book, beside(book, output(book, call, length, angle), angle), length)


@rule("angle")
def angle(book: Book, call: Call) -> Value:
    """The phase does not see positive scales; a sign changes it."""
    x = call.args[0]
    book.neutral(x, scale=False)
    result = passed(book, x, output(book, call, x), straight(x), scale=0)
    book.neutral(result)
    return result
