"""The errors that an error comes from."""

from __future__ import annotations

__all__ = ["with_causes"]


def with_causes(error: BaseException) -> list[BaseException]:
    """Returns an error, the one that it was raised from or while handling, and so on to the first one.

    >>> with_causes(KeyError("a"))
    [KeyError('a')]
    """
    found = [error]
    while (cause := found[-1].__cause__ or found[-1].__context__) is not None and cause not in found:
        found.append(cause)
    return found
