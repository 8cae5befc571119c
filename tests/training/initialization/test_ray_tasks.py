"""What is sent to workers, with actors that stand in for Ray's: no cluster is there."""

from __future__ import annotations

import contextlib
import os
import types

import pytest

from alpa_dejavu.training import _ray
from alpa_dejavu.training.initialization import parallel_initialize
from small_models import regression


class Died(Exception):
    pass


class Ray:
    """Actors that do what they are given when it is asked for; one may die in a task, or when asked, by number."""

    exceptions = types.SimpleNamespace(RayActorError=Died, ObjectLostError=Died)

    def __init__(self, dies_in=None, memory=(), dies_asked=(), is_slow=False):
        self.sent, self._dies_in, self._is_slow = [], dies_in, is_slow
        self.asked, self._memory, self._dies_asked = 0, memory, dies_asked

    def put(self, value):
        return value

    def remote(self, cls):
        kind = types.SimpleNamespace(remote=lambda model: self._actor(cls, model))
        return types.SimpleNamespace(options=lambda **_: kind)

    def wait(self, handles, num_returns, timeout=None):
        ready = 1 if self._is_slow else num_returns
        return handles[:ready], handles[ready:]

    def get(self, handle):
        return handle()

    def kill(self, actor):
        pass

    def _actor(self, cls, model):
        worker = cls(model)

        def answer(dies, method, *arguments):
            def answered():
                if dies:
                    raise Died
                return method(*arguments)

            return answered

        def train(task, states):
            self.sent.append((worker, task, states is not None))
            return answer(len(self.sent) - 1 == self._dies_in, worker.train, task, states)

        def fitting(lanes, memory_bytes):
            number, self.asked = self.asked, self.asked + 1
            limit = self._memory[number] if self._memory else memory_bytes
            return answer(number in self._dies_asked, worker.fitting, lanes, limit)

        methods = {"train": train, "fitting": fitting}
        return types.SimpleNamespace(**{name: types.SimpleNamespace(remote=each) for name, each in methods.items()})


def test_the_worker_with_the_least_memory_says_how_many_go_side_by_side(monkeypatch, caplog):
    def run(**given):
        monkeypatch.setattr(_ray, "connected", lambda options: ray)
        return parallel_initialize(*regression(), num_candidates=4, budget_steps=16, rungs=(4,), workers=3, **given)

    # Without a limit here, one of three has room for a part of them alone.
    ray = Ray(memory=(1e9, 1500, 1e9))
    fewer = run(lanes=4)
    assert "don't fit in 1500 bytes" in fewer.notes[0]
    assert max(len(task.numbers) for _, task, _ in ray.sent) < 4
    ray = Ray(memory=(1e9, 1e9, 10))
    with pytest.raises(ValueError, match=r"one candidate takes .* but the device has 10 bytes;"):
        run(lanes=4)
    assert not ray.sent
    ray = Ray(dies_asked=(1,))
    assert (run(lanes=4).notes, ray.asked) == ((), 4)
    ray = Ray(is_slow=True)
    assert run(lanes=4).notes == ()
    assert "2 of 3 workers haven't begun after 30 s" in caplog.text
    ray = Ray(dies_asked=(1, 3, 4))
    with pytest.raises(RuntimeError, match="died 3 times when it was asked"):
        run(lanes=4)


@pytest.mark.alpa
def test_workers_need_a_cluster():
    with pytest.raises(RuntimeError, match=r"isn't connected to Ray; call ray\.init\(\) first"):
        parallel_initialize(*regression(), num_candidates=4, budget_steps=32, workers=2)
    with pytest.raises(ValueError, match="worker_options has 1 mappings for 2 workers; give one for each, or one"):
        parallel_initialize(*regression(), num_candidates=4, budget_steps=32, workers=2, worker_options=[{}])


@pytest.mark.ray
def test_two_workers_give_what_none_give_and_one_that_dies_is_replaced(tmp_path):
    from alpa_dejavu.alpa.local_cluster import local_cluster

    init_fn, train_step, batches = regression()
    options = {"num_candidates": 6, "budget_steps": 40, "lanes": 2, "checkpoint_steps": 4}
    alone = parallel_initialize(init_fn, train_step, batches, **options)
    driver, killed = os.getpid(), tmp_path / "killed"

    def batch(step):
        if step == 6 and os.getpid() != driver:
            with contextlib.suppress(FileExistsError):  # one worker alone dies
                killed.touch(exist_ok=False)
                os._exit(1)
        return batches[step % len(batches)]

    with local_cluster(devices=2):
        with pytest.raises(ValueError, match="9 workers need 9 CPU, but the Ray cluster has 8"):
            parallel_initialize(init_fn, train_step, batches, workers=9, **options)
        together = parallel_initialize(
            init_fn, train_step, batch, workers=2, checkpoints=tmp_path / "checkpoints", **options
        )
    assert killed.exists()
    assert together.restarts == 1
    assert together.chosen == alone.chosen
    for one, other in zip(together.curves, alone.curves, strict=True):
        assert (one.losses == other.losses).all()
        assert (one.relative_gradients == other.relative_gradients).all()
        assert one.why == other.why
    assert (together.state["params"]["matrix"] == alone.state["params"]["matrix"]).all()
    assert together.total_steps == alone.total_steps
