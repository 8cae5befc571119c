"""Makes Alpa 0.2.3 run on stock jax and jaxlib: see README.md beside this package for the table of patches."""
