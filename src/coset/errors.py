"""The one kind of error that bad input raises."""

from collections.abc import Iterator
from contextlib import contextmanager


class InputError(ValueError):
    """Bad input: the message names the parameter or file, what was found and what was expected.

    The command line prints the message as one line and exits with code 2.
    """


def one_line(message: object, length: int | None = None) -> str:
    """What somebody else says, perhaps in several lines, as one line of at most so many characters."""
    return " ".join(str(message).split())[:length]


@contextmanager
def refusing(what: str) -> Iterator[None]:
    """For bytes and models that nobody vouches for: what they make fail is an InputError, ``what`` and the reason."""
    try:
        yield
    except InputError:
        raise
    # Libraries, their parsers and decompressors fail anywhere in damaged bytes, with any exception.
    except Exception as error:
        raise InputError(f"{what}: {one_line(error) or type(error).__name__}") from error
