"""The interface of exchanges: what each worker does, as a program."""

from __future__ import annotations

import abc

from alpa_dejavu.playground._world import Program, Worker

__all__ = ["Exchange"]


class Exchange(abc.ABC):
    """A way in which workers train together; `alpa_dejavu.playground.testing.check_exchange` says if one is sound.

    Exchanges are frozen dataclasses of their settings: what changes while they run lies in the workers, the world's
    board, and the program's own variables.
    """

    @abc.abstractmethod
    def run(self, worker: Worker) -> Program:
        """Runs on each worker from its start on; yields what it waits for.

        A server is a program that one of the workers spawns. A worker that was lost and comes back runs this anew,
        with the parameters that it had at the beginning.

        Args:
            worker: the worker that it runs on.

        >>> from alpa_dejavu.playground import Job, Until, simulate
        >>> from alpa_dejavu.testing import example_cluster
        >>> class Alone(Exchange):
        ...     def run(self, worker):
        ...         while True:
        ...             gradient = yield worker.compute()
        ...             worker.update(gradient.values, gradient)
        >>> history = simulate(Job(None, 0.5, num_bytes=0), example_cluster(), Alone(), until=Until(steps=3))
        >>> history.end_s, history.end, history.num_bytes
        (1.5, 'steps', 0.0)
        """
