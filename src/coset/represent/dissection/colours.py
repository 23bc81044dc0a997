"""Names of colours from pixel values: concepts for any RGB images, without annotation."""

import torch
from torch import Tensor

from coset.errors import InputError
from coset.represent.dissection.images import AnnotatedImages, Concept, masks_of_labels, with_masks

# The eleven basic terms of Berlin and Kay (1969), each with typical values in sRGB, light and dark ones.
_TYPICAL: dict[str, tuple[tuple[int, int, int], ...]] = {
    "black": ((0, 0, 0), (25, 25, 25)),
    "grey": ((75, 75, 75), (128, 128, 128), (185, 185, 185)),
    "white": ((255, 255, 255), (235, 235, 235)),
    "red": ((220, 20, 20), (150, 10, 15)),
    "orange": ((255, 130, 0), (230, 140, 60)),
    "brown": ((115, 70, 25), (80, 50, 25), (165, 115, 70)),
    "yellow": ((255, 230, 0), (240, 220, 110)),
    "green": ((0, 150, 0), (20, 80, 20), (130, 210, 100), (105, 125, 45)),
    "blue": ((0, 0, 255), (15, 25, 110), (50, 100, 180), (110, 180, 250)),
    "purple": ((110, 0, 130), (160, 90, 210), (75, 30, 100)),
    "pink": ((255, 150, 190), (240, 60, 150), (225, 165, 175)),
}
COLOURS = tuple(_TYPICAL)
"""The names of colours, in the order of labels and masks."""

# sRGB to XYZ (IEC 61966-2-1), divided by the white D65.
_XYZ = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
_WHITE = (0.9505, 1.0, 1.089)


def with_colours(data: AnnotatedImages) -> AnnotatedImages:
    """``data``, whose inputs are RGB images (n, 3, H, W) in [0, 1], with eleven concepts of the category "colour".

    Every pixel has one of them. ``transformed_images`` turns pixels into what a model takes, afterwards.
    """
    concepts = tuple(Concept(name, "colour") for name in COLOURS)
    return with_masks(data, concepts, lambda images: masks_of_labels(colour_labels(images), len(COLOURS)))


def colour_labels(images: Tensor) -> Tensor:
    """For each pixel of RGB images (n, 3, H, W) in [0, 1] the number of its name in ``COLOURS``, (n, H, W).

    It is that of the nearest of some typical values in CIELAB, a plain stand-in for the names of van de Weijer et al.
    2009, which were learned from pictures.
    """
    if not isinstance(images, Tensor) or images.ndim != 4 or images.shape[1] != 3 or not images.is_floating_point():
        found = f"{images.dtype} {tuple(images.shape)}" if isinstance(images, Tensor) else type(images).__name__
        raise InputError(f"images is {found}; expected RGB images (n, 3, H, W) in floating point")
    low, high = float(images.min()), float(images.max())
    # NaN is outside, too.
    if not (low >= 0 and high <= 1):
        raise InputError(f"images holds values from {low:.3g} to {high:.3g}; expected RGB values in [0, 1]")
    typical = torch.tensor([value for values in _TYPICAL.values() for value in values], dtype=images.dtype) / 255
    owner = torch.tensor([number for number, values in enumerate(_TYPICAL.values()) for _ in values])
    pixels = to_lab(images.movedim(1, -1)).flatten(0, -2)
    nearest = torch.cdist(pixels, to_lab(typical.to(images.device))).argmin(-1)
    return owner.to(images.device)[nearest].reshape(len(images), *images.shape[2:])


def to_lab(rgb: Tensor) -> Tensor:
    """CIELAB (L*, a*, b*) of sRGB values in [0, 1], both (…, 3); white is D65."""
    linear = torch.where(rgb <= 0.04045, rgb / 12.92, ((rgb.clamp(min=0.04045) + 0.055) / 1.055) ** 2.4)
    matrix = torch.tensor(_XYZ, dtype=rgb.dtype, device=rgb.device)
    xyz = linear @ matrix.mT / torch.tensor(_WHITE, dtype=rgb.dtype, device=rgb.device)
    edge = 6 / 29
    f = torch.where(xyz > edge**3, xyz.clamp(min=edge**3) ** (1 / 3), xyz / (3 * edge**2) + 4 / 29)
    x, y, z = f.unbind(-1)
    return torch.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], -1)
