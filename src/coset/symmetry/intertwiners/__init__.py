"""Intertwiner groups of activations: by table and by numerical inference."""
