"""Shifts and flips against one image at a time."""

import pytest
import torch
from torch import Tensor

from coset.train.augment import Motions, move, shifts, shifts_and_flips


def brute_force(image: Tensor, row: int, column: int, flip: bool) -> Tensor:
    """The same motion of one image (C, H, W), pixel by pixel."""
    channels, height, width = image.shape
    moved = torch.zeros_like(image)
    for c in range(channels):
        for i in range(height):
            for j in range(width):
                source_i, source_j = i + row, (width - 1 - j if flip else j) + column
                if 0 <= source_i < height and 0 <= source_j < width:
                    moved[c, i, j] = image[c, source_i, source_j]
    return moved


@pytest.mark.parametrize("draw", [shifts, shifts_and_flips])
def test_a_batch_moves_as_each_of_its_images(draw) -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(9, 2, 5, 7, generator=generator)
    motions = draw(20, 3, generator)
    moved = move(images, motions, start=4)
    for b in range(9):
        row, column = motions.offsets[4 + b].tolist()
        assert torch.equal(moved[b], brute_force(images[b], row, column, bool(motions.flips[4 + b])))


def test_no_offset_and_no_flip_is_the_identity() -> None:
    images = torch.randn(3, 1, 4, 6, generator=torch.Generator().manual_seed(0))
    still = Motions(2, torch.zeros(3, 2, dtype=torch.long), torch.zeros(3, dtype=torch.bool))
    assert torch.equal(move(images, still, 0), images)


def test_a_flip_alone_is_torch_flip_and_keeps_other_memory_formats() -> None:
    images = torch.randn(3, 2, 4, 6, generator=torch.Generator().manual_seed(0))
    mirror = Motions(2, torch.zeros(3, 2, dtype=torch.long), torch.ones(3, dtype=torch.bool))
    assert torch.equal(move(images, mirror, 0), images.flip(3))
    assert torch.equal(move(images.contiguous(memory_format=torch.channels_last), mirror, 0), images.flip(3))


def test_draws_reach_every_motion_evenly() -> None:
    motions = shifts_and_flips(20_000, 2, torch.Generator().manual_seed(1))
    cells = torch.bincount((motions.offsets[:, 0] + 2) * 10 + (motions.offsets[:, 1] + 2) * 2 + motions.flips.long())
    assert len(cells) == 50
    # Chi-square with 49 degrees of freedom: above 85 with a probability of 0.001.
    assert float((cells - 400).square().sum() / 400) < 85


def test_shift_alone_never_flips() -> None:
    assert not shifts(1000, 2, torch.Generator().manual_seed(0)).flips.any()
