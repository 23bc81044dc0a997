"""Mean-field VI on MNIST."""
