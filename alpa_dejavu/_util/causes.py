"""The errors that an error comes from."""

from __future__ import annotations


def with_causes(error: BaseException) -> list[BaseException]:
    """Returns an error, the one that it was raised from or while handling, and so on to the first one.

    >>> with_causes(KeyError("a"))
    [KeyError('a')]
    """
    errors = [error]
    while (cause := errors[-1].__cause__ or errors[-1].__context__) is not None and cause not in errors:
        errors.append(cause)
    return errors
