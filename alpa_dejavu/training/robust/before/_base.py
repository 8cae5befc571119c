"""The interface of preparations."""

from __future__ import annotations

import abc
from typing import Any

__all__ = ["Preparation"]


class Preparation(abc.ABC):
    """A change of the replicas' gradients before a rule makes one of them.

    A replica of which a value isn't finite stays so, or leaves the others alone.
    """

    @abc.abstractmethod
    def prepare(self, gradients: Any, state: Any = None) -> tuple[Any, Any]:
        """Returns the prepared gradients, and the state for the next call.

        Args:
            gradients: a pytree with leaves [N, ...].
            state: that of the last call; None: there was none.
        """
