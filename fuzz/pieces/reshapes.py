"""Pieces without weights: views, reductions, orders, indices, shifts."""

from fuzz.pieces.source import ANY, Kind, Source, divisors, fits, piece


@piece("sequence", "image")
def reduction(s: Source, k: Kind) -> Kind:
    """Over positions, or (images) over one side of them."""
    dims = 1 if k.name == "sequence" else s.choice([(2, 3), (2, 3), 2, 3])
    form = s.choice(
        ["mean({})", "sum({})", "amax({})", "norm(dim={})", "logsumexp({})", "std({})", "square().mean({})"]
    )
    s.do(f"x = x.{form.format(dims)}")
    if k.name == "sequence" or dims == (2, 3):
        return Kind("flat", k.features)
    s.do("x = x.mT")
    return Kind("sequence", k.features, (k.size[1 if dims == 2 else 0],))


@piece("sequence")
def one_position(s: Source, k: Kind) -> Kind:
    s.do(s.choice(["x = x[:, -1]", "x = x[:, 0]", "x = x.select(1, 1)", "x = x[:, torch.tensor(1)]"]))
    return Kind("flat", k.features)


@piece("sequence", "image")
def flattening(s: Source, k: Kind) -> Kind:
    fits(k.entries <= 40)
    s.fixed = True
    if s.chance(0.3):
        s.do("x = x.transpose(1, 2)")
    s.do(s.choice(["x = x.flatten(1)", "x = x.reshape(x.shape[0], -1)", "x = x.reshape(x.shape[0], -1).contiguous()"]))
    return Kind("flat", k.entries)


@piece("flat")
def unflattening(s: Source, k: Kind) -> Kind:
    parts = [d for d in divisors(k.features) if d > 1 and k.features // d > 1]
    fits(bool(parts))
    first = s.choice(parts)
    s.do(f"x = x.unflatten(1, ({first}, {k.features // first}))")
    if s.chance(0.3):
        s.do("x = x.transpose(1, 2)")
        first = k.features // first
    return Kind("sequence", k.features // first, (first,))


@piece("image")
def pixels_as_sequence(s: Source, k: Kind) -> Kind:
    fits(k.size[0] * k.size[1] <= 36)
    s.do(s.choice(["x = x.flatten(2).transpose(1, 2)", "x = x.permute(0, 2, 3, 1).flatten(1, 2)"]))
    return Kind("sequence", k.features, (k.size[0] * k.size[1],))


@piece("sequence")
def sequence_as_image(s: Source, k: Kind) -> Kind:
    form = s.choice(["one channel", "heads", "columns"])
    if form == "one channel":
        s.do("x = x[:, None]")
        return Kind("image", 1, (k.size[0], k.features))
    if form == "heads":
        parts = [d for d in divisors(k.features) if d > 1 and k.features // d > 1]
        fits(bool(parts))
        d = s.choice(parts)
        s.do(f"x = x.unflatten(2, ({d}, {k.features // d})).permute(0, {s.choice(['2, 1, 3', '2, 3, 1'])})")
        size = (k.size[0], k.features // d) if "2, 1, 3" in s.done[-1] else (k.features // d, k.size[0])
        return Kind("image", d, size)
    fits(k.size[0] % 2 == 0 and k.size[0] >= 4)
    s.fixed = True
    s.do(f"x = x.mT.unflatten(2, (2, {k.size[0] // 2}))")
    return Kind("image", k.features, (2, k.size[0] // 2))


@piece("flat")
def cut_in_two_ways(s: Source, k: Kind) -> Kind:
    """(a, b) and then (b, a) of one dimension, each with something that tells its parts apart."""
    parts = [d for d in divisors(k.features) if d > 1 and k.features // d > 1]
    fits(bool(parts))
    a = s.choice(parts)
    b = k.features // a
    if s.chance(0.5):
        s.do(f"x = x.unflatten(1, ({a}, {b})).softmax(2).flatten(1)")
    else:
        s.do(f"x = (x.reshape(-1, {a}, {b}) * {s.parameter(a, 1)}).flatten(1)")
    second = s.choice([
        "F.normalize({}, dim=2).flatten(1)", "{}.transpose(1, 2).flatten(1)", "({} * {p}).flatten(1)",
        "{}.cumsum(2).flatten(1)",
    ])  # fmt: skip
    second = second.format(f"x.unflatten(1, ({b}, {a}))", p=s.parameter(a) if "{p}" in second else "")
    s.do(f"x = {second}")
    return k


@piece(*ANY)
def blocks(s: Source, k: Kind) -> Kind:
    """Features as (blocks, within a block), with an operation over one of the two."""
    parts = [d for d in divisors(k.features) if d > 1 and k.features // d > 1]
    fits(bool(parts))
    a = s.choice(parts)
    b, d = k.features // a, k.dim
    which = d + s.choice([0, 1])
    x = s.keep(f"{s.affine(k, k.features)}.unflatten({d}, ({a}, {b}))")
    form = s.choice([
        "{x}.softmax({w})", "F.normalize({x}, dim={w})", "{x} - {x}.mean({w}, keepdim=True)", "{x}.sort({w}).values",
        "{x}.cumsum({w})", "{x}.flip({w})", "{x} * {x}.amax({w}, keepdim=True)", "{x}.roll(1, {w})",
    ])  # fmt: skip
    s.do(f"x = ({form.format(x=x, w=which)}).flatten({d}, {d + 1})")
    return k


@piece(*ANY)
def block_matrices(s: Source, k: Kind) -> Kind:
    """A matrix for each block of features."""
    fits(k.name != "image")
    parts = [d for d in divisors(k.features) if d > 1 and k.features // d > 1]
    fits(bool(parts))
    a = s.choice(parts)
    b, out = k.features // a, s.choice([2, 3, k.features // a])
    w = s.parameter(a, b, out)
    batch = "n" if k.name == "flat" else "nt"
    if s.chance(0.5):
        s.do(f"x = torch.einsum('{batch}ab,abo->{batch}ao', x.unflatten(-1, ({a}, {b})), {w}).flatten(-2)")
    else:
        s.do(f"x = (x.unflatten(-1, ({a}, 1, {b})) @ {w}).flatten(-3)")
    return k.wide(a * out)


@piece(*ANY)
def order(s: Source, k: Kind) -> Kind:
    """Sorting and picking the largest, over features or positions."""
    dim = s.choice([k.dim, *range(1, len(k.shape(1)))])
    x = s.branch(k) if s.chance(0.6) else "x"
    form = s.choice(["sort", "topk", "median", "cummax", "kthvalue", "argsort"])
    if form == "sort":
        s.do(f"x = {x}.sort({dim}, descending={s.chance(0.5)}).values")
    elif form == "cummax":
        s.do(f"x = {x}.cummax({dim}).values")
    elif form == "median":
        s.do(f"x = {x} - {x}.median({dim}, keepdim=True).values")
    elif form == "kthvalue":
        fits(k.shape(1)[dim] >= 2)
        s.do(f"x = {x} * ({x} >= {x}.kthvalue(2, {dim}, keepdim=True).values)")
    elif form == "argsort":
        s.do(f"x = {x}.gather({dim}, {x}.argsort({dim}))")
    else:
        fits(k.shape(1)[dim] >= 2)
        s.do(f"x = {x}.topk(2, {dim}).values")
        return k.wide(2) if dim == k.dim else Kind(k.name, k.features, _with(k, dim, 2))
    return k


def _with(k: Kind, dim: int, size: int) -> tuple[int, ...]:
    sizes = list(k.shape(1))
    sizes[dim] = size
    return tuple(sizes[1:-1] if k.name == "sequence" else sizes[2:])


@piece(*ANY)
def indexing(s: Source, k: Kind) -> Kind:
    """Features picked, shifted, turned around or repeated by position."""
    d, n = k.dim, k.features
    x = s.branch(k) if s.chance(0.5) else "x"
    picked = [s.rng.randrange(n) for _ in range(s.choice([2, 3, n]))]
    form = s.choice(
        ["index_select", "index", "roll", "flip", "pad", "repeat", "step", "gather", "interleave", "where", "slice"]
    )
    if form == "index_select":
        s.do(f"x = {x}.index_select({d}, torch.tensor({picked}))")
        return k.wide(len(picked))
    if form == "index":
        s.do(f"x = {x}[..., {picked}]" if d != 1 else f"x = {x}[:, {picked}]")
        return k.wide(len(picked))
    if form == "roll":
        s.do(f"x = {x}.roll({s.choice([1, -1, 2])}, {d})")
    elif form == "flip":
        s.do(f"x = {x}.flip({d})")
    elif form == "pad":
        zeros = "0, 0, " * (len(k.shape(1)) - 1 - d)
        s.do(f"x = F.pad({x}, ({zeros}1, 2), value={s.choice(['0.0', '0.7'])})")
        return k.wide(n + 3)
    elif form == "repeat":
        times = ["2" if j == d else "1" for j in range(len(k.shape(1)))]
        s.do(s.choice([f"x = torch.cat([{x}, {x}], {d})", f"x = {x}.repeat({', '.join(times)})"]))
        return k.wide(2 * n)
    elif form == "step":
        fits(n >= 4)
        s.do(f"x = {x}[..., ::2]" if d != 1 else f"x = {x}[:, ::2]")
        return k.wide((n + 1) // 2)
    elif form == "gather":
        fits(k.name == "flat")
        s.do(f"x = {x}.gather(1, torch.tensor([{picked}]).expand(x.shape[0], -1))")
        return k.wide(len(picked))
    elif form == "interleave":
        s.do(f"x = {x}.repeat_interleave(2, {d})")
        return k.wide(2 * n)
    elif form == "where":
        kept = [bool(s.rng.randrange(2)) for _ in range(n)]
        s.do(f"x = torch.where({k.lift(f'torch.tensor({kept})')}, {x}, x)")
    else:
        fits(n >= 3)
        s.do(f"x = {x}.narrow({d}, {s.choice([0, 1])}, {n - 1})")
        return k.wide(n - 1)
    return k


@piece("sequence", "image")
def shift_of_positions(s: Source, k: Kind) -> Kind:
    dim = 1 if k.name == "sequence" else s.choice([2, 3])
    s.do(s.choice([
        f"x = x.roll(1, {dim})", f"x = x.flip({dim})", f"x = x + x.roll(1, {dim})", f"x = x.cumsum({dim})",
        f"x = torch.cat([x.narrow({dim}, 1, x.shape[{dim}] - 1), x.narrow({dim}, 0, 1)], {dim})",
        f"x = x - x.mean({dim}, keepdim=True)", f"x = x.softmax({dim})", f"x = x * x.amax({dim}, keepdim=True)",
    ]))  # fmt: skip
    return k


@piece("image")
def pooling(s: Source, k: Kind) -> Kind:
    fits(min(k.size) >= 4 and all(n % 2 == 0 for n in k.size))
    form = s.choice([
        "F.max_pool2d(x, 2)", "F.avg_pool2d(x, 2)", "F.adaptive_avg_pool2d(x, 2)", "F.adaptive_max_pool2d(x, 2)",
        "F.lp_pool2d(x.abs(), 2, 2)", "F.interpolate(x, scale_factor=0.5)",
    ])  # fmt: skip
    s.do(f"x = {form}")
    return Kind("image", k.features, (2, 2) if "adaptive" in s.done[-1] else tuple(n // 2 for n in k.size))


@piece("image")
def resizing(s: Source, k: Kind) -> Kind:
    fits(max(k.size) <= 4)
    mode = s.choice(["mode='nearest'", "mode='bilinear'", "mode='bilinear', align_corners=True"])
    s.do(f"x = F.interpolate(x, scale_factor=2, {mode})")
    return Kind("image", k.features, tuple(2 * n for n in k.size))


@piece("image")
def pixel_shuffle(s: Source, k: Kind) -> Kind:
    if k.features % 4 == 0:
        s.do("x = F.pixel_shuffle(x, 2)")
        return Kind("image", k.features // 4, tuple(2 * n for n in k.size))
    fits(all(n % 2 == 0 for n in k.size) and min(k.size) >= 4 and k.features <= 4)
    s.do("x = F.pixel_unshuffle(x, 2)")
    return Kind("image", k.features * 4, tuple(n // 2 for n in k.size))


@piece("image")
def patches(s: Source, k: Kind) -> Kind:
    fits(all(n % 2 == 0 for n in k.size) and k.features <= 4)
    s.do("x = F.unfold(x, 2, stride=2).mT")
    return Kind("sequence", 4 * k.features, (k.size[0] * k.size[1] // 4,))


@piece("image")
def transposed_image(s: Source, k: Kind) -> Kind:
    form = s.choice(["0, 1, 3, 2", "0, 2, 1, 3", "0, 3, 2, 1"])
    s.do(f"x = x.permute({form})")
    c, (h, w) = k.features, k.size
    if form == "0, 1, 3, 2":
        return Kind("image", c, (w, h))
    s.fixed = True
    return Kind("image", h, (c, w)) if form == "0, 2, 1, 3" else Kind("image", w, (h, c))


@piece("sequence")
def transposed_sequence(s: Source, k: Kind) -> Kind:
    s.fixed = True
    s.do(s.choice(["x = x.mT", "x = x.transpose(1, 2).contiguous()", "x = torch.einsum('btc->bct', x)"]))
    return Kind("sequence", k.size[0], (k.features,))


@piece(*ANY)
def statistics(s: Source, k: Kind) -> Kind:
    """Sums, extremes and norms over all features, kept beside the stream or multiplied with it."""
    fits(k.features >= 2)
    d = k.dim
    x = s.branch(k)
    form = s.choice(["sum", "amax", "norm", "logsumexp", "mean", "prod", "var"])
    value = f"{x}.{form}(dim={d}, keepdim=True)"
    if s.chance(0.5):
        s.do(f"x = x * {value}")
        return k
    s.do(f"x = torch.cat([x, {value}], {d})")
    return k.wide(k.features + 1)


@piece("flat", "sequence")
def pairwise(s: Source, k: Kind) -> Kind:
    """Differences or products of all pairs, of features or of positions."""
    if k.name == "sequence":
        form = s.choice(["x @ x.mT @ x", "torch.cdist(x, x) @ x", "(x[:, :, None] - x[:, None]).relu().sum(2)"])
        s.do(f"x = {form}")
        return k
    x = s.branch(k)
    form = s.choice([
        "({0}[:, :, None] - {0}[:, None]).relu().sum(2)", "({0}[:, :, None] * {0}[:, None]).sum(2)",
        "({0}[:, :, None] * {0}[:, None]).amax(1)",
    ])  # fmt: skip
    s.do(f"x = {form.format(x)}")
    return k


@piece("sequence")
def message_passing(s: Source, k: Kind) -> Kind:
    """Positions as nodes of a graph whose edges are written down."""
    s.fixed = True
    n = k.size[0]
    start = [s.rng.randrange(n) for _ in range(n + 1)]
    end = [s.rng.randrange(n) for _ in range(n + 1)]
    sent = s.keep(f"{s.branch(k)}[:, {start}]")
    if s.chance(0.5):
        s.do(f"x = x.index_add(1, torch.tensor({end}), {sent})")
    else:
        s.do(f"x = x.scatter_add(1, torch.tensor({end})[None, :, None].expand_as({sent}), {sent})")
    return k
