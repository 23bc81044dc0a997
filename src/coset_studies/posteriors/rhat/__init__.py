"""R̂ of chains on weights, on functions, and modulo symmetry."""
