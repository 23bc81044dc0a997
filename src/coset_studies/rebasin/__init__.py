"""Alignment and merging of trained networks: Git Re-Basin, REPAIR and what followed."""
