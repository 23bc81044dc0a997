"""The store of trained networks: one safetensors file for each configuration, shared safely by many processes."""

from coset.store.entry import DamagedEntryError, Entry
from coset.store.store import Pruned, Row, Store

__all__ = ["DamagedEntryError", "Entry", "Pruned", "Row", "Store"]
