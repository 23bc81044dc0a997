"""Geometry of weights: spheres, and the gauge without scales that puts the weights of units on them."""
