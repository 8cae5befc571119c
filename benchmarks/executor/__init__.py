"""A small pipeline runtime: Ray processes that run a schedule's lists of tasks on a model of plain JAX."""
