"""Workers that mix their parameters with those of a few others, without a server."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Sequence
from typing import final

import numpy as np

from alpa_dejavu.playground._arrays import Vector
from alpa_dejavu.playground._queue import Message
from alpa_dejavu.playground._world import Exchange, Program, Subprogram, Worker, World
from alpa_dejavu.playground.topology import Topology, topology

_WEIGHT_BYTES = 4.0


@final
@dataclasses.dataclass(frozen=True)
class Gossip(Exchange):
    """Each worker computes a gradient while its parameters are on the way to its neighbours, mixes theirs with its own,
    and updates by its gradient (D-PSGD). With Adam the second moment's tracker is mixed, too.

    References:
        Lian and others, Can Decentralized Algorithms Outperform Centralized Algorithms?, NIPS 2017.
        Chen and others, Toward Communication Efficient Adaptive Gradient Method, 2021 (the second moment).
    """

    topology: str | Topology = "ring"

    def run(self, worker: Worker) -> Program:
        rule = topology(self.topology)
        for number in itertools.count(worker.world.first_step[worker.number]):
            if worker.finished:
                return
            targets, weights = _round_of(worker.world, rule, number)[worker.number]
            sent = _mixed_state(worker)
            for target in targets:
                worker.send(target, ("mix", number), sent, worker.world.num_bytes * len(sent))
            gradient = yield worker.compute()
            messages = yield from _received(worker, ("mix", number), weights)
            senders = {message.sender for message in messages}
            parts = [(weights[message.sender], message.payload) for message in messages]
            own = 1 - sum(weight for sender, weight in weights.items() if sender in senders)
            _take(worker, _weighted([(own, sent), *parts]))
            worker.update(gradient.values, gradient)


@final
@dataclasses.dataclass(frozen=True)
class PushSum(Exchange):
    """Each worker updates, and sends shares of its parameters and of a weight to others, which add up what they get;
    gradients are computed at parameters over weight (stochastic gradient push). Messages need no answer, so who sends
    to whom may be one-sided. With Adam the second moment's tracker is shared, too.

    References:
        Assran, Loizou, Ballas and Rabbat, Stochastic Gradient Push for Distributed Deep Learning, ICML 2019.
    """

    topology: str | Topology = "one-peer"

    def run(self, worker: Worker) -> Program:
        rule = topology(self.topology)
        total, weight = worker.params, np.float32(1.0)
        for number in itertools.count(worker.world.first_step[worker.number]):
            targets, expected = _round_of(worker.world, rule, number)[worker.number]
            gradient = yield worker.compute()
            before = worker.params
            worker.update(gradient.values, gradient)
            share = np.float32(1.0 / (len(targets) + 1))
            # A moment goes as weight times what it is, so that it stays above 0 however small the weight is.
            moments = [weight * moment for moment in _mixed_state(worker)[1:]]
            totals, weight = [share * vector for vector in (total + (worker.params - before), *moments)], weight * share
            num_bytes = worker.world.num_bytes * len(totals) + _WEIGHT_BYTES
            for target in targets:
                worker.send(target, ("push", number), (totals, weight), num_bytes)
            messages = yield from _received(worker, ("push", number), expected)
            for message in messages:
                totals = [mine + theirs for mine, theirs in zip(totals, message.payload[0], strict=True)]
                weight = weight + message.payload[1]
            worker.world.board["weight", worker.number] = float(weight)
            total = totals[0]
            _take(worker, tuple(vector / weight for vector in totals))


@final
@dataclasses.dataclass(frozen=True)
class AsynchronousGossip(Exchange):
    """Each worker with an even number computes while it averages its parameters with a random odd one's, then updates
    by its gradient, whatever happened meanwhile (AD-PSGD). Nobody waits for a round. Pairs of even and odd ones only
    never wait for each other in a circle, and each average is of both workers' parameters at one time.

    References:
        Lian, Zhang, Zhang and Liu, Asynchronous Decentralized Parallel Stochastic Gradient Descent, ICML 2018.
    """

    def run(self, worker: Worker) -> Program:
        if worker.number % 2:
            worker.spawn(self._answer(worker))
        return self._train(worker)

    def _train(self, worker: Worker) -> Program:
        for number in itertools.count():
            if worker.finished:
                return
            odd = [other for other in worker.world.live if other % 2]
            asks = worker.number % 2 == 0 and bool(odd)
            target, came_s = -1, 0.0
            if asks:
                sent = _mixed_state(worker)
                target = odd[int(worker.generator.integers(len(odd)))]
                came_s = worker.world.came_s[target]
                worker.send(target, "average", (number, sent), worker.world.num_bytes * len(sent))
            gradient = yield worker.compute()
            if asks:
                still = functools.partial(_same, worker.world, target, came_s)
                for message in (yield worker.receive(("averaged", number), still)):
                    _take(worker, message.payload)
            worker.update(gradient.values, gradient)

    def _answer(self, worker: Worker) -> Program:
        while True:
            (message,) = yield worker.receive("average")
            number, theirs = message.payload
            both = _weighted([(0.5, _mixed_state(worker)), (0.5, theirs)])
            _take(worker, both)
            worker.version += 1
            worker.send(message.sender, ("averaged", number), both, worker.world.num_bytes * len(both))


def _same(world: World, number: int, came_s: float) -> int:
    """1 if a worker is there that came at a time, else 0."""
    return int(world.present[number] and world.came_s[number] == came_s)


def _received(worker: Worker, tag: tuple[str, int], senders: Iterable[int]) -> Subprogram[list[Message]]:
    """Waits for a round's messages of those senders that take part in it: that are there, and came before it began."""
    world, messages = worker.world, dict[int, Message]()

    def missing() -> int:
        return sum(
            world.present[number] and world.first_step[number] <= tag[1] and number not in messages
            for number in senders
        )

    while missing():
        messages.update({message.sender: message for message in (yield worker.receive(tag, missing))})
    return [message for _, message in sorted(messages.items())]


def _round_of(world: World, rule: Topology, number: int) -> list[tuple[list[int], dict[int, float]]]:
    """Returns for each worker to whom it sends in a round, and the weights of those that send to it."""
    key = "round", number
    if key not in world.board:
        mixing = rule.mixing(number, world.size, world.generator(number))
        of_workers: list[tuple[list[int], dict[int, float]]] = [([], {}) for _ in range(world.size)]
        every = zip(mixing.sources.tolist(), mixing.targets.tolist(), mixing.weights.tolist(), strict=True)
        for source, target, weight in every:
            of_workers[source][0].append(target)
            of_workers[target][1][source] = weight
        world.board[key] = of_workers
        # No worker is more rounds behind another than there are workers between them.
        world.board.pop(("round", number - world.size - 1), None)
    rounds: list[tuple[list[int], dict[int, float]]] = world.board[key]
    return rounds


def _mixed_state(worker: Worker) -> tuple[Vector, ...]:
    """Returns the part of a worker that is mixed with others: its parameters, and its tracker of the second moment."""
    moment = worker.world.learner.second_moment(worker.state)
    return (worker.params,) if moment is None else (worker.params, moment)


def _take(worker: Worker, mixed: tuple[Vector, ...]) -> None:
    worker.adopt(mixed[0], worker.version)
    if len(mixed) > 1:
        worker.state = worker.world.learner.with_second_moment(worker.state, mixed[1])


def _weighted(parts: Iterable[tuple[float, Sequence[Vector]]]) -> tuple[Vector, ...]:
    """The sums of weighted vectors, added in their order."""
    (weight, first), *others = parts
    totals = [np.float32(weight) * vector for vector in first]
    for weight, vectors in others:
        for total, vector in zip(totals, vectors, strict=True):
            total += np.float32(weight) * vector
    return tuple(totals)
