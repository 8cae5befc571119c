"""Accuracies under masks: against masks applied one by one, on activations, with NaN, and on Ray."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from alpa_dejavu._util.jax_api import core
from alpa_dejavu.training.resilience import find_parts, resilience
from alpa_dejavu.training.resilience.activations import activation_parts, clipped, sites, with_strikes
from alpa_dejavu.training.resilience.data_faults import data_resilience
from alpa_dejavu.training.resilience.faults import Added, Stuck
from alpa_dejavu.training.resilience.parts import drawn

DRAW = np.random.default_rng(0)
PARAMS = {
    "hidden": {"bias": DRAW.standard_normal(10).astype(np.float32),
               "kernel": DRAW.standard_normal((6, 10)).astype(np.float32)},
    "out": {"kernel": DRAW.standard_normal((10, 4)).astype(np.float32)},
}  # fmt: skip
INPUTS = DRAW.standard_normal((40, 6)).astype(np.float32)
FAULTS = ["removed", Stuck(3.0)]


def model(params, inputs):
    values = jax.nn.relu(inputs @ params["hidden"]["kernel"] + params["hidden"]["bias"])
    return values @ params["out"]["kernel"]


DATA = INPUTS, np.asarray(model(PARAMS, INPUTS)).argmax(axis=1)


def test_points_are_those_of_masks_one_by_one_whatever_the_lanes():
    parts = find_parts(PARAMS, "neurons", but="out")
    found = resilience(model, PARAMS, DATA, FAULTS, parts=parts, shares=(0.3,), masks=7)
    again = resilience(model, PARAMS, DATA, FAULTS, parts=parts, shares=(0.3,), masks=7, lanes=3)
    for one, other in zip(found.points, again.points, strict=True):
        np.testing.assert_allclose(one.judged, other.judged, atol=0.026)
    alone = []
    for key in jax.random.split(jax.random.PRNGKey(0), 7):
        hit = np.asarray(drawn(parts, jax.random.split(key)[0], 3))
        kept = {**PARAMS, "out": {"kernel": PARAMS["out"]["kernel"] * ~hit[:, None]}}
        alone.append(float(np.mean(np.asarray(model(kept, INPUTS)).argmax(axis=1) == DATA[1])))
    point = found.curve("removed")[0]
    np.testing.assert_allclose(point.judged, alone, atol=0.026)
    assert (found.base, point.count, found.faults) == (1.0, 3, ("removed", "Stuck(value=3.0)"))
    assert point.low == pytest.approx(np.percentile(point.judged, 5))
    assert point.interval[0] < point.mean < point.interval[1]


def test_activations_are_struck_where_they_are_put_out():
    parts = activation_parts(model, PARAMS, INPUTS)
    assert (parts.groups, parts.sizes) == (("hidden/kernel", "out/kernel"), (10, 4))
    found = resilience(model, PARAMS, DATA, parts="activations", shares=(1,), masks=1, by_layer=True)
    hidden = jax.nn.relu(PARAMS["hidden"]["bias"]) @ PARAMS["out"]["kernel"]
    wanted = float(np.mean(DATA[1] == int(hidden.argmax())))
    assert found.curve("removed", "hidden/kernel")[0].mean == pytest.approx(wanted)
    values = activation_parts(model, PARAMS, INPUTS, "values")
    assert values.count == 40 * 14


def test_products_are_found_in_convolutions_loops_and_wrapped_functions():
    kernels = {"conv": np.ones((3, 3, 1, 2), np.float32), "turns": np.ones((5, 2, 2), np.float32),
               "out": np.ones((2, 3), np.float32)}  # fmt: skip

    @jax.jit
    def body(carry, kernel):
        return jax.checkpoint(lambda x: jax.nn.silu(x @ kernel))(carry), None

    def apply(params, images):
        made = jax.lax.conv_general_dilated(images, params["conv"], (1, 1), "SAME",
                                            dimension_numbers=("NHWC", "HWIO", "NHWC"))  # fmt: skip
        made = made.mean(axis=(1, 2))
        made, _ = jax.lax.scan(body, made, params["turns"])
        made = jax.lax.while_loop(lambda x: x[0, 0] > 1e9, lambda x: x @ params["turns"][0], made)
        scores = made @ made.T
        return (scores @ made) @ params["out"].T.T

    images = np.random.default_rng(0).standard_normal((4, 5, 5, 1)).astype(np.float32)
    found, unreached = sites(apply, kernels, images)
    assert [(site.name, site.shape, site.axis) for site in found] == [
        ("conv", (4, 5, 5, 2), 3), ("turns", (4, 2), 1), ("out", (4, 3), 1)
    ]  # fmt: skip
    assert unreached == ("while",)
    same = with_strikes(apply, lambda number, site, values: values)
    np.testing.assert_allclose(same(kernels, images), apply(kernels, images), rtol=1e-5)
    struck = with_strikes(apply, lambda number, site, values: values * (site.name != "turns"))
    assert float(jnp.abs(struck(kernels, images)).max()) == 0
    with pytest.raises(ValueError, match="apply_fn has a scanned loop"):
        clipped(apply, kernels, images)


@pytest.mark.parametrize(("changed", "said"), [
    ({"shares": (0.1, 1.2)}, r"shares has 1\.2, but must be of 0 to 1"),
    ({"shares": ()}, "shares is empty"),
    ({"parts": "heads"}, "kind is 'heads', but must be of parts that are there"),
    ({"parts": "nerves"}, "parts is 'nerves', but must be one of neurons"),
    ({"parts": find_parts([np.ones((2, 2))])}, "parts is of arrays .*, but must be of the model's"),
    ({"faults": "remove"}, "there is no fault named 'remove'"),
    ({"faults": Added(), "parts": "weights"}, "must lie along axes"),
    ({"faults": Added()}, "fault is Added.*, but must leave parameters that apply_fn takes"),
    ({"data": (INPUTS, DATA[1][:3])}, r"data is of \[3, 40\] samples"),
    ({"data": (INPUTS[:, :4], DATA[1])}, "but must fit apply_fn and its judge"),
    ({"data": INPUTS}, "data is .*, but must be"),
])  # fmt: skip
def test_wrong_input_is_told_before_anything_runs(changed, said):
    given = {"data": DATA, "shares": (0.1,), "masks": 2, **changed}
    ran = []

    def counted_model(params, inputs):
        ran.append(not isinstance(inputs, core.Tracer))
        return model(params, inputs)

    with pytest.raises(ValueError, match=said):
        resilience(counted_model, PARAMS, **given)
    assert not any(ran)


@pytest.mark.ray
@pytest.mark.slow
def test_two_workers_give_what_none_give():
    from alpa_dejavu.alpa.local_cluster import local_cluster

    alone = resilience(model, PARAMS, DATA, FAULTS, shares=(0.1, 0.5), masks=5, by_layer=True)
    with local_cluster(devices=2):
        together = resilience(model, PARAMS, DATA, FAULTS, shares=(0.1, 0.5), masks=5, by_layer=True, workers=2)
    assert together.data() == alone.data()


def test_training_on_fewer_doubled_and_mislabelled_samples():
    centres = np.eye(3, dtype=np.float32)
    targets = np.arange(60) % 3
    inputs = centres[targets] + 0.1 * np.random.default_rng(0).standard_normal((60, 3)).astype(np.float32)

    def nearest(params, inputs):
        return -jnp.sum((inputs[:, None] - params) ** 2, axis=-1)

    def train(inputs, targets, key):
        one_hot = jax.nn.one_hot(targets, 3)
        return (one_hot.T @ inputs) / one_hot.sum(axis=0)[:, None]

    found = data_resilience(nearest, train, (inputs, targets), (inputs, targets), shares=(0.5,), masks=2)
    assert found.base == 1.0
    assert [point.mean for point in found.curve("doubled")] == [1.0]
    assert [point.count for point in found.curve("removed")] == [30]
    alone = data_resilience(nearest, train, (inputs, targets), (inputs, targets), ["mislabelled"], shares=(0.5,),
                            masks=2, side_by_side=False)  # fmt: skip
    for one, other in zip(alone.points, found.curve("mislabelled"), strict=True):
        np.testing.assert_allclose(one.judged, other.judged, atol=0.02)
    with pytest.raises(ValueError, match=r"shares has 1\.0, but must be below 1 where samples are removed"):
        data_resilience(nearest, train, (inputs, targets), (inputs, targets), shares=(1,))
    with pytest.raises(ValueError, match="data is 60 inputs and 3 targets"):
        data_resilience(nearest, train, (inputs, targets[:3]), (inputs, targets))
