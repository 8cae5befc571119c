"""Krakens that are trained beside the standard transformer: their sizes, what is judged, and what is resumed."""

import contextlib
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import _kraken_models
import _kraken_training
from alpa_dejavu.layers.models import Kraken, KrakenModule
from harness import Results


@pytest.mark.parametrize(("hidden", "ways", "expansion"), [(12, 1, 4), (8, 2, 2), (5, 4, 2)])
def test_parameters_are_as_many_as_flax_makes(hidden, ways, expansion):
    size = Kraken(hidden, 2, 4, ways, expansion, vocabulary=11, sequence=6)
    tree = jax.eval_shape(KrakenModule(size).init, jax.random.PRNGKey(0), jnp.zeros((1, 6), jnp.int32))
    assert _kraken_models.parameters(size) == sum(leaf.size for leaf in jax.tree.leaves(tree))


def test_all_kinds_have_as_many_parameters():
    counts = {ways: _kraken_models.parameters(size) for ways, size in _kraken_models.sizes().items()}
    assert list(counts) == [1, 2, 4]
    for count in counts.values():
        assert count == pytest.approx(counts[1], rel=0.01)


def test_a_step_descends_the_loss_that_is_validated():
    size = Kraken(4, 1, 1, 1, 2, _kraken_models.CHARACTERS, 4)
    data = tuple(np.random.default_rng(0).integers(0, 90, (2, 3, 4)))
    made = jax.jit(KrakenModule(size).init)(jax.random.PRNGKey(0), data[0])["params"]
    logits = np.asarray(jax.jit(KrakenModule(size).apply)({"params": made}, data[0]), np.float64)
    by_hand = np.log(np.exp(logits).sum(-1)) - np.take_along_axis(logits, data[1][..., None], -1)[..., 0]
    step = jax.jit(_kraken_models.step_of(size, jax.value_and_grad))
    after, loss = step((made, _kraken_models.OPTIMIZER.init(made)), data, 1e-3)
    assert float(loss) == pytest.approx(by_hand.mean(), rel=1e-5)
    assert float(jax.jit(_kraken_models.loss_of(size))(after[0], data)) < float(loss)


def test_a_kraken_is_missed_only_where_it_is_surely_worse():
    rows = [{"model": str(n), "losses": losses} for n, losses in enumerate(
        ([2.0, 2.2, 2.1], [2.1, 2.31, 2.2], [2.1, 2.1, 2.13], [1.9, 2.1, 1.99])
    )]  # fmt: skip
    found = _kraken_training._compared(rows)
    differences = [0.1, 0.11, 0.1]
    low, high = stats.t.interval(0.9, 2, np.mean(differences), stats.sem(differences))
    assert (found[1]["low"], found[1]["high"]) == pytest.approx((low, high))
    assert found[0]["difference"] == 0
    assert [one.held for one in _kraken_training._quality_figures(found)] == [False, True, True]


class _Made:
    """Stands for the process that trains: the loss is lowest at the second rate."""

    def __init__(self):
        self.asked = []

    def __call__(self, method, ways, rate, seed, steps):
        self.asked.append((ways, rate, seed))
        return ways / 10 + abs(rate - _kraken_training.RATES[1]) + seed / 100


def test_trainings_that_are_known_are_not_made_again(monkeypatch, tmp_path):
    made = _Made()
    monkeypatch.setattr(_kraken_training.Remote, "started", lambda *_, **__: contextlib.nullcontext(made))
    file = tmp_path / "run.json"
    rows, figures = _kraken_training.quality(Results(file, {}), seeds=2, steps=1)
    assert [row["rate"] for row in rows] == [_kraken_training.RATES[1]] * 3
    assert len(made.asked) == 3 * (len(_kraken_training.RATES) + 2)
    assert {seed for _, rate, seed in made.asked if rate != _kraken_training.RATES[1]} == {0}
    assert not any(one.held for one in figures)
    begun = json.loads(file.read_text())
    begun["quality"].popitem()
    file.write_text(json.dumps(begun))
    made.asked.clear()
    again, _ = _kraken_training.quality(Results(file, {}), seeds=2, steps=1)
    assert again == rows
    assert made.asked == [(4, _kraken_training.RATES[1], 2)]


def test_one_seed_is_refused():
    with pytest.raises(ValueError, match="seeds is 1, but must be at least 2"):
        _kraken_training.quality(Results(None), seeds=1)


def test_all_reduces_of_a_module_are_counted():
    first = "  a = f32[4,8]{1,0} all-reduce(b), to_apply=add\n  c = f32[2]{0} add(a, all-reduce.1)\n"
    second = "  d = (f32[3]{0}, f32[]) all-reduce(e, f), to_apply=add\n"
    assert _kraken_training.all_reduced(first + second) == {"all_reduces": 2, "all_reduced_bytes": 4 * (32 + 3 + 1)}
