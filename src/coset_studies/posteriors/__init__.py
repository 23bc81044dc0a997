"""Posteriors of small networks by several methods: beside published results, and modulo their symmetries."""
