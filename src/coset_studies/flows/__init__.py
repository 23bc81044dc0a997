"""Zoos of networks modulo their symmetries: the thesis on flows over weights, chapters 3.3 and 4.4."""
