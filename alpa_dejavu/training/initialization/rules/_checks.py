"""Checks that several rules make."""

from __future__ import annotations


def at_least_two(owner: str, eta: int) -> None:
    """Raises ValueError unless candidates become fewer."""
    if not (isinstance(eta, int) and eta >= 2):
        raise ValueError(f"{owner}: eta is {eta!r}, but must be a whole number of at least 2: one in eta goes on")
