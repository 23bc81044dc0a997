"""Pictures of studies: a palette of few colours, and as few bytes as a repository can bear."""

import io

from coset.errors import InputError

LIMIT = 80 * 1024
"""Bytes of a picture at most."""
COLOURS = 256
SHRINK = 0.85
"""By how much a picture is made smaller, again and again, until it is small enough."""
NARROWEST = 400
"""Pixels; what is no smaller at this width is refused."""


def small_png(png: bytes, limit: int = LIMIT) -> bytes:
    """The picture in a palette of 256 colours, with fewer pixels where it would be larger than ``limit`` bytes.

    What is in a palette and small enough already is given back as it is.
    """
    from PIL import Image

    image = Image.open(io.BytesIO(png))
    if image.mode == "P" and len(png) <= limit:
        return png
    whole = image.convert("RGBA")
    paper = Image.new("RGBA", whole.size, "white")
    flat = Image.alpha_composite(paper, whole).convert("RGB")
    width, height = flat.size
    while width >= min(NARROWEST, flat.width):
        scaled = flat if width == flat.width else flat.resize((width, height), Image.Resampling.LANCZOS)
        few = scaled.quantize(COLOURS, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
        made = io.BytesIO()
        few.save(made, format="PNG", optimize=True)
        if len(made.getvalue()) <= limit:
            return made.getvalue()
        width, height = int(SHRINK * width), int(SHRINK * height)
    raise InputError(f"the picture of {flat.width}×{flat.height} pixels is larger than {limit} bytes at any size")
