"""A server that updates by each gradient when it comes, if that agrees with a gradient that it trusts (Zeno++)."""

from __future__ import annotations

import collections
import dataclasses
from typing import final

import numpy as np

from alpa_dejavu.playground._arrays import Vector
from alpa_dejavu.playground._world import Exchange, Program, Worker
from alpa_dejavu.playground.exchanges._server import push, serves
from alpa_dejavu.playground.exchanges._server_parts import ServerModel
from alpa_dejavu.problem import checks


@final
@dataclasses.dataclass(frozen=True)
class ZenoServer(Exchange):
    """A server updates by each gradient when it comes, scaled to the length of a trusted one, if it agrees with that
    (Zeno++); others are dropped. One right worker is enough.

    The trusted gradient is on samples of the server's own, drawn anew from all training samples. The server computes it
    beside its worker, at the parameters that it has, and goes on with the old one meanwhile; it begins again after so
    many gradients. A gradient u, scaled to the length of the trusted one v, is taken if
    rate <v, u> - penalty |u|² + rate slack is at least 0. Notes name workers of whose gradients, ten
    at least, over half weren't.

    Attributes:
        every: after how many gradients of workers the next trusted one is begun.

    References:
        Xie, Koyejo and Gupta, Zeno++: Robust Fully Asynchronous SGD, ICML 2020.
    """

    samples: int = 32
    every: int = 4
    rate: float = 0.1
    penalty: float = 1e-4
    slack: float = 0.0
    server: int = 0

    def __post_init__(self) -> None:
        checks.count("zeno server", "samples", self.samples)
        checks.count("zeno server", "every", self.every)
        checks.fields("zeno server", self, "rate", "penalty slack")

    def run(self, worker: Worker) -> Program:
        if serves(worker, self.server):
            judge = _ZenoJudge(worker, self)
            worker.spawn(judge.trust())
            worker.spawn(self._serve(worker, judge))
        return push(worker, self.server)

    def _serve(self, worker: Worker, judge: _ZenoJudge) -> Program:
        yield worker.receive("trusted")  # nothing can be judged before
        while True:
            (message,) = yield worker.receive("gradient")
            judge.judge(message.sender, message.payload.values)
            if judge.accepted:
                judge.model.update({message.sender: message})
            else:
                worker.drop(message.payload)
            judge.model.reply(message)
            judge.go_on()


@final
class _ZenoJudge:
    """The trusted gradient that a server has, and its verdicts: whether the last gradient was accepted."""

    def __init__(self, worker: Worker, settings: ZenoServer) -> None:
        self.model, self.accepted = ServerModel(worker, lambda _: self._scaled), False
        self._worker, self._settings, self._computes, self._since = worker, settings, True, 0
        self._trusted = self._scaled = np.zeros_like(worker.params)
        self._judged, self._refused = collections.Counter[int](), collections.Counter[int]()

    def trust(self) -> Program:
        """Computes the first trusted gradient, and others when it is asked to."""
        worker, world = self._worker, self._worker.world
        while True:
            params, self._since = self.model.params, self._judged.total()
            rows = worker.generator.integers(max(world.learner.samples, 1), size=self._settings.samples)
            yield worker.sleep(world.compute_seconds(worker.number, len(rows)))
            self._trusted, self._computes = world.learner.per_sample(params, rows).mean(axis=0), False
            if not self._judged:
                worker.send(worker.number, "trusted")
            yield worker.receive("compute")

    def go_on(self) -> None:
        """Has the next trusted gradient be computed where it is time."""
        world = self._worker.world
        due = self._judged.total() - self._since >= self._settings.every
        if due and not self._computes and not all(map(world.finished, world.live)):
            self._computes = True
            self._worker.send(self._worker.number, "compute")

    def judge(self, sender: int, gradient: Vector) -> None:
        self.accepted = True
        if gradient.size:  # it isn't time alone
            from alpa_dejavu.training.robust import Evidence, rule

            settings = self._settings
            chosen = rule("zeno++", rate=settings.rate, penalty=settings.penalty, slack=settings.slack)
            aggregated = chosen.aggregate(gradient[None], None, Evidence(trusted=self._trusted))
            self.accepted, self._scaled = bool(aggregated.weights[0] > 0), np.asarray(aggregated.gradient)
        self._judged[sender] += 1
        self._refused[sender] += not self.accepted
        if self._judged[sender] >= 10 and 2 * self._refused[sender] > self._judged[sender]:
            self._worker.world.recorder.note(f"zeno-server: over half of the gradients of worker {sender} didn't agree "
                                             "with the server's own, and weren't taken")  # fmt: skip
