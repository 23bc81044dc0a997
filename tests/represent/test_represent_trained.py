"""Measures on networks trained by others."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from coset.models import build
from coset.represent import cka, features, layer_groups, named_group, procrustes
from declared import declared

LAYERS = ["conv1", "relu1", "conv4", "relu4", "relu8", "fc"]


@pytest.fixture(scope="module")
def tiny10(checkpoint_folder, data_folder):
    model = build("tiny10").eval()
    files = [load_file(checkpoint_folder / f"tiny10-seed{seed}.safetensors") for seed in (0, 1)]
    weights = [{name: t.double() if t.is_floating_point() else t for name, t in file.items()} for file in files]
    pictures = torch.tensor(np.load(data_folder / "cifar10-slice.npz")["x_test"][:60]) / 255
    center, spread = (torch.tensor(row).reshape(3, 1, 1) for row in ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.201)))
    images = (pictures - center) / spread
    return model, weights, images


def test_trained_networks_of_one_orbit_are_at_distance_0_modulo_their_layers_groups(tiny10):
    model, (theta, _), images = tiny10
    sym = declared(model)
    groups = layer_groups(sym, model, LAYERS, images)
    assert [named_group(groups[name]) for name in LAYERS] == [
        # Before the batch norm a channel's sign is free as well as its scale.
        "signed-permutation", "permutation", "signed-permutation", "permutation", "permutation", "trivial",
    ]  # fmt: skip
    moved = sym.act(sym.random(torch.Generator().manual_seed(0)), theta)
    before, after = (features(model, images[:20], LAYERS, params=params) for params in (theta, moved))
    for name in LAYERS:
        assert procrustes(before[name], after[name], group=groups[name]).distance < 1e-9
        assert cka(before[name], after[name], group=groups[name]) == pytest.approx(1, abs=1e-9)
    assert procrustes(before["relu4"], after["relu4"], group="orthogonal").distance > 0.05


def test_independent_networks_are_less_alike_modulo_permutations_than_modulo_rotations(tiny10):
    """Figure 5 of Godfrey et al. 2022 in small: G_ReLU-CKA is smaller, and falls more with depth."""
    model, (a, b), images = tiny10
    layers = ["relu1", "relu4", "relu8"]
    x, y = (features(model, images, layers, params=params) for params in (a, b))
    values = {
        group: torch.tensor([cka(x[name], y[name], group=group) for name in layers])
        for group in ("orthogonal", "permutation")
    }
    assert bool((values["permutation"] < values["orthogonal"]).all())
    fall = {group: float(found[0] - found[-1]) for group, found in values.items()}
    assert fall["permutation"] > fall["orthogonal"]
