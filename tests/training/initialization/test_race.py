"""Whole runs in this process."""

import numpy as np
import pytest

from alpa_dejavu.training.initialization import parallel_initialize
from alpa_dejavu.training.initialization.rules import RaceDecision, RaceRule
from small_models import regression


def run(num_candidates=8, budget_steps=64, says_norm=True, lanes=1, **options):
    model = regression(says_norm=says_norm)
    return parallel_initialize(*model, num_candidates=num_candidates, budget_steps=budget_steps, lanes=lanes, **options)


def by_hand(number, steps, seed=0):
    """A candidate's losses and its weights, as a loop would compute them."""
    import jax

    init_fn, train_step, batches = regression()
    state, losses = init_fn(jax.random.fold_in(jax.random.PRNGKey(seed), number)), []
    step = jax.jit(train_step)
    for n in range(steps):
        state, loss, _ = step(state, batches[n % len(batches)])
        losses.append(float(loss))
    return np.array(losses), state


@pytest.fixture(scope="module")
def halved():
    return run(keep_weights=True, lanes=4)


def test_curves_are_those_of_training_each_candidate_alone(halved):
    for curve in (halved.curves[0], halved.curves[5]):
        losses, _ = by_hand(curve.number, len(curve.losses))
        assert np.allclose(curve.losses, losses, rtol=1e-5)
    losses, state = by_hand(halved.chosen, 64)
    assert np.allclose(halved.losses, losses, rtol=1e-4)
    assert np.allclose(halved.state["params"]["matrix"], state["params"]["matrix"], atol=1e-4)
    assert halved.state["steps"] == 64
    assert halved.state["steps"].dtype == np.int32


def test_half_is_dropped_at_each_rung_and_the_steps_are_counted(halved):
    assert halved.rungs == (4, 8, 16)
    assert sorted(len(curve.losses) for curve in halved.curves) == [4, 4, 4, 4, 8, 8, 16, 64]
    assert halved.total_steps == sum(len(curve.losses) for curve in halved.curves) == 112
    dropped = {curve.dropped_step for curve in halved.curves}
    assert dropped == {None, 4, 8, 16}
    (first,) = (curve for curve in halved.curves if curve.number == halved.chosen)
    assert first.dropped_step is None
    assert first.why == "chosen: place 1 of 2 finalists"
    poor = next(curve for curve in halved.curves if curve.dropped_step == 4)
    assert "of 8 at step 4: halving keeps 4 of 8" in poor.why
    assert (halved.diverged, halved.lost, halved.restarts, halved.interrupted) == (0, 0, 0, False)
    assert halved.notes == ("8 candidates go in 2 waves, 1 x 4 at a time",)


def test_the_same_seed_gives_the_same_run_whatever_is_kept_where(halved, tmp_path):
    again = run(checkpoints=tmp_path / "kept", checkpoint_steps=3, lanes=4)
    assert again.chosen == halved.chosen
    for one, other in zip(halved.curves, again.curves, strict=True):
        assert (one.losses == other.losses).all()
        assert one.why == other.why
    assert [path.name for path in (tmp_path / "kept").iterdir()] == [f"candidate_{halved.chosen:05d}.npz"]
    assert run(seed=1).curves[0].losses[0] != halved.curves[0].losses[0]


def test_methods_race_against_each_other():
    result = run(num_candidates=6, init=["model", "xavier", "sobol"])
    assert [curve.method for curve in result.curves] == ["model", "xavier_normal", "sobol"] * 2
    assert (result.curves[0].losses[:4] == run(lanes=1).curves[0].losses[:4]).all()
    assert f"begun by {result.curves[result.chosen].method}" in result.curves[result.chosen].why


@pytest.mark.parametrize(("change", "said"), [
    ({"num_candidates": 0}, "num_candidates is 0"), ({"budget_steps": 1.5}, "budget_steps is 1.5"),
    ({"seed": -1}, "seed is -1"), ({"budget": "tiny"}, "budget is 'tiny'"), ({"lanes": 0}, "lanes is 0"),
    ({"keep": "luck"}, "no rule named"), ({"init": "ones"}, "no start named"),
    ({"save": "no/such/folder/x.json"}, "there is no folder"),
    ({"parameters": lambda state: 5.0}, "give parameters="),
    ({"parameters": lambda state: state["steps"]}, "real numbers"),
])  # fmt: skip
def test_what_cant_be_is_refused_before_anything_is_trained(change, said):
    with pytest.raises(ValueError, match=said):
        run(**change)


@pytest.mark.parametrize(("step", "said"), [
    (lambda state, batch: state, "train_step returned"),
    (lambda state, batch: (state, batch[0]), "returned a loss of float32"),
    (lambda state, batch: (state["params"], batch[0].sum()), "a state of 2 arrays for one of 5"),
    (lambda state, batch: ({**state, "steps": state["steps"] + 0.5}, batch[0].sum()), "must keep shapes and dtypes"),
])  # fmt: skip
def test_a_step_of_another_contract_is_refused(step, said):
    init_fn, _, batches = regression()
    with pytest.raises(ValueError, match=said):
        parallel_initialize(init_fn, step, batches, num_candidates=2, budget_steps=32)


def test_batches_and_steps_that_dont_fit_are_refused():
    init_fn, train_step, batches = regression()
    with pytest.raises(TypeError, match=r"must take \(state, batch\); give a function of both"):
        parallel_initialize(init_fn, lambda state, batch, rate: state, batches, num_candidates=2, budget_steps=32)
    with pytest.raises(ValueError, match="batches is empty"):
        parallel_initialize(init_fn, train_step, [], num_candidates=2, budget_steps=32)


def test_a_small_budget_is_kept_by_rules_that_would_spend_more():
    result = run(num_candidates=6, budget_steps=200, keep=KeepAll(), budget="small")
    assert result.steps == 200
    assert 200 < result.total_steps <= 250
    with pytest.raises(ValueError, match="take 50 extra steps, but 6 of them take 100 to the first rung, 20"):
        run(num_candidates=6, budget_steps=200, budget="small", rungs=(20, 40))


class KeepAll(RaceRule):
    def decide(self, standing):
        return RaceDecision(standing.waiting_best_first())
