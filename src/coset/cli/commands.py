"""All commands under one name, and how they end."""

import io
import signal
import sys
from typing import Annotated

import typer

from coset.cli.align import align
from coset.cli.audit import audit
from coset.cli.barrier import barrier
from coset.cli.compare import compare
from coset.cli.data import data_app
from coset.cli.discover import discover
from coset.cli.evaluate import evaluate
from coset.cli.flow import flow_app
from coset.cli.merge import merge
from coset.cli.overview import demo, version
from coset.cli.store import store_app
from coset.cli.study import study_app
from coset.cli.zoo import zoo_app
from coset.errors import InputError, one_line

app = typer.Typer(
    help="Neural networks modulo their symmetries.",
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _version(asked: bool) -> None:
    if asked:
        version()
        raise typer.Exit


@app.callback()
def root(
    show_version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_version, help="Print versions and exit.")
    ] = False,
) -> None:
    """Neural networks modulo their symmetries."""


for command in (version, demo, discover, align, merge, evaluate, barrier, compare, audit):
    app.command()(command)
app.add_typer(zoo_app, name="zoo")
app.add_typer(flow_app, name="flow")
app.add_typer(study_app, name="study")
app.add_typer(store_app, name="store")
app.add_typer(data_app, name="data")


def main(arguments: list[str] | None = None) -> None:
    """Run the command line: bad input gets one line and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that knows no Greek gets question marks, not a traceback.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    if arguments is None and hasattr(signal, "SIGPIPE"):
        # The reader of a pipe may go away (coset … | head): end quietly, as other commands do.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        code = app(arguments, standalone_mode=False)
        if code == 130:  # the parser's word for an interruption
            print("coset: interrupted", file=sys.stderr)
    except InputError as error:
        code = _complain(str(error))
    except (KeyboardInterrupt, typer.Abort):
        print("coset: interrupted", file=sys.stderr)
        code = 130
    except OSError as error:
        code = _complain(f"{error.strerror or error}: {error.filename or 'output'}")
    except Exception as error:
        # Usage errors of the parser; its classes moved between versions, their method did not.
        if not hasattr(error, "format_message"):
            raise
        message = error.format_message()
        if message.lstrip().startswith("Usage:"):  # a command without arguments: its help
            print(message)
            sys.exit(0)
        code = _complain(message)
    sys.exit(code if isinstance(code, int) else 0)


def _complain(message: str) -> int:
    print(f"coset: {one_line(message)}", file=sys.stderr)
    return 2
