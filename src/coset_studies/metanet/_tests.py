"""Names of the sets of networks that methods are tested on."""

SAME = "same architecture"
WIDER = "wider"
NORMED = "batch norm"
FOLDED = "batch norm, folded"
TESTS = (SAME, WIDER, NORMED, FOLDED)

MEAN = "mean of both"
"""In place of a data set: the mean over data sets."""
