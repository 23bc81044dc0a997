"""Progress bars: one way to report advance, silent unless somebody is watching."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Ticker(Protocol):
    """What a long computation reports to."""

    def advance(self, steps: int = 1, note: str = "") -> None:
        """Say that ``steps`` more steps are done; ``note`` is shown beside the bar."""
        ...


class _Silent:
    def advance(self, steps: int = 1, note: str = "") -> None:
        return None


SILENT: Ticker = _Silent()


@contextmanager
def progress(description: str, total: int, *, show: bool | None = None) -> Iterator[Ticker]:
    """A bar with elapsed and remaining time on stderr; by default only where stderr is a terminal.

    ``with progress("training", total=100) as bar: bar.advance(1, note="loss 0.3")``
    """
    if show is None:
        show = sys.stderr.isatty()
    if not show:
        yield SILENT
        return
    import rich.progress as bars
    from rich.console import Console

    columns = (
        bars.TextColumn("{task.description}"),
        bars.BarColumn(),
        bars.TaskProgressColumn(),
        bars.TimeElapsedColumn(),
        bars.TextColumn("left"),
        bars.TimeRemainingColumn(),
        bars.TextColumn("{task.fields[note]}"),
    )
    with bars.Progress(*columns, console=Console(stderr=True), transient=True) as display:
        task = display.add_task(description, total=total, note="")

        class _Bar:
            def advance(self, steps: int = 1, note: str = "") -> None:
                display.update(task, advance=steps, note=note)

        yield _Bar()
