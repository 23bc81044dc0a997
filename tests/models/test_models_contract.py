"""What every architecture promises, checked on a small instance of each."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from coset.models import build, example_input
from coset.models._cct import StochasticDepth

SMALL: dict[str, tuple[str, dict[str, object]]] = {
    "mlp": ("mlp", {"in_features": 12, "widths": (8, 6), "out_features": 3}),
    "mlp batch": ("mlp", {"in_features": 12, "widths": (8, 6), "out_features": 3, "norm": "batch"}),
    "mlp residual": ("mlp", {"in_features": 12, "depth": 3, "width": 8, "residual": True, "norm": "layer"}),
    "residual_mlp": ("residual_mlp", {"in_features": 12, "width": 6, "inner": 9}),
    "myrtle batch": ("myrtle", {"width": 4}),
    "myrtle none": ("myrtle", {"width": 4, "norm": "none", "activation": "leaky_relu:0.2"}),
    "tiny10": ("tiny10", {}),
    "resnet batch": ("resnet", {"stages": (4, 8), "blocks": 1}),
    "resnet frn": ("resnet", {"stages": (4, 8), "blocks": (2, 1), "norm": "frn"}),
    "resnet layer": ("resnet", {"stages": (4, 8), "blocks": 1, "norm": "layer"}),
    "resnet none": ("resnet", {"stages": (4, 8), "blocks": 1, "norm": "none", "final_activation": False}),
    "cct": ("cct", {"dim": 8, "depth": 2, "heads": 2, "image_size": 12}),
    "cct two": ("cct", {"dim": 8, "depth": 1, "heads": 2, "convolutions": 2, "positions": "learnable"}),
    "cct published": ("cct", {"dim": 8, "depth": 2, "heads": 2, "image_size": 12, "renormalize_stream": True}),
    "vit": ("vit", {"dim": 8, "heads": 2, "patch": 2, "image_size": 6}),
    "siren": ("siren", {"widths": (8, 6), "out_features": 3}),
    "transformer": ("transformer", {"dim": 8, "heads": 2, "context": 6, "vocabulary": 5}),
    "transformer rotary": (
        "transformer",
        {"dim": 8, "heads": 2, "context": 6, "vocabulary": 5, "norm": "rms", "positions": "rotary", "bias": False},
    ),
}

# A constant added to every token's score leaves the softmax of sequence pooling and of attention as it is.
WITHOUT_EFFECT = {"pool.bias", "blocks.0.attention.key.bias", "blocks.1.attention.key.bias"}


@pytest.fixture(params=SMALL)
def make(request: pytest.FixtureRequest) -> Callable[[int], nn.Module]:
    """A function from a seed to the small instance, in double precision and eval mode with lively statistics."""
    name, options = SMALL[request.param]

    def built(seed: int) -> nn.Module:
        model = build(name, seed=seed, **options).double().eval()
        generator = torch.Generator().manual_seed(seed)
        for key, buffer in model.named_buffers():
            if key.endswith(("running_mean", "running_var")):
                buffer += 0.1 * torch.rand(buffer.shape, generator=generator, dtype=buffer.dtype)
        return model

    return built


def test_output_has_one_row_per_input(make: Callable[[int], nn.Module]) -> None:
    model = make(0)
    x = example_input(model, batch=3)
    y = model(x)
    assert x.shape == (3, *model.input_shape)
    tokens = getattr(model, "vocabulary", None)
    assert x.dtype == (torch.float64 if tokens is None else torch.int64)
    assert y.shape == ((3, y.shape[1]) if tokens is None else (*x.shape, tokens))
    assert torch.isfinite(y).all()


def test_each_sample_is_its_own_in_eval_mode(make: Callable[[int], nn.Module]) -> None:
    model = make(0)
    x = example_input(model, batch=3)
    alone = torch.cat([model(row.unsqueeze(0)) for row in x])
    torch.testing.assert_close(model(x), alone, rtol=1e-10, atol=1e-12)
    assert torch.equal(model(x), model(x))


def test_every_parameter_has_an_effect(make: Callable[[int], nn.Module]) -> None:
    model = make(0)
    model(example_input(model, batch=4)).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        largest = parameter.grad.abs().max().item()
        if name in WITHOUT_EFFECT:
            assert largest < 1e-12, name
        else:
            assert largest > 1e-8, name


def test_training_step_lowers_the_loss(make: Callable[[int], nn.Module]) -> None:
    model = make(0).train()
    for module in model.modules():
        # Dropped units would make two losses incomparable.
        if isinstance(module, nn.Dropout | StochasticDepth):
            module.eval()
    x = example_input(model, batch=8)
    y = torch.arange(8) % 3
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(2):
        optimizer.zero_grad()
        outputs = model(x)
        logits = outputs.flatten(0, -2)
        loss = nn.functional.cross_entropy(logits, y.repeat_interleave(len(logits) // len(y)))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[1] < losses[0]


def test_functional_call_and_vmap_run_many_weights_at_once(make: Callable[[int], nn.Module]) -> None:
    models = [make(seed) for seed in (0, 1)]
    x = example_input(models[0])
    parameters, buffers = stack_module_state(models)

    def run(weights: dict[str, Tensor], statistics: dict[str, Tensor]) -> Tensor:
        return functional_call(models[0], (weights, statistics), (x,))

    outputs = vmap(run)(parameters, buffers)
    torch.testing.assert_close(outputs, torch.stack([model(x) for model in models]), rtol=1e-10, atol=1e-12)
    assert not torch.equal(outputs[0], outputs[1])


def test_exports_with_its_own_names_and_any_batch(make: Callable[[int], nn.Module]) -> None:
    model = make(0)
    shapes = {"x": {0: torch.export.Dim("batch")}}
    program = torch.export.export(model, (example_input(model),), dynamic_shapes=shapes, strict=False)
    assert program.state_dict.keys() == model.state_dict().keys()
    x = example_input(model, batch=5, seed=1)
    torch.testing.assert_close(program.module()(x), model(x), rtol=1e-10, atol=1e-12)


def test_seed_alone_decides_the_weights(make: Callable[[int], nn.Module]) -> None:
    torch.manual_seed(1)
    first = make(7).state_dict()
    torch.manual_seed(2)
    second, other = make(7).state_dict(), make(8).state_dict()
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert any(not torch.equal(first[key], other[key]) for key in first)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("mlp residual", {"residual": False}),
        ("cct", {"heads": 4}),
        ("cct", {"renormalize_stream": True}),
        ("cct", {"stochastic_depth": 0.3}),
        ("resnet none", {"final_activation": True}),
        ("transformer", {"heads": 4}),
        ("myrtle none", {"activation": "leaky_relu:0.3"}),
    ],
)
def test_options_that_change_no_weight_are_in_the_text_of_the_model(name: str, change: dict[str, object]) -> None:
    kind, options = SMALL[name]
    one, other = build(kind, seed=0, **options), build(kind, seed=0, **options | change)
    assert all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True))
    assert repr(one) != repr(other)
