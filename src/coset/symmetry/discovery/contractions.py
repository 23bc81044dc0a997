"""Rules of products that sum over units: linear maps, matrix products, convolutions, attention."""

from collections.abc import Sequence

from coset.symmetry.discovery.calls import Call
from coset.symmetry.discovery.norms import normalized_over
from coset.symmetry.discovery.relations import Book, Power, Value, broadcast
from coset.symmetry.discovery.rules import output, passed, rule
from coset.symmetry.discovery.terms import fresh


@rule("linear")
def linear(book: Book, call: Call) -> Value:
    """x Wᵀ + b."""
    x, weight, bias = (*call.args, None)[:3]
    result = output(book, call, x, weight, bias)
    if weight.ndim == 1:
        letters = "abcdefgh"[: x.ndim - 1]
        einsum(book, result, letters, (x, weight), (f"{letters}k", "k"))
        if bias is not None:
            passed(book, bias, result, broadcast(result.shape, bias))
        return result
    last = result.ndim - 1
    left = Power(x, (*range(last), None))
    right = Power(weight, (*(None,) * last, 0))
    book.multiply(result, [left, right], [(x.ndim - 1, 1)])
    if bias is not None:
        passed(book, bias, result, broadcast(result.shape, bias))
    return result


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
    batch = "abcdefgh"
    left = batch[8 - max(0, x.ndim - 2) :] + ("ik" if x.ndim > 1 else "k")
    right = batch[8 - max(0, y.ndim - 2) :] + ("kj" if y.ndim > 1 else "k")
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
    batch = "abcdefgh"[: x.ndim - 1]
    einsum(book, result, f"{batch}k", (x, y, weight), (f"{batch}i", f"{batch}j", "kij"))
    if bias is not None:
        passed(book, bias, result, broadcast(result.shape, bias))
    return result


@rule("addmm", "baddbmm", "addmv")
def addmm(book: Book, call: Call) -> Value:
    """b + x·y."""
    bias, x, y = call.args[:3]
    result = output(book, call, bias, x, y)
    words = {("addmm"): ("ik", "kj", "ij"), "baddbmm": ("aik", "akj", "aij"), "addmv": ("ik", "k", "i")}[call.name]
    einsum(book, result, words[2], (x, y), words[:2])
    passed(book, bias, result, broadcast(result.shape, bias))
    return result


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
        book.pin(value, range(value.ndim - spatial, value.ndim), "positions of a convolution")
        book.neutral(value, dims=range(value.ndim - spatial, value.ndim))
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
        shape = [*value.shape[:dim], groups, value.shape[dim] // groups, *value.shape[dim + 1 :]]
        apart = book.like(shape, [value])
        book.regroup(value, apart)
        return apart

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
    batch = "abcdefgh"[: q.ndim - 2]
    shape = (*q.shape[:-1], k.shape[-2])
    if k.shape[-3:-2] != q.shape[-3:-2] and call.argument("enable_gqa", False):
        k, v = (_for_each_query(book, value, q.shape[-3]) for value in (k, v))
    scores = book.like(shape, [q, k])
    einsum(book, scores, f"{batch}ts", (q, k), (f"{batch}td", f"{batch}sd"))
    book.neutral(scores)
    if isinstance(mask, Value):
        book.meet(scores, mask, broadcast(shape, mask))
        book.neutral(mask)
    if call.kwargs.get("is_causal") or (len(call.args) > 5 and call.args[5]):
        book.pin(scores, (scores.ndim - 2, scores.ndim - 1), "causal mask")
    normalized_over(book, scores, scores.ndim - 1)
    return einsum(book, result, f"{batch}te", (scores, v), (f"{batch}ts", f"{batch}se"))


def _for_each_query(book: Book, value: Value, heads: int) -> Value:
    """Keys or values of fewer heads, each repeated for the query heads of its group."""
    at = value.ndim - 2
    count = heads // value.shape[at - 1]
    spread = book.like([*value.shape[:at], count, *value.shape[at:]], [value])
    passed(book, value, spread, [*range(at), None, *range(at, value.ndim)])
    result = book.like([*value.shape[: at - 1], heads, *value.shape[at:]], [value])
    book.regroup(spread, result)
    return result
