"""Rules of products that sum over units: linear maps, matrix products, convolutions, attention."""

from collections.abc import Sequence

from coset.symmetry.discovery.calls import Call
from coset.symmetry.discovery.relations import Book, Power, Value
from coset.symmetry.discovery.rules import added_to, beside, lifted, output, passed, rule
from coset.symmetry.discovery.terms import fresh

_LETTERS = "abcdefgh"
"""Names of dimensions in contractions; those of special dimensions come behind them."""


@rule("linear")
def linear(book: Book, call: Call) -> Value:
    """x Wᵀ + b."""
    x, weight, bias = (*call.args, None)[:3]
    batch, unit = _LETTERS[: x.ndim - 1], "o" if weight.ndim == 2 else ""
    result = output(book, call, x, weight, bias)
    return added_to(book, einsum(book, result, batch + unit, (x, weight), (f"{batch}k", f"{unit}k")), bias)


def einsum(book: Book, result: Value, letters: str, operands: Sequence[Value], words: Sequence[str]) -> Value:
    """The general contraction, one letter a dimension; a dimension of size 1 against a larger one is broadcast."""
    sizes = {
        c: max(v.shape[w.index(c)] for v, w in zip(operands, words, strict=True) if c in w) for c in "".join(words)
    }

    def place(value: Value, word: str, letter: str) -> int | None:
        at = word.find(letter)
        return None if at < 0 or (value.shape[at] == 1 and sizes[letter] != 1) else at

    factors = [Power(v, tuple(place(v, w, c) for c in letters)) for v, w in zip(operands, words, strict=True)]
    summed = [c for c in dict.fromkeys("".join(words)) if c not in letters]
    contracted = [[place(v, w, c) for v, w in zip(operands, words, strict=True)] for c in summed]
    book.multiply(result, factors, contracted)
    return result


def identity(book: Book, size: int) -> Value:
    """δ_ij over units not known yet: D δ D⁻¹ = δ, both dimensions are the same and their charges cancel."""
    units = fresh(size)
    delta = book.value((size, size), [units, units])
    # Σ_ij δ_ij δ_ji cancels the charge of one dimension against the other's; δ as a whole carries none.
    product = book.value((), [])
    book.multiply(product, [Power(delta, ()), Power(delta, ())], [(0, 1), (1, 0)])
    book.neutral(passed(book, delta, book.value((), []), ()))
    return delta


@rule("matmul", "mm", "bmm", "mv", "dot")
def matmul(book: Book, call: Call) -> Value:
    """Batched matrix product with broadcasting."""
    x, y = call.args[:2]
    left = _LETTERS[8 - max(0, x.ndim - 2) :] + ("ik" if x.ndim > 1 else "k")
    right = _LETTERS[8 - max(0, y.ndim - 2) :] + ("kj" if y.ndim > 1 else "k")
    result = output(book, call, x, y)
    longest = max(left[:-2] if x.ndim > 1 else "", right[:-2] if y.ndim > 1 else "", key=len)
    letters = longest + ("i" if x.ndim > 1 else "") + ("j" if y.ndim > 1 else "")
    return einsum(book, result, letters, (x, y), (left, right))


@rule("outer", "ger")
def outer(book: Book, call: Call) -> Value:
    """x yᵀ."""
    return einsum(book, output(book, call, *call.args[:2]), "ij", call.args[:2], ("i", "j"))


@rule("bilinear")
def bilinear(book: Book, call: Call) -> Value:
    """Σ x_i W_kij y_j + b_k."""
    x, y, weight, bias = (*call.args, None)[:4]
    result = output(book, call, x, y, weight, bias)
    batch = _LETTERS[: x.ndim - 1]
    einsum(book, result, f"{batch}k", (x, y, weight), (f"{batch}i", f"{batch}j", "kij"))
    return added_to(book, result, bias)


# Dimensions of x, of y and of their product.
_ADDED = {
    "addmm": ("ik", "kj", "ij"),
    "baddbmm": ("aik", "akj", "aij"),
    "addmv": ("ik", "k", "i"),
    "addbmm": ("aik", "akj", "ij"),
    "addr": ("i", "j", "ij"),
}


@rule(*_ADDED)
def addmm(book: Book, call: Call) -> Value:
    """b + x·y, with ``addbmm`` summed over all products, with ``addr`` b + x yᵀ."""
    bias, x, y = call.args[:3]
    *words, letters = _ADDED[call.name]
    return added_to(book, einsum(book, output(book, call, bias, x, y), letters, (x, y), words), bias)


@rule("einsum")
def explicit_einsum(book: Book, call: Call) -> Value:
    """As written; a letter repeated in one operand is a diagonal of it."""
    equation, operands = call.args[0].replace(" ", ""), list(call.args[1])
    words, _, letters = equation.partition("->")
    parts = words.split(",")
    if "..." in equation:
        longest = max(v.ndim - len(w.replace("...", "")) for v, w in zip(operands, parts, strict=True))
        spare = [c for c in "ABCDEFGH" if c not in equation][:longest]

        def fill(word: str, ndim: int) -> str:
            return word.replace("...", "".join(spare[longest - (ndim - len(word.replace("...", ""))) :]))

        parts = [fill(w, v.ndim) for v, w in zip(operands, parts, strict=True)]
        letters = letters.replace("...", "".join(spare)) if "->" in equation else letters
    if "->" not in equation:
        every = "".join(parts)
        letters = "".join(sorted(c for c in set(every) if every.count(c) == 1))
    result = output(book, call, *operands)
    for number in range(len(parts)):
        parts[number] = _without_repeats(book, operands, parts, number)
    return einsum(book, result, letters, operands, parts)


def _without_repeats(book: Book, operands: list[Value], words: list[str], number: int) -> str:
    """x_ii as Σ_j x_ij δ_ij: the word with new letters for repeated ones; every δ is a further operand."""
    word = ""
    for at, letter in enumerate(words[number]):
        if letter in word:
            spare = next(c for c in "IJKLMNOPQRSTUVWXYZ" if c not in "".join(words) and c not in word)
            operands.append(identity(book, operands[number].shape[at]))
            words.append(letter + spare)
            letter = spare
        word += letter
    return word


@rule("conv1d", "conv2d", "conv3d", "convolution", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def convolution(book: Book, call: Call) -> Value:
    """Channels contract, in groups that never mix; positions are told apart."""
    x, weight, bias = (*call.args, None)[:3]
    transposed = "transpose" in call.name or (call.name == "convolution" and call.args[6])
    groups = call.argument("groups", 1)
    result = output(book, call, x, weight, bias)
    spatial = weight.ndim - 2
    channel = x.ndim - spatial - 1
    for value in (x, result, weight):
        book.hold(value, range(value.ndim - spatial, value.ndim), "positions of a convolution")
    outside, inside = (1, 0) if transposed else (0, 1)
    if groups == 1:
        keep = tuple(range(channel)) if channel else ()
        left = Power(x, (*keep, *(None,) * (1 + spatial)))
        right = Power(weight, (*(None,) * channel, outside, *(None,) * spatial))
        book.multiply(result, [left, right], [(channel, inside)])
    else:
        _grouped(book, x, weight, result, groups, channel, transposed)
    if bias is not None:
        passed(book, bias, result, (*(None,) * channel, 0, *(None,) * spatial))
    return result


def _grouped(book: Book, x: Value, weight: Value, result: Value, groups: int, channel: int, transposed: bool) -> None:
    """Split the channels of input, weight and output into group × rest, contract within the group, and join again."""

    def taken_apart(value: Value, dim: int) -> Value:
        return book.reshaped(value, [*value.shape[:dim], groups, value.shape[dim] // groups, *value.shape[dim + 1 :]])

    spatial = weight.ndim - 2
    inputs, outputs = taken_apart(x, channel), taken_apart(result, channel)
    filters = taken_apart(weight, 0)
    # transposed: (group, in, out, …); plain: (group, out, in, …)
    outside, inside = (2, 1) if transposed else (1, 2)
    left = Power(inputs, (*range(channel + 1), *(None,) * (1 + spatial)))
    right = Power(filters, (*(None,) * channel, 0, outside, *(None,) * spatial))
    book.multiply(outputs, [left, right], [(channel + 1, inside)])


@rule("scaled_dot_product_attention")
def attention(book: Book, call: Call) -> Value:
    """softmax(q kᵀ + mask) v: the scores keep no scale or sign."""
    q, k, v = call.args[:3]
    mask = call.args[3] if len(call.args) > 3 else call.kwargs.get("attn_mask")
    result = output(book, call, *call.tensors())
    batch = _LETTERS[: q.ndim - 2]
    shape = (*q.shape[:-1], k.shape[-2])
    if k.shape[-3:-2] != q.shape[-3:-2] and call.argument("enable_gqa", False):
        k, v = (_for_each_query(book, value, q.shape[-3]) for value in (k, v))
    scores = book.like(shape, [q, k])
    einsum(book, scores, f"{batch}ts", (q, k), (f"{batch}td", f"{batch}sd"))
    book.neutral(scores)
    if isinstance(mask, Value):
        beside(book, scores, mask)
    if call.kwargs.get("is_causal") or (len(call.args) > 5 and call.args[5]):
        book.pin(scores, (scores.ndim - 2, scores.ndim - 1), "causal mask")
    book.sees_beside(scores, [scores.ndim - 1])
    return einsum(book, result, f"{batch}te", (scores, v), (f"{batch}ts", f"{batch}se"))


def _for_each_query(book: Book, value: Value, heads: int) -> Value:
    """Keys or values of fewer heads, each repeated for the query heads of its group."""
    at = value.ndim - 2
    spread = lifted(book, value, at, heads // value.shape[at - 1])
    return book.reshaped(spread, [*value.shape[: at - 1], heads, *value.shape[at:]])
