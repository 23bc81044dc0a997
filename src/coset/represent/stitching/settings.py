"""What a setting may be."""

import math
from numbers import Real


def is_number(value: object) -> bool:
    """Whether a setting is a finite number: no text, and neither True nor False."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        # A whole number beyond all floats.
        return False
