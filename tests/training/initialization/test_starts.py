import numpy as np
import pytest

from alpa_dejavu.training.initialization._layout import layout
from alpa_dejavu.training.initialization.starts import Ask, LatinHypercube, start
from small_models import dense


@pytest.fixture(scope="module")
def tensors():
    import jax

    return layout(jax.eval_shape(lambda key: dense(key, (6, 16, 4)), jax.random.PRNGKey(0))).tensors


def own(number):
    generator = np.random.default_rng(number)
    return tuple(generator.standard_normal(shape).astype(np.float32) for shape in [(16,), (6, 16), (4,), (16, 4)])


def ask(tensors, numbers=(0, 1, 2, 3), seed=5):
    return Ask(tensors, own, tuple(numbers), seed)


@pytest.mark.parametrize(("name", "stddev"), [
    ("xavier_normal", (2 / 22) ** 0.5), ("xavier_uniform", (2 / 22) ** 0.5), ("kaiming_normal", (2 / 6) ** 0.5),
    ("kaiming_uniform", (2 / 6) ** 0.5), ("lecun", (1 / 6) ** 0.5), ("truncated_normal", 0.02 * 0.88),
])  # fmt: skip
def test_initializations_by_shape_have_their_spread_and_leave_vectors(tensors, name, stddev):
    started = start(name).start(ask(tensors, range(8)))
    drawn = np.stack([each.weights[1] for each in started])
    assert drawn.std() == pytest.approx(stddev, rel=0.12)
    assert len({weights.tobytes() for weights in drawn}) == 8
    for number, each in enumerate(started):
        assert (each.weights[0] == own(number)[0]).all()


def test_orthogonal_is():
    import jax

    square = layout(jax.ShapeDtypeStruct((8, 8), np.float32)).tensors
    (made,) = start("orthogonal").start(Ask(square, lambda n: (np.zeros((8, 8), np.float32),), (0,), 0))
    assert np.allclose(made.weights[0] @ made.weights[0].T, np.eye(8), atol=1e-5)


@pytest.mark.parametrize("name", ["sobol", "xavier_normal"])
def test_another_seed_is_another_start(tensors, name):
    first, other = (start(name).start(ask(tensors, seed=seed)) for seed in (5, 6))
    assert all((x.weights[1] != y.weights[1]).all() for x, y in zip(first, other, strict=True))


@pytest.mark.parametrize("name", ["latin_hypercube", "sobol"])
def test_scales_fill_their_range_evenly(tensors, name):
    started = start(name).start(ask(tensors, range(8)))
    points = np.log([each.point for each in started])
    assert points.shape == (8, 2)
    parts = np.floor((points - np.log(0.25)) / np.log(16) * 8).astype(int)
    assert all(sorted(column) == list(range(8)) for column in parts.T), "one in each eighth"
    for number, each in enumerate(started):
        assert np.allclose(each.weights[1] / own(number)[1], each.point[0], rtol=1e-5)


def test_several_starts_take_turns(tensors):
    mixed = start(["xavier", "model"]).start(ask(tensors, range(4)))
    assert (mixed[1].weights[1] == own(1)[1]).all()
    assert (mixed[2].weights[1] == start("xavier_normal").start(ask(tensors, (2,)))[0].weights[1]).all()


def test_starts_refuse_what_cant_be(tensors):
    with pytest.raises(ValueError, match="no start named 'glorot'"):
        start(["sobol", "glorot"])
    with pytest.raises(ValueError, match="must be one or more starts"):
        start([])
    with pytest.raises(ValueError, match="none of them made of several"):
        start(["model", start(["model"])])
    with pytest.raises(ValueError, match=r"scales from 2\.0 to 1\.0"):
        LatinHypercube(2.0, 1.0)
    vectors = tuple(tensor for tensor in tensors if not tensor.is_matrix)
    with pytest.raises(ValueError, match="nothing to scale"):
        start("sobol").start(ask(vectors))
