"""The rooms of the house, from the ground up: a room imports only from rooms before it."""

INFRASTRUCTURE = (
    "errors",
    "callbacks",
    "_checks",
    "_values",
    "_files",
    "_show",
    "figures",
    "_magnitudes",
    "_batches",
    "_callables",
)
"""What every room may use; none of it knows of networks."""

ROOMS = (
    "running",
    "checkpoints",
    "data",
    "models",
    "train",
    "store",
    "symmetry",
    "geometry",
    "distribution",
    "alignment",
    "canonical",
    "posterior",
    "represent",
    "landscape",
    "zoo",
    "metanet",
    "flow",
    "study",
    "studies",
    "demo",
    "cli",
)

APART = frozenset({"checkpoints", "data", "models", "train", "store"})
"""Rooms of which none imports another."""
