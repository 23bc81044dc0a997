"""One Gaussian fitted to a mixture of two by the reverse KL."""
