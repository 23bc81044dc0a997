"""The store of trained networks: one safetensors file for each configuration, shared safely by many processes."""

from coset.store.entry import DamagedEntryError, Entry
from coset.store.listing import Row
from coset.store.pruning import Pruned
from coset.store.store import Store

__all__ = ["DamagedEntryError", "Entry", "Pruned", "Row", "Store"]
