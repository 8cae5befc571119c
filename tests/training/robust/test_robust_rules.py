"""Rules keep their contract, equal ByzFL's, and see wrong replicas."""

import json
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alpa_dejavu.training.robust import RULES, Evidence, Prepared, rule
from alpa_dejavu.training.robust.attacks import ATTACKS
from alpa_dejavu.training.robust.before import BEFORE, Clipping, NearestNeighbours
from alpa_dejavu.training.robust.testing import check_rule

GOLDEN = json.loads((Path(__file__).parent / "data" / "byzfl.json").read_text())["cases"]
CLAIMED_NOT = {
    "zeno": ("scales",),  # its penalty has the unit of one over the gradient's
    "zeno++": ("scales", "translates", "mean_where_equal"),
    "sketched-suspicion": ("scales", "translates", "mean_where_equal"),
    "centered-clipping": ("translates", "mean_where_equal"),  # it begins at zero
    "mda": ("permutes",),  # of equally wide subsets the first is taken
    "sign": ("scales", "translates", "mean_where_equal"),
}


ALL = ("scales", "translates", "mean_where_equal", "permutes")


@pytest.mark.parametrize("name", [*RULES, *BEFORE])
def test_rules_and_prepared_ones_keep_their_contract(name):
    prepared = Prepared(rule("trimmed-mean"), (BEFORE[name](),)) if name in BEFORE else rule(name)
    check_rule(prepared, **dict.fromkeys(CLAIMED_NOT.get(name, () if name in RULES else ALL), False))


def ours(name, wrong, replicas):
    own = {
        "geometric-median": {"smoothing": 0.1, "steps": 5, "from_zero": True},
        "centered-clipping": {"radius": 2.0, "steps": 3},
        "krum": {"wrong": wrong, "neighbours": replicas - wrong - 1},
        "multi-krum": {"wrong": wrong, "neighbours": replicas - wrong - 1},
    }
    return rule(name, **own.get(name, {"wrong": wrong} if name in ("trimmed-mean", "mda", "meamed") else {}))


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: str(len(case["gradients"])))
def test_results_are_those_of_byzfl(case):
    gradients, wrong = np.array(case["gradients"], np.float32), case["wrong"]
    for name, expected in case["rules"].items():
        mine = ours(name, wrong, len(gradients))
        if "krum" in name and len(gradients) < 2 * wrong + 3:
            with pytest.raises(ValueError, match="must be at least"):
                mine.aggregate(gradients)
            continue
        made = jax.jit(mine.aggregate)(gradients).gradient
        np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-5, err_msg=name)
    before = {"nearest-neighbours": NearestNeighbours(wrong), "clipping": Clipping(2.0)}
    for name, expected in case["before"].items():
        made, _ = jax.jit(before[name].prepare)(gradients)
        np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-5, err_msg=name)
    mask = jnp.arange(len(gradients)) < wrong
    attacks = {"inner-product": 0.7, "a-little-is-enough": -1.5, "mimic": None}
    for name, expected in case["attacks"].items():
        attack = ATTACKS[name]() if attacks[name] is None else ATTACKS[name](attacks[name])
        sent, _ = attack.send(gradients, mask, None)
        np.testing.assert_allclose(sent[:wrong], [expected] * wrong, rtol=1e-5, atol=1e-5, err_msg=name)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2), st.integers(0, 99))
def test_coordinates_are_those_of_numpy_over_finite_ones(lost, seed):
    gradients = np.random.default_rng(seed).standard_normal((7, 4)).astype(np.float32)
    finite = gradients[lost:].copy()
    gradients[:lost, seed % 4] = np.nan
    np.testing.assert_allclose(rule("median").aggregate(gradients).gradient, np.median(finite, axis=0), rtol=1e-6)
    kept = np.sort(finite, axis=0)[2 - lost : len(finite) - (2 - lost)]
    np.testing.assert_allclose(rule("trimmed-mean", wrong=2).aggregate(gradients).gradient, kept.mean(axis=0),
                               rtol=1e-5, atol=1e-6)  # fmt: skip


SURVIVE_ONE = [name for name in RULES if name not in ("mean", "sketched-suspicion", "zeno", "zeno++", "sign")]


@pytest.mark.parametrize("name", SURVIVE_ONE)
@pytest.mark.parametrize(("value", "width"), [(1e20, 4), (1e18, 10_000), (-3.4e38, 10_000), (math.nan, 10_000)])
def test_one_huge_gradient_pulls_no_rule_out_of_the_range_of_the_others(name, value, width):
    gradients = jnp.asarray(1 + 0.1 * np.random.default_rng(0).standard_normal((8, width)), jnp.float32)
    takes = "wrong" in RULES[name].__dataclass_fields__
    # Centered clipping begins at zero: it comes to the others by steps of the median length.
    settings = {"wrong": 1} if takes else {"steps": 9} if name == "centered-clipping" else {}
    gradient = jax.jit(rule(name, **settings).aggregate)({"w": gradients.at[0].set(value)}).gradient["w"]
    low, high = gradients[1:].min(axis=0), gradients[1:].max(axis=0)
    slack = 0.15 if name == "centered-clipping" else 1e-5
    assert bool(((gradient >= low - slack) & (gradient <= high + slack)).all())


def test_zeno_takes_those_that_descend():
    gradients = jnp.array([[1.0], [2.0], [3.0], [jnp.nan]])
    made = rule("zeno", wrong=2, penalty=0.1).aggregate(gradients, None, Evidence(jnp.array([0.5, 0.9, 0.1, 9.0])))
    np.testing.assert_allclose(made.weights, [0.5, 0.5, 0, 0])  # 0.4, 0.5, -0.8, not finite
    with pytest.raises(ValueError, match="evidence has no descent"):
        rule("zeno").aggregate(gradients)


def test_zeno_plus_plus_takes_what_agrees_at_the_trusted_length():
    gradients = jnp.array([[10.0, 0.0], [-1.0, 0.0], [0.0, 0.1]])
    made = rule("zeno++", slack=0.0, penalty=0.01).aggregate(gradients, None, Evidence(trusted=jnp.array([2.0, 1.0])))
    np.testing.assert_allclose(made.gradient, np.array([1, 1]) * math.sqrt(5) / 2, rtol=1e-6)
    np.testing.assert_allclose(made.weights, [0.5, 0, 0.5])


@pytest.mark.parametrize(("made", "said"), [
    (lambda: rule("krum", wrong=2).aggregate(jnp.ones((6, 3))), r"replicas is 6, but must be at least 7"),
    (lambda: rule("mda", wrong=15).aggregate(jnp.ones((40, 3))), "at most 20000 subsets"),
    (lambda: rule("median").aggregate({"a": jnp.ones((4, 3)), "b": jnp.ones((5, 3))}), "as many replicas"),
    (lambda: rule("kram"), "did you mean 'krum'"),
    (lambda: ATTACKS["bit-flip"](16, "bfloat16"), "must be of 0..15"),
])  # fmt: skip
def test_bad_input_is_told(made, said):
    with pytest.raises(ValueError, match=said):
        made()
