"""Candidates that fail, and files of results."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import zipfile

import numpy as np
import pytest

from alpa_dejavu.training.initialization import judge, parallel_initialize, read_result
from alpa_dejavu.training.initialization._field import Field, RaceSetting
from alpa_dejavu.training.initialization._layout import RacedModel, layout
from alpa_dejavu.training.initialization._store import StateStore, read_leaves
from alpa_dejavu.training.initialization._trainer import Runner, TaskOutcome, Trainer
from alpa_dejavu.training.initialization.result_file import write_result
from alpa_dejavu.training.initialization.rules import rule
from alpa_dejavu.training.initialization.starts import start
from small_models import regression
from train_steps import norm_of


def fragile(poor, at=2):
    """A model of which some candidates' losses are no number from a step on."""
    init_fn, train_step, batches = regression()

    def marked(key):
        import jax.numpy as jnp

        state = init_fn(key)
        return {**state, "is_poor": (state["params"]["matrix"][0, 0] < poor).astype(jnp.float32)}

    def step(state, batch):
        import jax.numpy as jnp

        rest = {name: value for name, value in state.items() if name != "is_poor"}
        new, loss, norm = train_step(rest, batch)
        breaks = (state["is_poor"] > 0) & (state["steps"] >= at)
        return {**new, "is_poor": state["is_poor"]}, jnp.where(breaks, jnp.nan, loss), norm

    return marked, step, batches


def test_candidates_that_diverge_are_dropped_and_counted():
    result = parallel_initialize(*fragile(0.0), num_candidates=8, budget_steps=64, lanes=8, rungs=(4,))
    diverged = [curve for curve in result.curves if "diverged in step 2" in curve.why]
    assert 1 <= result.diverged == len(diverged) < 8
    for curve in diverged:
        assert len(curve.losses) == curve.dropped_step == 2
        assert np.isfinite(curve.losses).all()
    assert np.isfinite(result.losses).all()
    assert result.steps == 64


def interrupted_at(step):
    init_fn, train_step, batches = regression()

    def batch(number):
        if number == step:
            raise KeyboardInterrupt
        return batches[number % len(batches)]

    return init_fn, train_step, batch


@pytest.mark.parametrize(("step", "kept"), [(2, 0), (6, 4), (40, 36)])
def test_ctrl_c_leaves_the_best_so_far(tmp_path, step, kept):
    init_fn, train_step, batch = interrupted_at(step)
    path = tmp_path / "result.json"
    with pytest.raises(KeyboardInterrupt):
        parallel_initialize(
            init_fn, train_step, batch, num_candidates=8, budget_steps=64, save=path, checkpoint_steps=10, lanes=1
        )
    result = read_result(path, like=init_fn_shape(init_fn))
    assert result.interrupted
    assert result.steps == kept
    assert result.state["steps"] == kept
    best = result.curves[result.chosen]
    assert best.dropped_step is None
    assert len(best.losses) == kept
    left = [curve for curve in result.curves if curve.dropped_step is None]
    assert len(left) == {0: 8, 4: 4, 36: 2}[kept]
    assert all(curve.why.startswith(f"one of {len(left)} that weren't dropped") for curve in left)
    is_best = [curve.number for curve in left if curve.why.endswith("; the best so far")]
    assert is_best == ([best.number] if kept else [])
    assert all("place" in curve.why for curve in result.curves if curve.dropped_step is not None)
    state_file = f"result.step-{kept}.candidate-{best.number}.npz"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["result.json", state_file]


def init_fn_shape(init_fn):
    import jax

    return jax.eval_shape(init_fn, jax.random.PRNGKey(0))


class Killed(Runner):
    """Loses all tasks of one candidate."""

    def __init__(self, trainer, store, number):
        self._trainer, self._store, self._number = trainer, store, number

    def outcomes(self, next_task):
        while (task := next_task()) is not None:
            if self._number in task.numbers:
                yield TaskOutcome.of_nothing(task, "its worker died 3 times")
            else:
                yield self._trainer.train(task, self._store.side_by_side(task.numbers))


def test_candidates_that_kill_their_workers_are_dropped_and_counted():
    setting = RaceSetting(4, 32, (8, 16), np.inf, start("model"), rule("halving"), judge("trend"), 0, 2, 4, False)
    trainer = Trainer(RacedModel(*regression()))
    field = Field(setting, trainer, StateStore(trainer.layout, None), True)
    field.begin()
    field.train_to(Killed(trainer, field.store, 2), range(4), 6)
    assert field.living() == (0, 1)
    assert field.lost == 2
    assert field.candidates[3].why == "its worker died 3 times"
    assert field.total_steps == 12


def test_a_result_file_is_checked(tmp_path):
    path = tmp_path / "result.json"
    init_fn, train_step, batches = regression()
    made = parallel_initialize(init_fn, train_step, batches, num_candidates=2, budget_steps=16, save=path, lanes=1)
    like = init_fn_shape(init_fn)
    read = read_result(path, like)
    assert (read.state["params"]["matrix"] == made.state["params"]["matrix"]).all()
    assert (read.curves[1].losses == made.curves[1].losses).all()
    assert (read.chosen, read.total_steps, read.rungs) == (made.chosen, made.total_steps, made.rungs)
    with pytest.raises(ValueError, match="give the model that the file was written for"):
        read_result(path, like["params"])
    text = path.read_text()
    for change, said in [
        (("result.step", "../result.step"), "must be a file beside it"),
        (('"version": 1', '"version": 2'), "version is 2"),
        (('"chosen": ', '"chosen": 7'), "isn't among the candidates"),
    ]:  # fmt: skip
        path.write_text(text.replace(*change, 1))
        with pytest.raises(ValueError, match=said):
            read_result(path, like)
    path.write_text(text)
    state_file = next(tmp_path.glob("*.npz"))
    state_file.write_bytes(state_file.read_bytes()[:50])
    with pytest.raises(ValueError, match="can't be read as a state"):
        read_result(path, like)


class Leaf:
    """An array that a file claims to hold: its header, and what is there of it."""

    def __init__(self, shape, dtype="<f4", content=b"", version=(1, 0)):
        self.header = np.lib.format.magic(*version)
        text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".encode()
        self.header += len(text).to_bytes(2 if version == (1, 0) else 4, "little") + text
        self.content = content


@pytest.mark.parametrize(
    ("leaf", "said"),
    [
        (Leaf((10**8, 10**6)), r"holds float32\[100000000, 1000000\] for \['a'\], which is float32\[3\]; give"),
        (Leaf((3,), version=(2, 0)), r"leaf_0.npy is in version \(2, 0\) of numpy's format, but must be in \(1, 0\)"),
        (Leaf((3,), "|O"), r"holds object\[3\] for \['a'\]"),
        (Leaf((3,), content=b"1234"), "can't be read as a state"),
        (Leaf((3,), ">>"), "can't be read as a state"),
    ],
)
def test_a_state_file_is_seen_to_be_the_state_before_it_is_unpacked(tmp_path, leaf, said):
    path = tmp_path / "x.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("leaf_0.npy", leaf.header + leaf.content)
    with pytest.raises(ValueError, match=said):
        read_leaves(path, layout({"a": np.zeros(3, np.float32)}))


def test_what_is_no_state_file_is_refused(tmp_path):
    shape = layout({"a": np.zeros(3, np.float32)})
    np.save(tmp_path / "x.npy", np.zeros(3, np.float32))
    os.mkfifo(tmp_path / "pipe.npz")
    for name, said in (("x.npy", "not a zip file"), ("pipe.npz", "no regular file"), ("gone.npz", "No such file")):
        with pytest.raises(ValueError, match=f"can't be read as a state: .*{said}.*; give the NPZ file"):
            read_leaves(tmp_path / name, shape)
    np.savez(tmp_path / "two.npz", leaf_0=np.zeros(3, np.float32), leaf_1=np.zeros(3))
    with pytest.raises(ValueError, match="holds 2 arrays, but the state has 1; give the model"):
        read_leaves(tmp_path / "two.npz", shape)


def test_if_the_finalists_diverge_the_race_leaves_its_result(tmp_path):
    path = tmp_path / "result.json"
    with pytest.raises(RuntimeError, match="all 2 finalists are dropped after the race"):
        parallel_initialize(*fragile(np.inf, at=20), num_candidates=4, budget_steps=64, save=path, lanes=1)
    data = json.loads(path.read_text())
    assert data["interrupted"]
    assert data["steps"] == 16


GOLDEN = pathlib.Path(__file__).parent / "data" / "initialization-1.json"


def test_the_golden_file_is_what_is_written(tmp_path):
    import jax

    like = jax.eval_shape(regression()[0], jax.random.PRNGKey(0))
    path = write_result(read_result(GOLDEN, like), tmp_path / GOLDEN.name)
    assert path.read_bytes() == GOLDEN.read_bytes()
    (state,) = tmp_path.glob("*.npz")
    with np.load(state) as again, np.load(GOLDEN.with_name(state.name)) as golden:
        assert set(again) == set(golden)
        assert all((again[name] == golden[name]).all() for name in golden)


def test_methods_are_kept_and_what_releases_before_wrote_is_checked(tmp_path):
    import jax

    like = jax.eval_shape(regression()[0], jax.random.PRNGKey(0))
    golden = read_result(GOLDEN, like)
    first, *rest = golden.curves
    carrying = dataclasses.replace(first, method="sobol")
    path = write_result(dataclasses.replace(golden, curves=(carrying, *rest)), tmp_path / "result.json")
    assert [curve.method for curve in read_result(path, like).curves[:2]] == ["sobol", ""]
    data = json.loads(path.read_text(encoding="utf-8"))
    data["candidates"][0]["rate"] = -1
    path.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(ValueError, match="rate is -1"):
        read_result(path, like)


def test_a_train_state_comes_back_and_trains_on():
    import flax.linen as nn
    import jax
    import jax.numpy as jnp
    import optax
    from flax.training.train_state import TrainState

    inputs = np.random.default_rng(0).standard_normal((16, 3)).astype(np.float32)
    network = nn.Dense(2)

    def init_fn(key):
        params = network.init(key, inputs)["params"]
        return TrainState.create(apply_fn=network.apply, params=params, tx=optax.adam(0.05))

    def train_step(state, batch):
        def loss_fn(params):
            return jnp.mean((state.apply_fn({"params": params}, batch) - batch[:, :2]) ** 2)

        loss, gradients = jax.value_and_grad(loss_fn)(state.params)
        return state.apply_gradients(grads=gradients), loss, norm_of(gradients)

    result = parallel_initialize(
        init_fn, train_step, lambda step: inputs, num_candidates=2, budget_steps=20, init="sobol", lanes=2
    )
    assert isinstance(result.state, TrainState)
    assert result.state.step == 20
    # The kernel alone is scaled, not the optimizer's moments, which look like it.
    assert len(result.curves[0].point) == 1
    after, loss, _ = train_step(result.state, inputs)
    assert after.step == 21
    assert loss < result.losses[0]
