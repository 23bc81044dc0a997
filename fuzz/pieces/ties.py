"""Pieces that share weights, leave some unread, or give them odd shapes."""

from fuzz.pieces.source import ANY, Kind, Source, fits, piece


@piece(*ANY)
def same_layer_twice(s: Source, k: Kind) -> Kind:
    layer = s.affine(k, k.features, "{}")
    s.do(f"x = {layer.format(s.keep(s.activation(layer.format('x'))))}")
    return k


@piece("flat", "sequence")
def tied_decoder(s: Source, k: Kind) -> Kind:
    """Decoding by the transposed weight of the encoder, as an expression, a parameter, or through storage."""
    out = s.width()
    encoder = s.module(f"nn.Linear({k.features}, {out}, bias={s.chance(0.5)})")
    inner = s.keep(s.activation(f"{encoder}(x)"))
    form = s.choice(["expression", "square", "storage", "matmul"])
    if form == "expression":
        s.do(f"x = F.linear({inner}, {encoder}.weight.T{f', {s.parameter(k.features)}' if s.chance(0.5) else ''})")
    elif form == "matmul":
        s.do(f"x = {inner} @ {encoder}.weight")
    elif form == "storage":
        decoder = s.module(f"nn.Linear({out}, {k.features}, bias={s.chance(0.5)})")
        s.then(f"{decoder}.weight.data = {encoder}.weight.data.t()")
        s.do(f"x = {decoder}({inner})")
    else:
        first = s.module(f"nn.Linear({out}, {out})")
        second = s.module(f"nn.Linear({out}, {out})")
        s.then(f"{second}.weight = {first}.weight")
        s.do(f"x = {second}({s.activation(f'{first}({inner})')})")
        return k.wide(out)
    return k


@piece("flat", "sequence")
def tied_through_storage(s: Source, k: Kind) -> Kind:
    """Two layers over one storage: the same numbers, a part of them, or an overlap."""
    out = s.width((3, 4))
    if s.chance(0.5):
        first, second = (s.module(f"nn.Linear({k.features}, {out})") for _ in range(2))
        s.then(f"{second}.weight.data = {first}.weight.data")
        s.do(f"x = {s.activation(f'{first}(x)')} {s.choice('+*-')} {s.activation(f'{second}(x)')}")
        return k.wide(out)
    table = s.parameter(out + 1, k.features)
    first, second = (s.module(f"nn.Linear({k.features}, {out})") for _ in range(2))
    s.then(f"{first}.weight.data, {second}.weight.data = {table}.data[:-1], {table}.data[1:]")
    s.do(f"x = {s.activation(f'{first}(x)')} * {second}(x) + {s.choice(['0.1', f'{table}.sum()'])}")
    return k.wide(out)


@piece("flat", "sequence")
def tied_queries_and_keys(s: Source, k: Kind) -> Kind:
    fits(k.name == "sequence")
    layer = s.module(f"nn.Linear({k.features}, {s.width((2, 3, 4))})")
    s.do(f"x = torch.softmax({layer}(x) @ {layer}(x).mT, -1) @ {s.affine(k, k.features)}")
    return k


@piece(*ANY)
def odd_parameters(s: Source, k: Kind) -> Kind:
    """Parameters of shape () and (1,), on a stream or as a temperature; and some that nobody reads."""
    if s.chance(0.4):
        s.parameter(k.features)
    if s.chance(0.2):
        s.module(f"nn.Linear({k.features}, {s.width()})")
    scalar = s.parameter(*s.choice([(), (), (1,), (1, 1)]))
    form = s.choice([
        "x * {p}", "x + {p}", "F.softmax(x * {p}, {d})", "x.abs() ** {p}.abs()", "x * {p}.exp()",
        "torch.relu(x) * {p} + x", "x * torch.sigmoid({p}) + {b} * (1 - torch.sigmoid({p}))",
        "torch.where(x > {p}, x, 0.2 * x)", "torch.tanh(x / {p})",
    ])  # fmt: skip
    s.do(f"x = {form.format(p=scalar, d=k.dim, b=s.branch(k) if '{b}' in form else '')}")
    return k


@piece("flat", "sequence")
def unread_entries(s: Source, k: Kind) -> Kind:
    """Tables of which only a part is read."""
    out = s.width((3, 4))
    w = s.parameter(out + 2, k.features + 2)
    rows, columns = s.choice([0, 1, 2]), s.choice([0, 1, 2])
    part = f"{w}[{rows}:{rows + out}, {columns}:{columns + k.features}]"
    s.do(f"x = {s.activation(s.keep(f'F.linear(x, {part})'))}")
    return k.wide(out)


@piece(*ANY)
def several_parts_of_one_parameter(s: Source, k: Kind) -> Kind:
    """One tensor holds two layers."""
    fits(k.name != "image")
    out = s.width((3, 4))
    if s.chance(0.5):
        w = s.parameter(2, out, k.features)
        first, second = f"{w}[0]", f"{w}[1]"
    else:
        w = s.parameter(2 * out, k.features)
        first, second = f"{w}[:{out}]", f"{w}[{out}:]"
    s.do(f"x = {s.activation(s.keep(f'F.linear(x, {first})'))} {s.choice('*+')} F.linear(x, {second})")
    return k.wide(out)


@piece(*ANY)
def detour(s: Source, k: Kind) -> Kind:
    """Things that must change nothing: casts there and back, clones, in-place writes into new tensors."""
    form = s.choice([
        "x = x.clone()", "x = x + 0", "x = x * 1.0", "x = x.to(torch.float64)", "x = x.detach() + x - x.detach()",
        "x = torch.zeros_like(x).copy_(x)", "x = x.expand_as(x)", "x = x.squeeze(0) if x.shape[0] == 0 else x",
        "x = x.clone(); x[:, 0] = 0", "x = x.clone(); x[:, 0] *= 2", "x = torch.nan_to_num(x)", "x = x.mul(-1).neg()",
        "x = torch.cat([x[:, :1], x[:, 1:]], 1)", "x = torch.stack(x.unbind(1), 1)", "x = torch.cat(x.split(1, 1), 1)",
        "x = torch.stack([x, x], 0).mean(0)", "x = x.movedim(1, -1).movedim(-1, 1)", "x = x.clamp(-3, 3)",
    ])  # fmt: skip
    x = s.branch(k)
    s.do(f"x = {x}")
    s.do(form)
    return k
