"""Outputs of layers against what ``sym.graph`` says of them, run as a user runs them."""

import torch

from coset.symmetry import Parameter, Symmetry


def outputs_of_modules(model, params, x):
    """The outputs of all modules as their user sees them, of the last call."""
    given = {}
    hooks = [
        part.register_forward_hook(lambda _m, _i, out, name=name: given.update({name: out}))
        for name, part in model.named_modules()
        if name
    ]
    with torch.no_grad():
        torch.func.functional_call(model, params, x)
    for hook in hooks:
        hook.remove()
    return {name: out.clone() for name, out in given.items() if isinstance(out, torch.Tensor)}


def assert_layers_move(model, sym, x):
    """layer(g·θ, x) = g·layer(θ, x), for an element and inputs that discovery has not seen."""
    generator = torch.Generator().manual_seed(7)
    theta = {
        name: torch.rand(t.shape, generator=generator, dtype=t.dtype) + 0.2 if t.is_floating_point() else t
        for name, t in model.state_dict().items()
    }
    first: dict[int, str] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        theta[name] = theta[first.setdefault(id(tensor), name)]
    g = sym.monomial.random(generator)
    before, after = (outputs_of_modules(model, params, x) for params in (theta, sym.act(g, theta)))
    known = [name for name in before if any(key.partition("#")[0] == name for key in sym.graph.activations)]
    sizes = {name: item.size for name, item in sym.classes.items()}
    for name in known:
        shape = tuple(before[name].shape)
        axes = sym.graph.activation(name).fitted(shape, sizes, name)
        layer = Symmetry(sym.classes, sym.families, {name: Parameter(shape, axes)})
        moved = layer.act(g, {name: before[name]})[name]
        scale = float(before[name].abs().max()) or 1.0
        torch.testing.assert_close(
            after[name] / scale, moved / scale, rtol=1e-8, atol=1e-8, msg=lambda m, n=name: f"{n}: {m}"
        )
    return known
