"""What a setting may be."""

import math
from numbers import Real


def is_number(value: object) -> bool:
    """Whether a setting is a finite number: no text, and neither True nor False."""
    return not isinstance(value, bool) and isinstance(value, Real) and math.isfinite(value)
