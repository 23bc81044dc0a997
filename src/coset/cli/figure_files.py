"""The four files of a figure and its numbers, whose places are looked at before anything is computed."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from coset.errors import InputError

SUFFIXES = (".png", ".svg", ".json", ".csv")


def reserve_figure(out: Path | None, inputs: Sequence[Path], stack: ExitStack) -> None:
    """Raise unless the files of the stem ``out`` can be written and are none of ``inputs``.

    Folders made for them are gone when the ``stack`` closes without a file in them.
    """
    from coset.checkpoints import output_file

    if out is None:
        return
    if out.suffix in SUFFIXES or not out.name:
        raise InputError(f"--out is {out}; expected a stem, to which {', '.join(SUFFIXES)} are added")
    for suffix in SUFFIXES:
        stack.enter_context(output_file(out.with_name(out.name + suffix), inputs))
