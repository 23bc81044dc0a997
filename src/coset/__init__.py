"""coset: neural networks modulo their symmetries."""

from importlib.metadata import version

__version__ = version("coset")
