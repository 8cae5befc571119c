"""Simulated training seen from outside: what workers send to each other, and whose updates parameters have."""

import math
import typing

import numpy as np
import optax

from alpa_dejavu.playground import Job, Problem, Until, simulate
from alpa_dejavu.playground.fault import Fault
from alpa_dejavu.testing import example_cluster


class Sent(typing.NamedTuple):
    """A message as it was sent."""

    source: int
    target: int
    tag: object
    payload: object
    num_bytes: float
    sent_s: float


class Messages(Fault):
    """Keeps all messages, those of a worker to itself among them, all gradients, and the simulation's world; changes
    nothing.
    """

    def __init__(self):
        self.sent, self.gradients = [], []

    def run(self, world):
        """Looks at each message before it is sent, and at each gradient when it is begun."""
        self.world, send, gradient = world, world.send, world.learner.gradient

        def seen(source, target, tag, payload, num_bytes):
            self.sent.append(Sent(source, target, tag, payload, num_bytes, world.now_s))
            send(source, target, tag, payload, num_bytes)

        def begun(*given):
            self.gradients.append(gradient(*given))
            return self.gradients[-1]

        world.send, world.learner.gradient = seen, begun
        yield from ()

    def tagged(self, tag):
        """Returns the messages with a tag, in the order in which they were sent."""
        return [message for message in self.sent if message.tag == tag]

    def __repr__(self):
        return "Messages()"


def counting_job(compute_s, **more):
    """Returns a job that counts: parameter n is how many updates by worker n's gradients the parameters have, whatever
    an exchange does with them, as that worker's gradient is -1 there, and 0 elsewhere.
    """
    workers = len(compute_s)
    rows = np.eye(workers, dtype=np.float32), np.zeros(workers, np.float32)
    counts = Problem("counts", lambda key: np.zeros(workers, np.float32),
                     lambda params, batch: -(params * batch[0]).sum(axis=-1).mean(), None, rows, rows)  # fmt: skip
    return Job(counts, compute_s, 1, optax.sgd(1.0), shards=[[n] for n in range(workers)], **more)


def simulated(job, hosts, way, *, steps=None, seconds=math.inf, **more):
    """Simulates a training on so many hosts, of so many devices each, until steps or seconds."""
    return simulate(job, example_cluster(*hosts), way, until=Until(seconds, steps), **more)
