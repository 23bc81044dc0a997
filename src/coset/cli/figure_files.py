"""The four files of a figure and its numbers, whose places are looked at before anything is computed."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coset.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from coset.checkpoints import Checkpoint

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


def write_figure(out: Path | None, draw: "Callable[[], Figure]", told: dict[str, Any], lines: str) -> list[str]:
    """Write the four files of the stem ``out``, if there is one, and give their names.

    ``told``: how the numbers came about, and all of them; ``lines``: those of the figure as CSV.
    """
    from coset.figures import write_files

    return [] if out is None else [str(file) for file in write_files(draw(), out, told, lines)]


def told_inputs(checkpoints: "Iterable[Checkpoint]") -> list[dict[str, str]]:
    """From which files numbers come."""
    return [{"file": str(file.where), "sha256": file.sha256} for file in checkpoints]
