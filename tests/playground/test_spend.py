"""What devices are best spent on: parts of clusters, what is trained, gains by hand, and seconds by hand."""

import itertools
import json
import math
import types

import numpy as np
import pytest

from alpa_dejavu._util.interval import Interval
from alpa_dejavu.clusters import named_cluster
from alpa_dejavu.playground.spend import Gain, Trial, TrialModel, Way, _spend, gains, spend, trial_model, ways
from alpa_dejavu.playground.spend._costs import part_of
from alpa_dejavu.playground.spend._gains import MeasuredGains
from alpa_dejavu.playground.spend._trainings import Trainings
from alpa_dejavu.problem import NoPlanError
from alpa_dejavu.training.optex import optex
from alpa_dejavu.training.optex.evaluators import Vmapped

TRIAL = Trial(seeds=2, steps=80)


def line(rows=64):
    """A line to be fitted, with noise."""
    import jax

    draw = np.random.default_rng(0)
    inputs = draw.standard_normal((rows, 3)).astype(np.float32)
    data = inputs, (inputs @ [1.0, -2.0, 0.5] + 0.5 * draw.standard_normal(rows)).astype(np.float32)

    def loss(params, batch):
        return ((batch[0] @ params["slope"][:, 0] - batch[1]) ** 2).mean()

    return TrialModel("line", lambda key: {"slope": jax.random.normal(key, (3, 1))}, loss, data, rows=4)


def own(batch_size, *, says_loss=True, is_abstract=False, width=3):
    import jax
    import jax.numpy as jnp

    def step(state, batch):
        def loss_fn(weights):
            return ((batch["x"] @ weights) ** 2).mean()

        loss, gradient = jax.value_and_grad(loss_fn)(state["params"])
        new = {**state, "params": state["params"] - 0.1 * gradient}
        return (new, loss) if says_loss else new

    given = {"params": jnp.ones((width, 2)), "count": jnp.int32(0)}, {"x": jnp.ones((batch_size, width))}
    return step, jax.eval_shape(lambda: given) if is_abstract else given


def test_ways_are_powers_of_two_that_divide_the_devices():
    assert [way.times for way in ways(12) if way.kind == "starts"] == [2, 4]
    assert ways(1) == (Way("plain"),)
    assert max(way.times for way in ways(64)) == 8


def test_a_model_with_numbers_and_a_loss_is_trained_itself():
    found = trial_model(own)
    assert (found.name, found.why, found.num_parameters) == ("own", "", 6)
    assert found.num_rows == 16 * found.rows
    weights = found.init(None)
    batch = {"x": np.full((5, 3), 2.0, np.float32)}
    assert float(found.loss(weights, batch)) == pytest.approx(36.0)
    assert float(found.loss(0 * weights, batch)) == 0


def test_a_step_that_tells_no_loss_is_refused():
    with pytest.raises(ValueError, match=r"must return \(state, loss\), the loss a real number"):
        trial_model(lambda batch_size: own(batch_size, says_loss=False))


@pytest.fixture(scope="module")
def runs():
    return Trainings(line())


def test_trainings_are_those_of_a_loop(runs):
    import jax
    import optax

    made, optimizer = line(), optax.adam(0.1)
    params = made.init(jax.random.fold_in(jax.random.PRNGKey(3), 0))
    moments = optimizer.init(params)
    for step, told in enumerate(itertools.islice(runs.batches(2, 0.1, 3), 5)):
        draws = [np.random.default_rng([3, 2 * step + n]).integers(64, size=4) for n in (0, 1)]
        batch = tuple(leaf[np.concatenate(draws)] for leaf in made.data)
        loss, gradient = jax.value_and_grad(made.loss)(params, batch)
        assert told == pytest.approx(float(loss), rel=1e-4)
        updates, moments = optimizer.update(gradient, moments)
        params = optax.apply_updates(params, updates)


def test_a_model_that_diverges_is_refused(monkeypatch):
    monkeypatch.setattr(Trainings, "batches", lambda *_: itertools.repeat(math.inf))
    with pytest.raises(ValueError, match="the trial's loss is inf by Adam"):
        gains(line(), [Way("plain")], TRIAL)


def test_steps_side_by_side_are_those_of_optex_with_gradients_side_by_side(runs):
    import jax
    import optax

    told = list(itertools.islice(runs.side_by_side(2, 0.1, 0), 8))
    made, evaluator = optex(optax.adam(0.1), parallel=2), Vmapped(line().loss)
    params = line().init(jax.random.fold_in(jax.random.PRNGKey(0), 0))
    state = made.init(params)
    for step, loss in enumerate(told):
        batches = jax.tree_util.tree_map(lambda *b: np.stack(b), *(runs._batch(0, 2 * step + n) for n in (0, 1)))
        params, state, report = made.step(params, state, evaluator, batches)
        assert loss == pytest.approx(float(report.loss), rel=1e-3)


def planned(step_s, training=True, grad_bytes=0.0, free=1e9):
    tensor = types.SimpleNamespace(role="gradient", num_bytes=grad_bytes)
    stage = types.SimpleNamespace(memory_limit_bytes=free, memory_bytes=0.0)
    return types.SimpleNamespace(
        plan=types.SimpleNamespace(step_s=step_s, stages=[stage]),
        model=types.SimpleNamespace(training=training, tensors=[tensor]),
    )


def plan(model, cluster, hosts, batch):
    """A step takes a second on eight devices, eight on one, and as much longer as the batch is larger."""
    if cluster.num_devices == 1:
        raise NoPlanError("one device is too small\nfor it")
    return planned(8 / cluster.num_devices * batch / 32)


@pytest.fixture
def measured(monkeypatch):
    """Gains that nobody has measured: half the steps for each way, a quarter of them a race."""

    def told(trained, asked, trial, on_way):
        half = Interval(0.5, 0.4, 0.6)
        found = {way: Gain(half, 0.25 if way.kind == "starts" else 0.0) for way in asked if way.kind != "plain"}
        return MeasuredGains({Way("plain"): Gain(Interval(1.0, 1.0, 1.0)), **found}, 1.5, 0.01, 2.0)

    monkeypatch.setattr(_spend, "gains", told)


@pytest.mark.usefixtures("measured")
def test_seconds_are_steps_times_what_they_cost():
    found = spend(own, named_cluster("p3.16xlarge"), 32, 100.0, plan=plan)
    rows = {row.way: row for row in found.rows}
    assert (rows[Way("plain")].steps, rows[Way("plain")].to_loss_s.mean) == (100, 100)
    # Twice the batch: steps of 2 s, half as many.
    assert rows[Way("batch", 2)].to_loss_s == Interval(100.0, 80.0, 120.0)
    # Two starts: a quarter of the steps on half the devices, 2 s each, the rest on all.
    assert rows[Way("starts", 2)].steps == pytest.approx(100 / 1.25)
    assert rows[Way("starts", 2)].to_loss_s.mean == pytest.approx(0.5 * 100 * 1.25)
    assert rows[Way("starts", 2)].cost.race_step_s == 2.0
    assert rows[Way("starts", 8)].why_not == "one device is too small"
    assert found.best.way == Way("starts", 2)
    assert found.is_sure
    assert [bool(row.why_not) for row in found.rows] == sorted(bool(row.why_not) for row in found.rows)
    data = json.loads(json.dumps(found.data(), allow_nan=False))
    assert data["rows"][-1]["to_loss_s"]["mean"] is None
    assert data["rows"][0]["name"] == "2 starts"


@pytest.mark.parametrize(("change", "said"), [
    ({"seconds": 0.0}, "seconds is 0"), ({"seconds": math.inf}, "seconds is inf"), ({"seconds": -1.0}, "seconds is -1"),
    ({"plan": lambda *_: planned(1.0, training=False)}, "takes no gradient of a loss"),
])  # fmt: skip
def test_what_cannot_be_spent_is_refused(change, said):
    given = {"seconds": 10.0, "plan": plan, **change}
    with pytest.raises(ValueError, match=said):
        spend(own, named_cluster("p3.16xlarge"), 32, given["seconds"], plan=given["plan"])


@pytest.mark.parametrize(("hosts", "count", "sizes"), [
    (1, 4, [[2]] * 4), (2, 2, [[8], [8]]), (2, 4, [[4]] * 4), (3, 2, [[8, 4], [4, 8]]),
])  # fmt: skip
def test_parts_have_all_devices_once(hosts, count, sizes):
    cluster = named_cluster("p3.16xlarge", hosts)
    parts = [part_of(cluster, n, count) for n in range(count)]
    assert [[host.num_devices for host in part.hosts] for part in parts] == sizes
    assert all(len(part.links) == len(part.hosts) for part in parts)
    with pytest.raises(ValueError, match="must divide 8 devices"):
        part_of(named_cluster("p3.16xlarge"), 0, 3)


def test_a_trial_of_nothing_is_refused():
    with pytest.raises(ValueError, match="seeds is 1"):
        Trial(seeds=1)
    with pytest.raises(ValueError, match="must be at least 80"):
        Trial(steps=20)
