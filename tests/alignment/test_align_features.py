"""Where units are seen: the features of a moved network are those of the network, re-ordered and flipped."""

import math
from functools import lru_cache

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from architectures import CASES, made, randomized
from coset.alignment.matching.activations import match_activations
from coset.alignment.matching.feature_places import Watch, find_features, run, units_by_samples
from coset.alignment.matching.step import signs_at
from coset.errors import InputError
from coset.running import whole_weights
from coset.symmetry import Symmetry
from coset.symmetry.axes import Charge, Fixed, Product, Units
from coset.symmetry.group import full_map

EXPERIMENTS = [name for name in CASES if not name.startswith("resnet20") and name != "rotary"] + ["resnet20, layer"]


SCALE = (Charge("", 1, 0),)


def seen(model, params, x):
    """Every feature of a run, by call and argument."""
    found = {}
    watch = Watch(lambda call, argument, _, t: found.update({(call, argument): t.clone()}))
    run(model, whole_weights(model, params), x, watch)
    return found


@lru_cache
def setting(name):
    model, sym, shape = made(name)
    generator = torch.Generator().manual_seed(5)
    params = randomized(model, generator)
    x = torch.randn(11, *shape, generator=generator, dtype=torch.float64)
    return model, sym, params, x, find_features(sym, model, x)


def places(name):
    return {
        owner: [(p.site.call, p.site.argument, sorted(p.flips)) for p in found]
        for owner, found in setting(name)[4].items()
    }


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_features_of_a_moved_network_are_reordered_and_flipped(name):
    model, sym, params, x, found = setting(name)
    part = sym.restrict(scales=False)
    g = part.random(torch.Generator().manual_seed(17))
    before, after = seen(model, params, x), seen(model, part.act(g, params), x)
    for owner, where in found.items():
        source = full_map(sym, g, owner)
        for place in where:
            old = units_by_samples(sym, place, before[place.site.key])
            new = units_by_samples(sym, place, after[place.site.key])
            assert old.shape[0] == math.prod(sym.shape(owner))
            for key in place.flips:
                old = old * signs_at(sym, g, key, owner)[:, None]
            assert torch.allclose(new, old[source], rtol=1e-9, atol=1e-9 * float(old.abs().max()))


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_class_is_seen_or_holds_one_that_is(name):
    _, sym, _, _, found = setting(name)
    inner = {sym.classes[owner].parent for owner, where in found.items() if where}
    assert [n for n in sym.permuting if sym.classes[n].size > 1 and not found[n] and n not in inner] == []


def test_places_worked_out_by_hand():
    assert places("flatten") == {"c1": [(1, 0, [])], "c2": [(2, 0, [])]}
    # Behind a norm the sign of a convolution is gone; what tanh gives flips with the depthwise filter.
    assert places("batchnorm+depthwise") == {"c": [(1, 0, []), (2, 0, ["c:dw"])]}
    # The norm's gain flips what is read from it; the tied read-out sees the stream alone.
    assert places("tied embeddings")["s"] == [(0, 0, ["s", "s:n"]), (3, 0, ["s"])]
    assert places("concatenation") == {"a": [(1, 0, []), (2, 0, [])], "b": [(2, 0, ["b"])]}
    # Queries mix the heads of a group with its units, and so does what is read last: keys, values and scores do not.
    assert places("grouped-query attention") == {
        "g": [], "h": [(3, 0, [])], "qk": [(2, 1, ["qk"])], "vo": [(3, 1, ["vo"])],
    }  # fmt: skip


def test_channels_before_positions_and_segments_after_inputs():
    flat = setting("flatten")[4]["c2"][0].site
    channels = Product((Units("c2", SCALE), Fixed(3), Fixed(3)))
    assert flat.feature.fitted((7, 36), {"c2": 4}, "it") == (Fixed(7), channels)
    assert flat.operation == "linear"
    site = setting("concatenation")[4]["b"][0]
    rows = units_by_samples(setting("concatenation")[1], site, torch.arange(24.0).reshape(2, 12))
    assert torch.equal(rows, torch.tensor([[7.0, 19], [8, 20], [9, 21], [10, 22], [11, 23]]))


class Heads(nn.Module):
    """Self-attention by torch's own module, which folds batch and heads into one axis when it returns its weights."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(6, 3, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x)[0]


def heads_symmetry(model):
    qkv = "h[qk]+h[/qk]+h[vo]"
    axes = {"attention.in_proj_weight": qkv, "attention.in_proj_bias": qkv, "attention.out_proj.weight": "- h[/vo]"}
    scales = {"h": "one", "qk": "nonzero", "vo": "nonzero"}
    return Symmetry.from_axes(axes, model, scales=scales, sizes={"h": 3})


def test_a_batch_folded_into_heads_may_change_its_size():
    torch.manual_seed(0)
    model = Heads().double()
    sym = heads_symmetry(model)
    params = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    x = torch.randn(7, 5, 6, dtype=torch.float64)
    found = find_features(sym, model, x)
    assert {owner: len(where) for owner, where in found.items()} == {"h": 1, "qk": 2, "vo": 2}
    site = found["qk"][0].site
    assert site.operation == "bmm"
    assert site.feature.axes[0] == Product((Fixed(0), Units("h")))
    rows = units_by_samples(sym, found["qk"][0], seen(model, params, x)[site.key])
    q = F.linear(x, params["attention.in_proj_weight"][:6], params["attention.in_proj_bias"][:6]) / math.sqrt(2)
    assert torch.allclose(rows.sort(1).values, q.reshape(35, 6).T.sort(1).values)


class Writer(nn.Module):
    """Writes into what it has read, casts on the way, and multiplies by weights it has transposed itself."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 5), nn.Linear(5, 5)
        self.last = nn.Parameter(torch.randn(2, 5))
        self.register_buffer("gain", torch.full((5,), 0.5), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.first(x))
        h += self.second(h)
        return (h * self.gain).float().to(h.dtype) @ self.last.T


def test_what_is_written_over_is_seen_as_it_was_read():
    torch.manual_seed(0)
    model = Writer().train()
    axes = {"first.weight": "s", "first.bias": "s", "second.weight": "s /s", "second.bias": "s", "last": "- /s"}
    sym = Symmetry.from_axes(axes, model)
    params = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    x = torch.randn(6, 4)
    found = find_features(sym, model, x)["s"]
    # The transposed weight is read by a contraction, too, but no input moves it.
    assert [(p.site.call, p.site.argument) for p in found] == [(1, 0), (2, 0)]
    h = F.relu(model.first(x))
    assert torch.allclose(units_by_samples(sym, found[0], seen(model, params, x)[1, 0]), h.T)
    assert all(module.training for module in model.modules())


class Mixer(nn.Module):
    """A hidden layer across tokens: its units are seen only beside channels, which permute as well."""

    def __init__(self):
        super().__init__()
        self.embed, self.token1, self.token2, self.fc = (nn.Linear(*s) for s in ((3, 5), (4, 6), (6, 4), (5, 2)))

    def forward(self, x: Tensor) -> Tensor:
        h = F.gelu(self.embed(x))
        return self.fc((h + self.token2(F.gelu(self.token1(h.mT))).mT).mean(1))


def test_units_beside_another_class_are_not_seen():
    torch.manual_seed(0)
    model = Mixer()
    axes = {"embed.weight": "c", "embed.bias": "c", "fc.weight": "- c",
            "token1.weight": "t", "token1.bias": "t", "token2.weight": "- t"}  # fmt: skip
    sym = Symmetry.from_axes(axes, model)
    found = find_features(sym, model, torch.randn(5, 4, 3))
    assert [p.site.call for p in found["c"]] == [1, 3]
    assert found["t"] == ()


class Tokens(nn.Module):
    """Whole numbers in."""

    def __init__(self):
        super().__init__()
        self.embed, self.fc = nn.Embedding(9, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.embed(x))


def test_inputs_may_be_whole_numbers():
    torch.manual_seed(0)
    model = Tokens()
    sym = Symmetry.from_axes({"embed.weight": "- s", "fc.weight": "- /s"}, model, scales="nonzero")
    found = find_features(sym, model, torch.randint(9, (6, 4)))
    assert [(p.site.call, sorted(p.flips)) for p in found["s"]] == [(0, ["s"])]


def test_same_places_on_other_inputs_and_no_randomness():
    model, sym, _, x, found = setting("cct, renormalised")
    state = torch.get_rng_state()
    # What is found is a fact of the architecture.
    assert find_features(sym, model, x[5:] + 1) == find_features(sym, model, x[5:] + 1) == found
    assert torch.equal(state, torch.get_rng_state())


def test_a_model_of_another_symmetry_is_refused():
    model, _, _, x, _ = setting("flatten")
    sym = made("concatenation")[1]
    with pytest.raises(InputError, match=r"knows 'a.weight', which model \(FlattenCNN\) has not"):
        find_features(sym, model, x)
    wider = Symmetry.from_axes({"fc.weight": "- /s"}, nn.ModuleDict({"fc": nn.Linear(5, 2)}))
    with pytest.raises(InputError, match=r"'fc.weight' of model .* has shape \(2, 4\); the symmetry expects \(2, 5\)"):
        find_features(wider, nn.ModuleDict({"fc": nn.Linear(4, 2)}), x)
    both = nn.ModuleDict({"fc": nn.Linear(5, 2), "extra": nn.Linear(1, 1)})
    with pytest.raises(InputError, match=r"has 'extra.weight', which the symmetry does not know"):
        find_features(wider, both, x)
    with pytest.raises(InputError, match="model is a dict; expected"):
        find_features(wider, {}, x)


def test_tied_tensors_that_differ_are_refused():
    model, sym, params, x, _ = setting("tied embeddings")
    apart = params | {"head.weight": params["embed.weight"] + 1}
    with pytest.raises(InputError, match=r"'head.weight' and 'embed.weight' are one tensor in the model and differ"):
        match_activations(sym, params, apart, model=model, data=x)
