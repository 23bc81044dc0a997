"""The store of trained networks: one safetensors file for each configuration, shared safely by many processes."""

from coset.store._entry import DamagedEntryError, Entry
from coset.store._listing import Pruned, Row
from coset.store._store import Store

__all__ = ["DamagedEntryError", "Entry", "Pruned", "Row", "Store"]
