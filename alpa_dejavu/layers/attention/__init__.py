"""Attention in jaxprs: where it is, and how its operations become one kernel's, which keeps the scores to itself."""
