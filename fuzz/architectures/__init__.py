"""Architectures of ``transformers`` and ``diffusers``, small: their groups, and whether they are sound.

``./dev run python -m fuzz.architectures [NAMES…] [--write]`` prints the table, or puts it into docs/discovery.md.
"""

from fuzz.architectures.architecture import Architecture
from fuzz.architectures.diffusion import DIFFUSION
from fuzz.architectures.speech import SPEECH
from fuzz.architectures.text import TEXTS
from fuzz.architectures.vision import VISION

ARCHITECTURES: dict[str, Architecture] = {**TEXTS, **VISION, **SPEECH, **DIFFUSION}
