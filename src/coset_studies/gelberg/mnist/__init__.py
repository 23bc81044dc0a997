"""MNIST by mean fields and by mean fields averaged over permutations."""
