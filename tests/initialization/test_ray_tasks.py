"""What is sent to workers, with actors that stand in for Ray's: no cluster is there."""

import types

import numpy as np
import pytest
from small_models import regression

from alpa_dejavu.initialization import _ray_workers, parallel_initialize


class Died(Exception):
    pass


class Ray:
    """Actors that do what they are given when it is asked for; one may die in a task, by its number."""

    exceptions = types.SimpleNamespace(RayActorError=Died, ObjectLostError=Died)

    def __init__(self, dies_in=None):
        self.sent, self._dies_in = [], dies_in

    def put(self, value):
        return value

    def remote(self, cls):
        kind = types.SimpleNamespace(remote=lambda model: self._actor(cls, model))
        return types.SimpleNamespace(options=lambda **_: kind)

    def wait(self, handles, num_returns):
        return handles[:1], handles[1:]

    def get(self, handle):
        return handle()

    def kill(self, actor):
        pass

    def _actor(self, cls, model):
        worker = cls(model)

        def train(task, states):
            number = len(self.sent)
            self.sent.append((worker, task, states is not None))

            def outcome():
                if number == self._dies_in:
                    raise Died
                return worker.train(task, states)

            return outcome

        return types.SimpleNamespace(train=types.SimpleNamespace(remote=train))


@pytest.mark.parametrize("dies_in", [None, 9])
def test_states_that_a_worker_has_are_not_sent_to_it_again(dies_in, monkeypatch):
    ray = Ray(dies_in)
    monkeypatch.setattr(_ray_workers, "_connected", lambda options: ray)
    options = {"num_candidates": 6, "budget_steps": 40, "lanes": 2, "checkpoint_steps": 4}
    alone = parallel_initialize(*regression(), **options)
    together = parallel_initialize(*regression(), workers=2, **options)
    assert together.restarts == (dies_in is not None)
    for one, other in zip(together.curves, alone.curves, strict=True):
        assert (one.losses == other.losses).all()
        assert one.why == other.why
    assert (together.state["params"]["matrix"] == alone.state["params"]["matrix"]).all()
    # After the race the chosen one stays where it is.
    last = [(worker, is_sent) for worker, task, is_sent in ray.sent if task.first_step >= 14]
    assert len({worker for worker, _ in last}) == 1
    assert sum(is_sent for _, is_sent in last) <= 1
    left = {}
    for worker, task, is_sent in ray.sent:
        assert is_sent == (left.get(worker) != (task.numbers, task.first_step))
        left[worker] = task.numbers, task.first_step + task.num_steps
    assert np.mean([is_sent for _, _, is_sent in ray.sent]) < 0.7
