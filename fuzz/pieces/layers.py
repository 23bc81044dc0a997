"""Pieces with weights: dense layers and convolutions, recurrences, tables."""

from fuzz.pieces.source import ANY, Kind, Source, divisors, fits, piece


@piece(*ANY, weight=2)
def dense(s: Source, k: Kind) -> Kind:
    out = s.width()
    s.do(f"x = {s.affine(k, out)}")
    s.do(f"x = {s.activation('x')}")
    return k.wide(out)


@piece(*ANY)
def mlp(s: Source, k: Kind) -> Kind:
    hidden, out = s.width(), s.width()
    inner = s.keep(s.activation(s.affine(k, hidden)))
    s.do(f"x = {s.affine(k.wide(hidden), out, inner)}")
    return k.wide(out)


@piece(*ANY)
def prelu(s: Source, k: Kind) -> Kind:
    fits(k.name != "sequence")
    s.do(f"x = {s.module(f'nn.PReLU({s.choice([1, k.features])})')}({s.affine(k, k.features)})")
    return k


@piece(*ANY)
def glu(s: Source, k: Kind) -> Kind:
    out = s.width((3, 4, 6))
    form = s.choice(["fused", "chunks", "two", "flipped"])
    if form == "two":
        gate = s.keep(s.activation(s.affine(k, out)))
        s.do(f"x = {gate} * {s.affine(k, out)}")
        return k.wide(out)
    inner = s.keep(s.affine(k, 2 * out))
    if form == "fused":
        s.do(f"x = F.glu({inner}, {k.dim})")
        return k.wide(out)
    left, right = s.name(), s.name()
    s.do(f"{left}, {right} = {inner}.chunk(2, {k.dim})")
    s.do(f"x = {left} * {s.activation(right)}" if form == "chunks" else f"x = {s.activation(left)} * {right}")
    return k.wide(out)


@piece(*ANY)
def maxout(s: Source, k: Kind) -> Kind:
    out, pieces = s.width((2, 3, 4)), s.choice([2, 3])
    inner = s.affine(k, out * pieces)
    last = s.chance(0.5)
    sizes = (out, pieces) if last else (pieces, out)
    reduction = s.choice(["amax({})", "amin({})", "sum({})", "max({}).values", "logsumexp({})", "prod({})"])
    s.do(f"x = {inner}.unflatten({k.dim}, {sizes}).{reduction.format(k.dim + last)}")
    return k.wide(out)


@piece(*ANY)
def softmax(s: Source, k: Kind) -> Kind:
    s.do(
        f"x = {s.choice(['F.softmax', 'F.softmax', 'F.log_softmax', 'F.softmin'])}({s.affine(k, k.features)}, {k.dim})"
    )
    return k


@piece("flat", "sequence")
def bilinear(s: Source, k: Kind) -> Kind:
    out, other = s.width((3, 4)), s.branch(k)
    s.do(f"x = {s.module(f'nn.Bilinear({k.features}, {k.features}, {out})')}(x, {other})")
    return k.wide(out)


@piece("flat", "sequence")
def low_rank(s: Source, k: Kind) -> Kind:
    rank, out = s.width((2, 3, 4)), s.width()
    u, v = s.parameter(k.features, rank), s.parameter(rank, out)
    form = s.choice(
        ["x @ {u} @ {v}", "x @ ({u} @ {v})", "F.linear(x, ({u} @ {v}).T)", "torch.matmul(x, {u}).matmul({v})"]
    )
    s.do(f"x = {s.activation(s.keep(form.format(u=u, v=v)))}")
    return k.wide(out)


@piece("flat", "sequence")
def gram(s: Source, k: Kind) -> Kind:
    w = s.parameter(k.features, s.width())
    s.do(f"x = {s.activation(s.keep(f'x @ ({w} @ {w}.T)'))}")
    return k


@piece("flat", "sequence")
def einsum(s: Source, k: Kind) -> Kind:
    out, hidden = s.width(), s.width()
    batch = "b" if k.name == "flat" else "bt"
    form = s.choice(["two", "three", "diagonal", "outer"])
    if form == "two":
        s.do(f"x = torch.einsum('{batch}i,io->{batch}o', x, {s.parameter(k.features, out)})")
    elif form == "three":
        u, v = s.parameter(k.features, hidden), s.parameter(hidden, out)
        s.do(f"x = torch.einsum('{batch}i,ih,ho->{batch}o', x, {u}, {v})")
    elif form == "diagonal":
        u, v = s.parameter(k.features, hidden), s.parameter(hidden, out)
        s.do(f"x = torch.einsum('{batch}i,ih,h,ho->{batch}o', x, {u}, {s.parameter(hidden)}, {v})")
    else:
        size = s.choice([3, 4])
        left, right = s.branch(k, 3), s.branch(k, size)
        s.do(f"x = torch.einsum('{batch}i,{batch}j->{batch}ij', {left}, {right}).flatten({k.dim})")
        return k.wide(3 * size)
    return k.wide(out)


@piece("image", weight=4)
def convolution(s: Source, k: Kind) -> Kind:
    kernel = s.choice([1, 2, 3, 3])
    fits(min(k.size) >= 3)
    groups = s.choice([1, 1, *divisors(k.features)])
    depthwise = groups == k.features
    out = k.features * s.choice([1, 2]) if depthwise else groups * s.choice([1, 2, 3])
    stride = s.choice([1, 1, 2]) if min(k.size) >= 5 else 1
    padding = s.choice([0, kernel // 2]) if min(k.size) > kernel + 1 else kernel // 2
    mode = s.choice(["zeros", "zeros", "reflect", "replicate", "circular"]) if padding else "zeros"
    text = f"nn.Conv2d({k.features}, {out}, {kernel}, stride={stride}, padding={padding}, groups={groups}, "
    text += f"padding_mode='{mode}', bias={s.chance(0.6)})"
    s.do(f"x = {s.module(text)}(x)")
    if s.chance(0.7):
        s.do(f"x = {s.activation('x')}")
    size = tuple((n + 2 * padding - kernel) // stride + 1 for n in k.size)
    fits(min(size) >= 2)
    return Kind("image", out, size)


@piece("sequence")
def convolution_in_time(s: Source, k: Kind) -> Kind:
    kernel = s.choice([2, 3])
    groups = s.choice([1, 1, *divisors(k.features)])
    out = groups * s.choice([1, 2, 3]) if groups > 1 else s.width()
    dilation = s.choice([1, 1, 2])
    module = s.module(f"nn.Conv1d({k.features}, {out}, {kernel}, groups={groups}, dilation={dilation})")
    left = dilation * (kernel - 1)
    shift = s.choice(["causal", "both"])
    pads = (left, 0) if shift == "causal" else (left // 2, left - left // 2)
    s.do(f"x = {module}(F.pad(x.transpose(1, 2), {pads}))")
    if s.chance(0.7):
        s.do(f"x = {s.activation('x')}")
    s.do("x = x.transpose(1, 2)")
    return k.wide(out)


@piece("image")
def transposed_convolution(s: Source, k: Kind) -> Kind:
    fits(max(k.size) <= 5)
    groups = s.choice([1, 1, *divisors(k.features)])
    out, stride = groups * s.choice([1, 2, 3]), s.choice([1, 2])
    kernel = 2 if stride == 2 else 3
    padding = 0 if stride == 2 else 1
    text = f"nn.ConvTranspose2d({k.features}, {out}, {kernel}, stride={stride}, padding={padding}, groups={groups})"
    s.do(f"x = {s.activation(s.keep(f'{s.module(text)}(x)'))}")
    return Kind("image", out, tuple(n * stride for n in k.size))


@piece("sequence")
def transposed_convolution_in_time(s: Source, k: Kind) -> Kind:
    fits(k.size[0] <= 4)
    out = s.width()
    module = s.module(f"nn.ConvTranspose1d({k.features}, {out}, 2, stride=2)")
    s.do(f"x = {module}(x.mT).mT")
    return Kind("sequence", out, (2 * k.size[0],))


@piece("image")
def separable_convolution(s: Source, k: Kind) -> Kind:
    out = s.width()
    deep = s.module(f"nn.Conv2d({k.features}, {k.features}, 3, padding=1, groups={k.features})")
    inner = s.keep(f"{deep}(x)")
    if s.chance(0.5):
        inner = s.keep(s.activation(inner))
    s.do(f"x = {s.module(f'nn.Conv2d({k.features}, {out}, 1)')}({inner})")
    return k.wide(out)


@piece("image")
def squeeze_excite(s: Source, k: Kind) -> Kind:
    hidden = s.width((2, 3, 4))
    pool = s.choice(["x.mean((2, 3))", "x.amax((2, 3))", "F.adaptive_avg_pool2d(x, 1).flatten(1)", "x.std((2, 3))"])
    down, up = s.module(f"nn.Linear({k.features}, {hidden})"), s.module(f"nn.Linear({hidden}, {k.features})")
    inner = s.keep(s.activation(s.keep(f"{down}({pool})")))
    gate = s.keep(s.activation(s.keep(f"{up}({inner})")))
    s.do(f"x = x * {gate}[:, :, None, None]")
    return k


@piece("sequence", weight=2)
def recurrent_module(s: Source, k: Kind) -> Kind:
    out, name = s.width((3, 4)), s.choice(["LSTM", "GRU", "RNN"])
    both, layers = s.chance(0.3), s.choice([1, 1, 2])
    extra = ", proj_size=2" if name == "LSTM" and s.chance(0.2) else ""
    extra += ", nonlinearity='relu'" if name == "RNN" and s.chance(0.5) else ""
    text = f"nn.{name}({k.features}, {out}, num_layers={layers}, bidirectional={both}, batch_first=True{extra})"
    all_steps, last = s.name(), s.name()
    s.do(f"{all_steps}, {last} = {s.module(text)}(x)")
    s.do(f"x = {all_steps}")
    return k.wide((2 if "proj" in extra else out) * (1 + both))


@piece("sequence", weight=2)
def recurrent_cell(s: Source, k: Kind) -> Kind:
    fits(k.size[0] <= 5)
    out, name = s.width((3, 4)), s.choice(["LSTMCell", "GRUCell", "RNNCell"])
    cell, h, c, steps = s.module(f"nn.{name}({k.features}, {out})"), s.name(), s.name(), s.name()
    s.do(f"{h} = {c} = x.new_zeros(x.shape[0], {out})")
    s.do(f"{steps} = []")
    s.do("for i in range(x.shape[1]):")
    s.do(f"    {h}, {c} = {cell}(x[:, i], ({h}, {c}))" if name == "LSTMCell" else f"    {h} = {cell}(x[:, i], {h})")
    s.do(f"    {steps}.append({h})")
    s.do(f"x = torch.stack({steps}, 1)" if s.chance(0.6) else f"x = torch.stack({steps}[-2:], 1)")
    return k.wide(out) if "-2" not in s.done[-1] else Kind("sequence", out, (2,))


@piece("sequence")
def recurrence_written_out(s: Source, k: Kind) -> Kind:
    fits(k.size[0] <= 5)
    out = s.width((3, 4))
    read, move = s.module(f"nn.Linear({k.features}, {out})"), s.module(f"nn.Linear({out}, {out}, bias={s.chance(0.5)})")
    h, steps = s.name(), s.name()
    start = s.choice([f"x.new_zeros(x.shape[0], {out})", f"{s.parameter(out)}.expand(x.shape[0], -1)"])
    s.do(f"{h}, {steps} = {start}, []")
    s.do("for i in range(x.shape[1]):")
    new = s.activation(f"({read}(x[:, i]) + {move}({h}))")
    if s.chance(0.3):
        gate = s.module(f"nn.Linear({k.features}, {out})")
        new = f"torch.sigmoid({gate}(x[:, i])) * {h} + {new}"
    s.do(f"    {h} = {new}")
    s.do(f"    {steps}.append({h})")
    s.do(f"x = torch.stack({steps}, 1)")
    return k.wide(out)


@piece("flat")
def iteration(s: Source, k: Kind) -> Kind:
    """One layer applied several times to its own output."""
    move, h, inject = s.affine(k, k.features, "{}"), s.name(), s.chance(0.5)
    s.do(f"{h} = x" if s.chance(0.5) else f"{h} = {s.affine(k, k.features)}")
    s.do(f"for _ in range({s.choice([2, 3])}):")
    step = move.format(h) + (" + x" if inject else "")
    s.do(f"    {h} = {s.activation(f'({step})')}")
    s.do(f"x = {h}")
    return k


@piece("sequence")
def position_table(s: Source, k: Kind) -> Kind:
    rows = k.size[0] + s.choice([0, 0, 2])
    table = s.parameter(rows, k.features)
    form = s.choice(["{}[: x.shape[1]]", "{}[: x.shape[1]][None]", "F.embedding(torch.arange(x.shape[1]), {})"])
    s.do(f"x = x {s.choice('++*')} {form.format(table)}")
    return k


@piece("ids")
def embedding(s: Source, k: Kind) -> Kind:
    out = s.width()
    table = s.module(f"nn.Embedding({k.features}, {out})")
    form = s.choice(["module", "index", "one hot", "scaled", "split"])
    if form == "module":
        s.do(f"x = {table}(x)")
    elif form == "index":
        s.do(f"x = {table}.weight[x]")
    elif form == "one hot":
        s.do(f"x = F.one_hot(x, {k.features}).to({table}.weight.dtype) @ {table}.weight")
    elif form == "scaled":
        s.do(f"x = {table}(x) * {out}**0.5")
    else:
        other = s.module(f"nn.Embedding({k.features}, {out})")
        s.do(f"x = torch.cat([{table}(x), {other}(x.flip(1))], -1)")
        out *= 2
    if s.chance(0.5):
        rows = k.size[0] + s.choice([0, 0, 3])
        s.do(f"x = x + {s.module(f'nn.Embedding({rows}, {out})')}(torch.arange(x.shape[1]))")
    return Kind("sequence", out, k.size)


@piece("ids")
def bag(s: Source, k: Kind) -> Kind:
    out, mode = s.width(), s.choice(["sum", "mean", "max"])
    s.do(f"x = {s.module(f'nn.EmbeddingBag({k.features}, {out}, mode={mode!r})')}(x)")
    return Kind("flat", out)


@piece("flat", "sequence")
def experts(s: Source, k: Kind) -> Kind:
    """Experts that stand in one tensor, weighted by a router."""
    number, out = s.choice([3, 4]), s.width((3, 4))
    router = s.module(f"nn.Linear({k.features}, {number}, bias={s.chance(0.5)})")
    weight = s.parameter(number, k.features, out)
    gate = s.keep(f"F.softmax({router}(x), -1)")
    if s.chance(0.4):
        top, which = s.name(), s.name()
        s.do(f"{top}, {which} = {gate}.topk(2, -1)")
        s.do(f"x = torch.einsum('...i,...kio,...k->...o', x, {weight}[{which}], {top})")
    else:
        inner = s.keep(s.activation(s.keep(f"torch.einsum('...i,eio->...eo', x, {weight})")))
        s.do(f"x = ({inner} * {gate}[..., None]).sum(-2)")
    return k.wide(out)


@piece("flat")
def hypernetwork(s: Source, k: Kind) -> Kind:
    """Weights that are computed from the input."""
    out = s.width((3, 4))
    made = s.affine(k, k.features * out)
    s.do(f"x = torch.einsum('bi,bio->bo', x, {made}.unflatten(1, ({k.features}, {out})))")
    s.do(f"x = {s.activation('x')}")
    return Kind("flat", out)


@piece("flat", "sequence")
def prototypes(s: Source, k: Kind) -> Kind:
    number = s.width()
    rows = s.parameter(number, k.features)
    form = s.choice([
        "torch.cdist(x, {})", "(x[..., None, :] - {}).square().sum(-1).neg().exp()",
        "F.cosine_similarity(x[..., None, :], {}, dim=-1)", "F.linear(F.normalize(x, dim=-1), F.normalize({}, dim=-1))",
    ])  # fmt: skip
    s.do(f"x = {form.format(rows)}")
    return k.wide(number)


@piece("sequence")
def mixing_of_positions(s: Source, k: Kind) -> Kind:
    s.fixed = True
    hidden, length = s.width(), k.size[0]
    if s.chance(0.5):
        s.do(f"x = {s.module(f'nn.Linear({length}, {length})')}(x.mT).mT")
    else:
        up, down = s.module(f"nn.Linear({length}, {hidden})"), s.module(f"nn.Linear({hidden}, {length})")
        s.do(f"x = x + {down}({s.activation(s.keep(f'{up}(x.transpose(1, 2))'))}).transpose(1, 2)")
    return k


@piece("sequence", "image")
def fourier(s: Source, k: Kind) -> Kind:
    """Complex numbers: spectra, and weights that multiply them."""
    if k.name == "image":
        h, w = k.size
        form, size = s.choice([
            ("torch.fft.rfft2(x).abs()", (h, w // 2 + 1)), ("torch.fft.fft2(x).real", (h, w)),
            ("torch.fft.rfft(x, dim=2).abs()", (h // 2 + 1, w)),
        ])  # fmt: skip
        s.do(f"x = {form}")
        return Kind("image", k.features, size)
    if s.chance(0.5):
        s.do("x = torch.fft.fft(x, dim=1).real" if s.chance(0.5) else "x = torch.fft.fft(torch.fft.fft(x), dim=1).real")
        return k
    s.fixed = True
    out = s.width((3, 4))
    weight = s.parameter(k.features, out, k.size[0] // 2 + 1, dtype=", dtype=torch.complex128")
    spectrum = s.keep("torch.fft.rfft(x, dim=1)")
    s.do(f"x = torch.fft.irfft(torch.einsum('bki,iok->bko', {spectrum}, {weight}), n=x.shape[1], dim=1)")
    return k.wide(out)


@piece("image")
def shuffled_groups(s: Source, k: Kind) -> Kind:
    """Grouped convolutions with channels shuffled between them, as in ShuffleNet, beside a shortcut or without one."""
    groups = [d for d in divisors(k.features) if 1 < d <= 3]
    fits(bool(groups))
    g = s.choice(groups)
    h = s.choice([g, g, 2])
    inner = g * h * s.choice([1, 2])
    first = s.module(f"nn.Conv2d({k.features}, {inner}, 1, groups={g}, bias={s.chance(0.5)})")
    depth = s.module(f"nn.Conv2d({inner}, {inner}, 3, padding=1, groups={inner}, bias={s.chance(0.5)})")
    same = k.features % h == 0 and s.chance(0.6)
    out = k.features if same else h * s.choice([1, 2, 3])
    last = s.module(f"nn.Conv2d({inner}, {out}, 1, groups={h}, bias={s.chance(0.5)})")
    y = s.keep(s.activation(f"{first}(x)"))
    s.do(f"{y} = {y}.unflatten(1, ({g}, {inner // g})).transpose(1, 2).flatten(1, 2)")
    y = s.keep(f"{last}({s.activation(f'{depth}({y})')})")
    s.do(f"x = x + {y}" if same else f"x = {y}")
    return k.wide(out)
