"""Pieces that normalise: by statistics that are kept, by those of the input, and weights that are normalised."""

from fuzz.pieces.source import ANY, Kind, Source, divisors, fits, piece


@piece(*ANY)
def batch_norm(s: Source, k: Kind) -> Kind:
    affine = s.chance(0.7)
    kind = "BatchNorm2d" if k.name == "image" else "BatchNorm1d"
    module = s.module(f"nn.{kind}({k.features}, affine={affine}, eps={s.choice(['1e-5', '0.1'])})")
    inner = s.affine(k, k.features) if s.chance(0.6) else "x"
    s.do(f"x = {module}({inner}.mT).mT" if k.name == "sequence" else f"x = {module}({inner})")
    if s.chance(0.5):
        s.do(f"x = {s.activation('x')}")
    return k


@piece("flat", "sequence")
def layer_norm(s: Source, k: Kind) -> Kind:
    fits(k.features >= 3)
    module = s.module(
        f"nn.LayerNorm({k.features}, elementwise_affine={s.chance(0.7)}, eps={s.choice(['1e-5', '0.1'])})"
    )
    s.do(f"x = {module}({s.affine(k, k.features) if s.chance(0.5) else 'x'})")
    return k


@piece("sequence", "image")
def norm_over_all(s: Source, k: Kind) -> Kind:
    """Layer norm over positions and features, or over pixels."""
    s.fixed = True
    over = list(k.size) if k.name == "image" and s.chance(0.5) else list(k.shape(1)[1:])
    s.do(f"x = {s.module(f'nn.LayerNorm({over})')}(x)")
    return k


@piece("flat", "image")
def group_norm(s: Source, k: Kind) -> Kind:
    groups = s.choice([1, *divisors(k.features)])
    fits(k.features // groups >= (3 if k.name == "flat" else 1))
    module = s.module(f"nn.GroupNorm({groups}, {k.features}, affine={s.chance(0.7)})")
    s.do(f"x = {module}({s.affine(k, k.features) if s.chance(0.5) else 'x'})")
    return k


@piece("image", "sequence")
def instance_norm(s: Source, k: Kind) -> Kind:
    kept = s.chance(0.2)
    kind = "InstanceNorm2d" if k.name == "image" else "InstanceNorm1d"
    fits(min(k.size) >= 3)
    module = s.module(f"nn.{kind}({k.features}, affine={s.chance(0.6)}, track_running_stats={kept})")
    inner = s.affine(k, k.features) if s.chance(0.5) else "x"
    s.do(f"x = {module}({inner}.mT).mT" if k.name == "sequence" else f"x = {module}({inner})")
    return k


@piece(*ANY)
def norm_written_out(s: Source, k: Kind) -> Kind:
    """Root mean squares, lengths, ranges and standard deviations over features."""
    d = k.dim
    fits(k.features >= 3)
    x = s.keep(s.affine(k, k.features)) if s.chance(0.5) else "x"
    form = s.choice([
        "{x} * ({x}.square().mean({d}, keepdim=True) + 1e-2).rsqrt()", "F.normalize({x}, dim={d})",
        "{x} / {x}.norm(dim={d}, keepdim=True)", "{x} / (1 + {x}.abs().sum({d}, keepdim=True))",
        "{x} / ({x}.std({d}, keepdim=True) + 0.1)", "{x} - {x}.mean({d}, keepdim=True)",
        "{x} / {x}.abs().amax({d}, keepdim=True)", "({x} - {x}.amin({d}, keepdim=True)) / "
        "({x}.amax({d}, keepdim=True) - {x}.amin({d}, keepdim=True))", "{x} - {x}.logsumexp({d}, keepdim=True)",
        "{x} / torch.linalg.vector_norm({x}, ord=3, dim={d}, keepdim=True)",
        "{x} / {x}.norm(p=1, dim={d}, keepdim=True)",
        "{x} / {x}.var({d}, keepdim=True).add(0.1).sqrt()", "F.local_response_norm({x}, 3)",
    ])  # fmt: skip
    if "local" in form:
        fits(k.name == "image")
    s.do(f"x = {form.format(x=x, d=d)}")
    if s.chance(0.6):
        s.do(f"x = x * {k.lift(s.parameter(k.features))}")
    if s.chance(0.3):
        s.do(f"x = x + {k.lift(s.parameter(k.features))}")
    return k


@piece("flat", "sequence")
def rms_module(s: Source, k: Kind) -> Kind:
    s.do(f"x = {s.module(f'nn.RMSNorm({k.features}, eps=1e-3)')}(x)")
    return k


@piece("flat", "sequence", weight=2)
def stream(s: Source, k: Kind) -> Kind:
    """A residual stream that is read behind norms alone, so that it may turn."""
    d = s.width((3, 4, 4, 6))
    own = k.wide(d)
    norm = s.choice([f"nn.RMSNorm({d}, eps=1e-2)", f"nn.LayerNorm({d}, eps=1e-2)"])
    s.do(f"x = {s.affine(k, d)}")
    for _ in range(s.choice([0, 1, 1])):
        inner = s.keep(f"{s.module(norm)}(x)")
        hidden = s.width((3, 4))
        part = s.keep(s.activation(s.keep(s.affine(own, hidden, inner))))
        s.do(f"x = x + {s.affine(own.wide(hidden), d, part)}")
    out = s.width()
    s.do(f"x = {s.activation(s.keep(s.affine(own, out, s.keep(f'{s.module(norm)}(x)'))))}")
    return k.wide(out)


@piece("flat", "sequence")
def linear_bottleneck(s: Source, k: Kind) -> Kind:
    """Two linear maps with nothing between."""
    narrow, out = s.width((2, 3, 4)), s.width()
    x = s.keep(s.affine(k, narrow))
    s.do(f"x = {s.activation(s.keep(s.affine(k.wide(narrow), out, x)))}")
    return k.wide(out)


@piece(*ANY)
def normalised_weights(s: Source, k: Kind) -> Kind:
    out = s.width()
    layer = f"nn.Conv2d({k.features}, {out}, 1)" if k.name == "image" else f"nn.Linear({k.features}, {out})"
    if s.chance(0.5):
        module = s.module(f"weight_norm({layer}, dim={s.choice(['0', '0', '1', 'None'])})")
    else:
        module = s.module(f"spectral_norm({layer})")
    s.do(f"x = {s.activation(s.keep(f'{module}(x)'))}")
    return k.wide(out)


@piece("flat", "sequence")
def weights_written_out(s: Source, k: Kind) -> Kind:
    """Weights that are standardised, normalised, made positive or masked before they are used."""
    out = s.width()
    w = s.parameter(out, k.features)
    mask = s.random_tensor(f"torch.rand({out}, {k.features}")
    form = s.choice([
        "{w} / {w}.norm(dim=1, keepdim=True)", "{w} / {w}.norm(dim=0, keepdim=True)", "{w} / {w}.norm()",
        "{w}.softmax(1)",
        "({w} - {w}.mean(1, keepdim=True)) / {w}.std(1, keepdim=True)", "{w}.exp()", "{w}.abs()", "{w}.square()",
        "{w} * {m}", "F.softplus({w})", "{w} * {w}.abs().mean()", "torch.sign({w}) * {w}.abs().mean(1, keepdim=True)",
    ])  # fmt: skip
    text = form.format(w=w, m=s.buffer(f"({mask} > 0.3).double()") if "{m}" in form else "")
    bias = f", {s.parameter(out)}" if s.chance(0.4) else ""
    s.do(f"x = {s.activation(s.keep(f'F.linear(x, {text}{bias})'))}")
    return k.wide(out)
