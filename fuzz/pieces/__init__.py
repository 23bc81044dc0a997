"""Pieces of random networks, each written as source code: the table ``PIECES``."""

from fuzz.pieces import attention, joins, layers, norms, reshapes, ties
from fuzz.pieces.source import PIECES, Kind, Source, UnfitError

__all__ = ["PIECES", "Kind", "Source", "UnfitError", "attention", "joins", "layers", "norms", "reshapes", "ties"]
