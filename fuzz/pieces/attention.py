"""Pieces that attend: heads, fused queries, keys and values in several layouts, masks, rotary angles."""

from fuzz.pieces.source import Kind, Source, fits, piece

MASKED = "{}.masked_fill(torch.ones(x.shape[1], x.shape[1]).triu(1).bool(), float('-inf'))"


@piece("sequence", weight=4)
def attention(s: Source, k: Kind) -> Kind:
    """softmax(q·kᵀ)·v with heads; queries, keys and values from one matrix in one of several orders, or from three."""
    heads, size = s.choice([1, 2, 2, 3]), s.choice([2, 3, 4])
    wide, out = heads * size, s.choice([k.features, s.width()])
    layout = s.choice(["three", "chunks", "qkv", "heads first", "heads last", "grouped"])
    bias = s.chance(0.6)
    q, key, v = s.name("q"), s.name("k"), s.name("v")
    split = f".unflatten(-1, ({heads}, {size})).transpose(1, 2)"
    if layout == "three":
        for name in (q, key, v):
            s.do(f"{name} = {s.affine(k, wide, bias=bias)}{split}")
    elif layout == "grouped":
        s.do(f"{q} = {s.affine(k, wide, bias=bias)}{split}")
        for name in (key, v):
            s.do(f"{name} = {s.affine(k, size, bias=bias)}[:, None].expand(-1, {heads}, -1, -1)")
    else:
        fused = s.keep(s.affine(k, 3 * wide, bias=bias))
        if layout == "chunks":
            s.do(f"{q}, {key}, {v} = (part{split} for part in {fused}.chunk(3, -1))")
        elif layout == "qkv":
            s.do(f"{q}, {key}, {v} = {fused}.unflatten(-1, (3, {heads}, {size})).permute(2, 0, 3, 1, 4).unbind(0)")
        elif layout == "heads first":
            s.do(f"{q}, {key}, {v} = {fused}.unflatten(-1, ({heads}, 3, {size})).permute(3, 0, 2, 1, 4)")
        else:
            s.do(f"{q}, {key}, {v} = {fused}.unflatten(-1, ({size}, 3, {heads})).permute(3, 0, 4, 1, 2)")
    if s.chance(0.3) and size % 2 == 0:
        _rotate(s, (q, key), size)
    elif s.chance(0.2):
        s.do(f"{q}, {key} = F.normalize({q}, dim=-1), F.normalize({key}, dim=-1) * {s.parameter(heads, 1, 1)}")
    mixed = s.keep(_attend(s, k, q, key, v, heads, size))
    project = s.module(f"nn.Linear({wide}, {out}, bias={s.chance(0.5)})")
    result = f"{project}({mixed}.transpose(1, 2).flatten(2))"
    s.do(f"x = x + {result}" if out == k.features and s.chance(0.5) else f"x = {result}")
    return k.wide(out)


def _attend(s: Source, k: Kind, q: str, key: str, v: str, heads: int, size: int) -> str:
    form = s.choice(["sdpa", "sdpa", "causal", "softmax", "masked", "linear", "relative"])
    if form == "sdpa":
        return f"F.scaled_dot_product_attention({q}, {key}, {v})"
    if form == "causal":
        return f"F.scaled_dot_product_attention({q}, {key}, {v}, is_causal=True)"
    if form == "linear":
        return f"(F.elu({q}) + 1) @ ((F.elu({key}) + 1).mT @ {v})"
    scores = s.keep(f"{q} @ {key}.transpose(-2, -1) / {size}**0.5")
    if form == "masked":
        scores = s.keep(MASKED.format(scores))
    if form == "relative":
        table = s.parameter(heads, 2 * k.size[0] + 3)
        places = "torch.arange(x.shape[1])"
        scores = s.keep(f"{scores} + {table}[:, {places}[:, None] - {places} + {k.size[0] + 1}]")
    return f"{scores}.softmax(-1) @ {v}"


def _rotate(s: Source, names: tuple[str, ...], size: int) -> None:
    """Rotary angles: pairs of neighbours, or halves."""
    angle = s.keep(f"torch.arange(x.shape[1])[:, None] * torch.tensor([1.0, 0.1])[: {size // 2}]")
    for name in names:
        if s.chance(0.5):
            left, right = f"{name}[..., ::2]", f"{name}[..., 1::2]"
            join = "torch.stack([{}, {}], -1).flatten(-2)"
        else:
            left, right = f"{name}[..., : {size // 2}]", f"{name}[..., {size // 2} :]"
            join = "torch.cat([{}, {}], -1)"
        turned = join.format(
            f"{left} * {angle}.cos() - {right} * {angle}.sin()", f"{left} * {angle}.sin() + {right} * {angle}.cos()"
        )
        s.do(f"{name} = {turned}")


@piece("sequence")
def attention_module(s: Source, k: Kind) -> Kind:
    heads = s.choice([h for h in (1, 2, 3, 4) if k.features % h == 0])
    options = f"batch_first=True, bias={s.chance(0.7)}, add_bias_kv={s.chance(0.2)}"
    module, out = s.module(f"nn.MultiheadAttention({k.features}, {heads}, {options})"), s.name()
    s.do(f"{out}, _ = {module}(x, x, {s.choice(['x', 'x', 'x.flip(1)'])}, need_weights={s.chance(0.3)})")
    s.do(f"x = {out}" if s.chance(0.5) else f"x = x + {out}")
    return k


@piece("sequence")
def transformer_layer(s: Source, k: Kind) -> Kind:
    heads = s.choice([h for h in (1, 2, 3, 4) if k.features % h == 0])
    options = f"dim_feedforward={s.width()}, dropout=0.0, batch_first=True, norm_first={s.chance(0.5)}, "
    options += f"activation={s.choice(['relu', 'gelu'])!r}"
    s.do(f"x = {s.module(f'nn.TransformerEncoderLayer({k.features}, {heads}, {options})')}(x)")
    return k


@piece("sequence")
def pooling_by_attention(s: Source, k: Kind) -> Kind:
    """Queries that are weights attend to the sequence."""
    number = s.choice([1, 2, 3])
    queries = s.parameter(number, k.features)
    weights = s.keep(f"F.softmax({queries} @ {s.affine(k, k.features)}.mT, -1)")
    s.do(f"x = {weights} @ {s.affine(k, k.features)}")
    if number > 1:
        return Kind("sequence", k.features, (number,))
    s.do("x = x.squeeze(1)")
    return Kind("flat", k.features)


@piece("image")
def attention_over_pixels(s: Source, k: Kind) -> Kind:
    fits(k.size[0] * k.size[1] <= 36)
    size = s.choice([2, 3, 4])
    q, key, v = (f"{s.module(f'nn.Conv2d({k.features}, {n}, 1)')}(x).flatten(2)" for n in (size, size, k.features))
    weights = s.keep(f"torch.softmax({q}.mT @ {key}, -1)")
    s.do(f"x = x + ({v} @ {weights}.mT).view_as(x)")
    return k
