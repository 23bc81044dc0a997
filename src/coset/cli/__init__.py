"""The command line: thin; every command is a function of the library."""

import os

# Threads that spin while they wait collapse as soon as anything else runs; torch reads this when it is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from coset.cli.commands import app, main

__all__ = ["app", "main"]
