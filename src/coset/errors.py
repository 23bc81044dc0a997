"""The one kind of error that bad input raises."""


class InputError(ValueError):
    """Bad input: the message names the parameter or file, what was found and what was expected.

    The command line prints the message as one line and exits with code 2.
    """
