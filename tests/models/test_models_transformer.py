"""The transformer on tokens: what each token sees, its group, and text that is drawn from it."""

import pytest
import torch

from coset.errors import InputError
from coset.models import build, example_input, generate
from coset.symmetry import discover

OPTIONS = {"dim": 8, "heads": 2, "depth": 2, "context": 10, "vocabulary": 12, "mlp_ratio": 1}


@pytest.mark.parametrize("positions", ["learned", "rotary"])
@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_a_token_sees_those_before_it_alone(norm: str, positions: str) -> None:
    model = build("transformer", seed=0, norm=norm, positions=positions, **OPTIONS).double()
    x = example_input(model)
    changed = x.clone()
    changed[:, 6:] = (changed[:, 6:] + 1) % 12
    before, after = model(x), model(changed)
    torch.testing.assert_close(after[:, :6], before[:, :6], rtol=1e-12, atol=1e-12)
    assert (after[:, 6:] - before[:, 6:]).abs().amax(-1).min() > 1e-3
    torch.testing.assert_close(model(x[:, :4]), before[:, :4], rtol=1e-12, atol=1e-12)


def test_rotary_positions_see_distances_alone() -> None:
    model = build("transformer", seed=0, positions="rotary", **OPTIONS | {"depth": 1}).double()
    # Scores of queries and keys at places that are all moved by the same number of tokens.
    attention = model.blocks[0].attention
    query, key = torch.randn(2, 1, 2, 10, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    query, key = query[..., :1, :].expand_as(query), key[..., :1, :].expand_as(key)
    scores = (attention._turn(query) @ attention._turn(key).mT)[0, 0]
    torch.testing.assert_close(scores[1:, 1:], scores[:-1, :-1], rtol=1e-6, atol=1e-6)
    assert (scores[0] - scores[0, 0])[1:].abs().min() > 1e-3


def test_its_group_is_found_whole() -> None:
    """The dimension that is counted by hand: streams, heads, and gains of an untied pre-norm model."""
    dim, heads, inner, depth = 8, 2, 4, 2
    model = build("transformer", seed=0, **OPTIONS).double()
    sym = discover(model, example_input(model))
    gains, mixed = (2 * depth + 1) * dim, depth * 2 * heads * inner**2
    assert sym.continuous_dimension == (dim - 1) * (dim - 2) // 2 + mixed + gains
    rotary = build("transformer", seed=0, norm="rms", positions="rotary", bias=False, **OPTIONS).double()
    found = discover(rotary, example_input(rotary)).continuous
    kinds = [item.kind for item in found.values()]
    assert kinds.count("orthogonal") == 1
    assert kinds.count("general") >= depth


def test_a_vision_transformer_sees_patches_where_they_are() -> None:
    model = build("vit", seed=0, dim=8, heads=2, patch=2, image_size=4, in_channels=1, classes=3).double()
    image = example_input(model, batch=1)
    sym = discover(model, image)
    assert sym.continuous_dimension == 7 * 6 // 2 + 2 * 2 * 2 * 4**2 + 5 * 8
    cut = image[0, 0].reshape(2, 2, 2, 2).transpose(1, 2).reshape(4, 4)
    stream = model.patches(cut) + model.positions
    for block in model.blocks:
        stream = block(stream.unsqueeze(0))[0]
    torch.testing.assert_close(model(image)[0], model.head(model.norm(stream).mean(0)), rtol=1e-12, atol=1e-12)


def test_text_is_drawn_from_what_the_model_predicts() -> None:
    model = build("transformer", seed=0, **OPTIONS).double().eval()
    prompt = torch.tensor([3, 1])
    drawn = generate(model, prompt, 30, generator=torch.Generator().manual_seed(1))
    assert drawn.shape == (32,)
    assert torch.equal(drawn[:2], prompt)
    assert torch.equal(drawn, generate(model, prompt, 30, generator=torch.Generator().manual_seed(1)))
    # With logits that leave no choice the text is that of the largest ones, from the last ten tokens.
    with torch.no_grad():
        model.head.weight.mul_(1e6)
    sure = generate(model, prompt, 30, generator=torch.Generator().manual_seed(1))
    for end in range(2, 32):
        assert sure[end] == model(sure[max(0, end - 10) : end].unsqueeze(0))[0, -1].argmax()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"heads": 3}, "dim must be a multiple of heads, found dim=8 and heads=3"),
        ({"heads": 8, "positions": "rotary"}, "dim / heads must be even, found 1"),
        ({"norm": "batch"}, "norm must be one of layer, rms; found 'batch'"),
        ({"positions": "sine"}, "positions must be one of learned, rotary; found 'sine'"),
        ({"bias": 1}, "bias must be True or False, found 1"),
        ({"context": 0}, "context must be an integer of at least 1, found 0"),
    ],
)
def test_bad_options_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build("transformer", seed=0, **OPTIONS | change)


def test_a_prompt_is_a_row_of_tokens() -> None:
    model = build("transformer", seed=0, **OPTIONS)
    for prompt in (torch.zeros(1, 2, dtype=torch.long), torch.zeros(0, dtype=torch.long), torch.zeros(2)):
        with pytest.raises(InputError, match="prompt must be whole numbers of shape"):
            generate(model, prompt, 3, generator=torch.Generator())
