"""Pieces that join streams: sums, products, concatenations, gates, choices; and what is cut and joined again."""

from fuzz.pieces.source import ANY, Kind, Source, divisors, fits, piece


@piece(*ANY, weight=2)
def residual(s: Source, k: Kind) -> Kind:
    hidden = s.width()
    other = s.affine(k.wide(hidden), k.features, s.branch(k, hidden))
    s.do(s.choice(["x = x + {}", "x = x - {}", "x = 0.5 * x + {}", "x = x * {}", "x += {}"]).format(other))
    return k


@piece(*ANY)
def two_branches(s: Source, k: Kind) -> Kind:
    out = s.width((3, 4, 6))
    left, right = s.branch(k, out), s.branch(k, out)
    form = s.choice([
        "{} + {}", "{} * {}", "torch.maximum({}, {})", "torch.minimum({}, {})", "{} - {}", "torch.lerp({}, {}, 0.3)",
        "torch.addcmul({0}, {0}, {1})", "torch.atan2({}, {})", "torch.hypot({}, {})", "{} / (1 + {}.abs())",
        "torch.stack([{}, {}]).sum(0)", "torch.stack([{}, {}], -1).amax(-1)", "torch.where({0} > {1}, {0}, {1})",
    ])  # fmt: skip
    s.do(f"x = {form.format(left, right)}")
    return k.wide(out)


@piece(*ANY)
def concatenation(s: Source, k: Kind) -> Kind:
    sizes = [s.width((2, 3, 4))]
    parts = [s.branch(k, sizes[0])]
    if s.chance(0.6):
        parts.append("x")
        sizes.append(k.features)
    else:
        sizes.append(s.width((2, 3, 4)))
        parts.append(s.branch(k, sizes[1]))
    if s.chance(0.15):
        parts.append(parts[0])
        sizes.append(sizes[0])
    order = list(range(len(parts)))
    s.rng.shuffle(order)
    s.do(f"x = torch.cat([{', '.join(parts[i] for i in order)}], {k.dim})")
    return k.wide(sum(sizes))


@piece("flat", "image")
def stacking(s: Source, k: Kind) -> Kind:
    """Streams beside each other on an axis of their own, then mixed, reduced or flattened."""
    left, right = s.branch(k), s.branch(k)
    form = s.choice(["flatten", "flatten inner", "weights", "max", "index"])
    if form == "flatten":
        s.do(f"x = torch.stack([{left}, {right}], 1).flatten(1, 2)")
        return k.wide(2 * k.features)
    if form == "flatten inner":
        s.do(f"x = torch.stack([{left}, {right}], 2).flatten(1, 2)")
        return k.wide(2 * k.features)
    if form == "weights":
        s.do(f"x = torch.einsum('s,sb...->b...', {s.parameter(2)}.softmax(0), torch.stack([{left}, {right}]))")
    elif form == "max":
        s.do(f"x = torch.stack([{left}, {right}, x], 1).max(1).values")
    else:
        s.do(f"x = torch.stack([{left}, {right}])[{s.choice([0, 1, -1])}]")
    return k


@piece(*ANY)
def gate(s: Source, k: Kind) -> Kind:
    form = s.choice(["unit", "one", "highway", "vector", "where"])
    if form == "unit":
        s.do(f"x = x * torch.sigmoid({s.affine(k, k.features)})")
    elif form == "one":
        s.do(f"x = x * {s.activation(s.affine(k, 1))}")
    elif form == "highway":
        t = s.keep(f"torch.sigmoid({s.affine(k, k.features)})")
        s.do(f"x = {t} * {s.branch(k)} + (1 - {t}) * x")
    elif form == "vector":
        s.do(f"x = x * {k.lift(f'torch.sigmoid({s.parameter(k.features)})')}")
    else:
        s.do(f"x = torch.where({s.affine(k, k.features)} > 0, {s.branch(k)}, x)")
    return k


@piece(*ANY)
def rare_branch(s: Source, k: Kind) -> Kind:
    """A branch that small inputs do not enter."""
    bound = s.choice(["5", "20", "1000"])
    s.do(f"x = torch.where(x.sum({k.dim}, keepdim=True) > {bound}, {s.branch(k)}, {s.branch(k)})")
    return k


@piece(*ANY)
def parts_apart(s: Source, k: Kind) -> Kind:
    """The stream in two parts, which go different ways and are joined again."""
    fits(k.features >= 3)
    x = "x"
    if s.chance(0.7):
        x = s.branch(k)
    cut = s.choice(range(1, k.features))
    if s.chance(0.4) and k.features % 2 == 0:
        cut = k.features // 2
    left, right = s.name(), s.name()
    if cut * 2 == k.features and s.chance(0.4):
        s.do(f"{left}, {right} = {x}.chunk(2, {k.dim})")
    elif s.chance(0.5):
        s.do(f"{left}, {right} = {x}.split([{cut}, {k.features - cut}], {k.dim})")
    else:
        s.do(f"{left}, {right} = {x}.narrow({k.dim}, 0, {cut}), {x}.narrow({k.dim}, {cut}, {k.features - cut})")
    if s.chance(0.5):
        right = s.branch(k.wide(k.features - cut), None, right)
    if s.chance(0.3):
        left = s.keep(s.activation(left))
    if cut * 2 == k.features and s.chance(0.4):
        s.do(f"x = {left} {s.choice('+*-')} {right}")
        return k.wide(cut)
    first, second = (left, right) if s.chance(0.6) else (right, left)
    s.do(f"x = torch.cat([{first}, {second}], {k.dim})")
    return k


@piece(*ANY)
def overlapping_parts(s: Source, k: Kind) -> Kind:
    fits(k.features >= 4)
    x, n = s.branch(k), k.features - 1
    s.do(f"x = {x}.narrow({k.dim}, 0, {n}) {s.choice('+*')} {x}.narrow({k.dim}, 1, {n})")
    return k.wide(n)


@piece("flat", "image", weight=2)
def channel_shuffle(s: Source, k: Kind) -> Kind:
    groups = s.choice(divisors(k.features))
    if s.chance(0.6) or k.name == "flat":
        s.do(f"x = x.unflatten(1, ({groups}, {k.features // groups})).transpose(1, 2).flatten(1, 2)")
    else:
        s.do(f"x = {s.choice(['F.channel_shuffle', 'torch.channel_shuffle', 'F.native_channel_shuffle'])}(x, {groups})")
    return k


@piece("sequence", "image")
def modulation(s: Source, k: Kind) -> Kind:
    """Scales and shifts of all positions from a summary of them."""
    dims = 1 if k.name == "sequence" else (2, 3)
    inner = s.keep(s.activation(f"{s.module(f'nn.Linear({k.features}, {2 * k.features})')}(x.mean({dims}))"))
    a, b = s.name(), s.name()
    s.do(f"{a}, {b} = {inner}.chunk(2, 1)")
    tail = "[:, None]" if k.name == "sequence" else "[:, :, None, None]"
    s.do(f"x = x * {a}{tail} + {b}{tail}")
    return k


@piece(*ANY)
def dense_connections(s: Source, k: Kind) -> Kind:
    """Each layer reads everything before it."""
    first = s.branch(k, 2)
    both = s.keep(f"torch.cat([x, {first}], {k.dim})")
    second = s.branch(k.wide(k.features + 2), 2, both)
    s.do(f"x = torch.cat([{both}, {second}], {k.dim})")
    return k.wide(k.features + 4)


@piece(*ANY)
def masked(s: Source, k: Kind) -> Kind:
    """A mask over units: a buffer that is not trained."""
    random = s.random_tensor(f"torch.rand({k.features}")
    if s.chance(0.5):
        mask = k.lift(s.buffer(f"{random} > 0.4"))
        form = s.choice(["x * {}", "torch.where({}, x, {p})", "x.masked_fill({}, 0.5)"])
        s.do(f"x = {form.format(mask, p=s.parameter() if '{p}' in form else '')}")
    else:
        mask = k.lift(s.buffer(s.choice([f"({random} > 0.4).double()", random])))
        s.do(f"x = {s.branch(k)} * {mask}")
    return k
