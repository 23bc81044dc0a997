"""Rules of Fourier transforms and of complex numbers: real scales and signs pass all that is linear."""

from coset.symmetry.discovery.calls import Call
from coset.symmetry.discovery.relations import Book, Value, broadcast
from coset.symmetry.discovery.rules import output, passed, rule, straight, told_apart, told_apart_in_both, without

_ONE = ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")


@rule(
    *(f"fft_{name}{count}" for name in _ONE for count in ("", "2", "n")),
    "_fft_r2c",
    "_fft_c2r",
    "_fft_c2c",
)
def fourier(book: Book, call: Call) -> Value:
    """Positions along the transformed dimensions are mixed by a fixed matrix; all others pass."""
    x = call.args[0]
    result = output(book, call, x)
    dims = _transformed(call, x)
    told_apart_in_both(book, x, dims, result, dims, "a Fourier transform over its positions", known=False)
    return passed(book, x, result, without(x, dims))


def _transformed(call: Call, x: Value) -> list[int]:
    """Of fft the last dimension, of fft2 the last two, of fftn all or as many as sizes are given, unless it says so."""
    sizes = call.argument("s") if call.name.endswith("n") else [0] * (2 if call.name.endswith("2") else 1)
    default = list(range(x.ndim)) if sizes is None else list(range(-len(sizes), 0))
    dims = call.argument("dim")
    chosen = default if dims is None else [dims] if isinstance(dims, int) else dims
    return [dim % x.ndim for dim in chosen]


@rule("stft")
def stft(book: Book, call: Call) -> Value:
    """Spectra of windows of a signal, (…, time) to (…, frequency, time): signals pass, positions are told apart."""
    x = call.args[0]
    result = output(book, call, *call.tensors())
    for value in call.tensors():
        told_apart(book, value, [value.ndim - 1], "times of a Fourier transform")
        if value is not x:
            book.neutral(value)
    kept = x.ndim - 1
    told_apart(book, result, range(kept, result.ndim), "times and frequencies")
    return passed(book, x, result, [j if j < kept else None for j in range(result.ndim)])


@rule("view_as_complex", "view_as_real")
def pairs(book: Book, call: Call) -> Value:
    """Pairs of numbers along the last dimension as complex ones, and back; the two are told apart."""
    x = call.args[0]
    result = output(book, call, x)
    pairwise = x if call.name == "view_as_complex" else result
    told_apart(book, pairwise, [pairwise.ndim - 1], "real and imaginary parts")
    dims = list(range(min(x.ndim, result.ndim)))
    return passed(book, x, result, dims if pairwise is x else [*dims, None])


@rule("real", "imag", "_conj", "conj", "conj_physical", "_conj_physical", "resolve_conj", "resolve_neg", "_neg_view")
def part(book: Book, call: Call) -> Value:
    """Real part, imaginary part, conjugate: real scales and signs pass."""
    x = call.args[0]
    return passed(book, x, output(book, call, x), straight(x))


@rule("complex")
def composed(book: Book, call: Call) -> Value:
    """x + iy: both have the scale of the result."""
    result = output(book, call, *call.args[:2])
    for value in call.args[:2]:
        passed(book, value, result, broadcast(result.shape, value))
    return result


@rule("polar")
def polar(book: Book, call: Call) -> Value:
    """r·exp(iφ): r passes, φ lets nothing through."""
    length, angle = call.args[:2]
    result = output(book, call, length, angle)
    book.meet(result, angle, broadcast(result.shape, angle))
    book.neutral(angle)
    return passed(book, length, result, broadcast(result.shape, length))


@rule("angle")
def angle(book: Book, call: Call) -> Value:
    """The phase does not see positive scales; a sign changes it."""
    x = call.args[0]
    book.neutral(x, scale=False)
    result = passed(book, x, output(book, call, x), straight(x), scale=0)
    book.neutral(result)
    return result
