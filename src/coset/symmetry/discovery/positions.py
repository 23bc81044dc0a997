"""Rules of operations on positions of images and sequences, Fourier transforms included."""

from coset.symmetry.discovery.calls import Call
from coset.symmetry.discovery.picking import segment
from coset.symmetry.discovery.relations import Book, Value
from coset.symmetry.discovery.rules import output, passed, rule, told_apart, told_apart_in_both, without
from coset.symmetry.discovery.terms import atoms, resolve


def _by_positions(book: Book, call: Call, count: int, *, signs: bool) -> Value:
    """An operation on the last ``count`` dimensions that treats all others alike."""
    x = call.args[0]
    result = output(book, call, x)
    moved = [x.ndim - count + i for i in range(count) if not _windows_of_one(call, i)]
    for value in (x, result):
        told_apart(book, value, moved, "positions of pooling, padding or resizing")
    passed(book, x, result, without(x, moved))
    if not signs:
        book.neutral(x, scale=False)
    return result


def _windows_of_one(call: Call, i: int) -> bool:
    """Whether pooling leaves its i-th dimension alone: windows of one position, one after the other."""

    def setting(name: str, default: int) -> int:
        given = call.argument(name)
        values = given if isinstance(given, list | tuple) else [default if given is None else given]
        return int(values[i if len(values) > 1 else 0]) if values else default

    return setting("kernel_size", 0) == 1 and setting("stride", 1) == 1 and setting("padding", 0) == 0


# Operations on positions: how many trailing dimensions are positions, and whether signs pass.
_POSITIONS: dict[str, tuple[int, bool]] = {
    **{f"{name}{n}d": (n, True) for name in ("avg_pool", "adaptive_avg_pool") for n in (1, 2, 3)},
    **{f"{name}{n}d": (n, False) for name in ("max_pool", "adaptive_max_pool") for n in (1, 2, 3)},
    **{f"max_pool{n}d_with_indices": (n, False) for n in (1, 2, 3)},
    **{
        f"{name}{n}d": (n, True)
        for name in ("upsample_nearest", "_upsample_nearest_exact", "reflection_pad", "replication_pad")
        for n in (1, 2, 3)
    },
    "upsample_linear1d": (1, True),
    "upsample_bilinear2d": (2, True),
    "upsample_bicubic2d": (2, True),
    "upsample_trilinear3d": (3, True),
    "_upsample_bilinear2d_aa": (2, True),
    "_upsample_bicubic2d_aa": (2, True),
}


@rule(*_POSITIONS)
def by_positions(book: Book, call: Call) -> Value | list[Value]:
    """Pooling, resizing, padding by copies: positions are told apart, all other dimensions are left alone."""
    count, signs = _POSITIONS[call.name]
    result = _by_positions(book, call, count, signs=signs)
    if len(call.shapes) == 1:
        return result
    # The places of the maxima: they belong to their channels, and are no numbers that scale.
    places = output(book, call, call.args[0])
    book.meet(places, result, range(result.ndim))
    book.neutral(places)
    return [result, places]


@rule("pad", "constant_pad_nd")
def pad(book: Book, call: Call) -> Value:
    """Padded dimensions are told apart if they are positions; a padding other than 0 lets no scale pass.

    Channels between zeros are a segment of the result, and the zeros interchangeable units of their own.
    """
    x: Value = call.args[0]
    widths = call.args[1]
    number = call.args[-1] if isinstance(call.args[-1], int | float) else 0
    if call.name == "pad" and call.argument("mode", "constant") != "constant":
        return _by_positions(book, call, len(widths) // 2, signs=True)
    for i in range(len(widths) // 2):
        before, after, dim = widths[2 * i], widths[2 * i + 1], x.ndim - 1 - i
        if before or after:
            grown = [*x.shape[:dim], before + x.shape[dim] + after, *x.shape[dim + 1 :]]
            x = _padded(book, x, dim, before, after, book.like(grown, [x]))
    if number:
        book.neutral(x)
    return x


def _padded(book: Book, x: Value, dim: int, before: int, after: int, result: Value) -> Value:
    if all(atom.pinned for atom in atoms(resolve(x.dims[dim]))):
        for value in (x, result):
            told_apart(book, value, [dim], "padding")
        return passed(book, x, result, without(x, [dim]))
    if before < 0 or after < 0:
        # What is cut off comes first.
        x = segment(book, x, dim, max(0, -before), x.shape[dim] + min(0, before) + min(0, after))
        before, after = max(0, before), max(0, after)
        if not (before or after):
            return passed(book, x, result, range(x.ndim))
    parts = []
    for width in (before, None, after):
        if width is None:
            parts.append(x)
        elif width:
            shape = [*x.shape[:dim], width, *x.shape[dim + 1 :]]
            parts.append(book.constant(shape))
            parts[-1].zero = True
    book.join(result, parts, dim)
    return result


@rule("im2col", "col2im")
def unfolded(book: Book, call: Call) -> Value:
    """Every channel's patches: (…, channels, H, W) to (…, channels·patch, places) and back; channels are left alone."""
    x, result = call.args[0], output(book, call, call.args[0])
    image, patches = (x, result) if call.name == "im2col" else (result, x)
    channel = image.ndim - 3
    channels, places = image.shape[channel], patches.shape[-1]
    apart = book.like([*image.shape[:channel], channels, patches.shape[channel] // channels, places], [x])
    for value in (image, apart):
        book.hold(value, [channel + 1, channel + 2], "positions of patches")
    source, target = (image, apart) if call.name == "im2col" else (apart, image)
    if call.name == "col2im":
        book.regroup(patches, apart)
    passed(book, source, target, [*range(channel + 1), None, None])
    if call.name == "im2col":
        book.regroup(apart, patches)
    return result


@rule("unfold")
def windows(book: Book, call: Call) -> Value:
    """Windows along one dimension, with their positions as a new last one; all others pass."""
    x = call.args[0]
    dim = call.args[1] % max(x.ndim, 1)
    result = output(book, call, x)
    told_apart(book, x, [dim], "positions of windows")
    told_apart(book, result, [dim, x.ndim], "positions of windows")
    return passed(book, x, result, [*without(x, [dim]), None])


@rule("max_unpool2d", "max_unpool3d")
def unpooled(book: Book, call: Call) -> Value:
    """Entries put back to where they were the largest: positions are told apart, channels pass."""
    x, places = call.args[:2]
    count = 2 if call.name == "max_unpool2d" else 3
    result = _by_positions(book, call, count, signs=True)
    book.meet(x, places, range(x.ndim))
    book.neutral(places)
    return result


@rule("grid_sampler", "grid_sampler_2d", "grid_sampler_3d", "cudnn_grid_sampler")
def sampled(book: Book, call: Call) -> Value:
    """An image (batch, channels, …) read at the places of a grid (batch, …, coordinates): linear in the image."""
    x, grid = call.args[:2]
    result = output(book, call, x, grid)
    for value in (x, result):
        told_apart(book, value, range(2, x.ndim), "positions of an image")
    book.same(result, 0, grid, 0)
    book.pin(grid, range(1, grid.ndim), "places in an image")
    book.neutral(grid)
    return passed(book, x, result, without(x, range(2, x.ndim)))


@rule("affine_grid_generator")
def affine_grid(book: Book, call: Call) -> Value:
    """Places (batch, …, coordinates) as a linear function of (batch, coordinates, coordinates + 1)."""
    theta = call.args[0]
    result = output(book, call, theta)
    last = result.ndim - 1
    told_apart(book, theta, [2], "coordinates of a grid")
    told_apart(book, result, range(1, last), "places in an image")
    return passed(book, theta, result, [0, *(None,) * (last - 1), 1])


_TRANSFORMED = ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")


@rule(*(f"fft_{name}{count}" for name in _TRANSFORMED for count in ("", 2, "n")), "_fft_r2c", "_fft_c2r", "_fft_c2c")
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
