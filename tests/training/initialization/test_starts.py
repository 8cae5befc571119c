import importlib.machinery
import importlib.util
import sys
import types

import numpy as np
import pytest

from alpa_dejavu.training.initialization._layout import layout
from alpa_dejavu.training.initialization.starts import Ask, CoarseToFine, LatinHypercube, OptunaSampler, Own, start
from alpa_dejavu.training.initialization.starts._base import Started, Tried
from small_models import dense


@pytest.fixture(scope="module")
def tensors():
    import jax

    return layout(jax.eval_shape(lambda key: dense(key, (6, 16, 4)), jax.random.PRNGKey(0))).tensors


def own(number):
    generator = np.random.default_rng(number)
    return tuple(generator.standard_normal(shape).astype(np.float32) for shape in [(16,), (6, 16), (4,), (16, 4)])


def ask(tensors, numbers=(0, 1, 2, 3), tried=(), seed=5):
    return Ask(tensors, own, tuple(numbers), seed, tuple(tried))


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


@pytest.mark.parametrize("picture", [None, "pca"])
def test_coarse_to_fine_begins_widely_then_nearer_the_best(tensors, picture):
    chosen = CoarseToFine(Own(), picture, closeness=0.2, best=1)
    coarse = chosen.start(ask(tensors, range(6)))
    assert (coarse[2].weights[1] == own(2)[1]).all()
    tried = [Tried(coarse[n], float(n)) for n in (3, 0, 1, 2, 4, 5)]
    fine = chosen.start(ask(tensors, range(6, 10), tried))
    assert len(fine) == 4
    for each in fine:
        distances = [np.linalg.norm(each.weights[1] - other.weights[1]) for other in coarse]
        assert int(np.argmin(distances)) == 3
        assert 0 < distances[3] < 0.7 * sorted(distances)[1]
    if picture:
        assert all(
            np.linalg.norm(each.weights[1]) == pytest.approx(np.linalg.norm(coarse[3].weights[1])) for each in fine
        )


def test_each_wave_begins_nearer_the_best(tensors):
    chosen = CoarseToFine(Own(), closeness=0.2, best=1, waves=(0.4, 0.3, 0.3), shrink=0.5)
    tried = [Tried(Started(own(n)), float(n), n) for n in range(4)]
    near = [
        chosen.start(Ask(tensors, own, (4, 5), 5, tuple(tried), wave)) for wave in (1, 2, 3)
    ]  # fmt: skip
    away = [np.linalg.norm([each.weights[1] - own(0)[1] for each in wave]) for wave in near]
    assert away[1] == pytest.approx(away[0] / 2, rel=1e-5)
    assert away[2] == pytest.approx(away[0] / 4, rel=1e-5)


def test_several_starts_take_turns_and_learn_from_their_own_alone(tensors):
    mixed = start(["xavier", CoarseToFine(Own(), best=1, closeness=0.01)])
    assert mixed.waves == (0.5, 0.5)
    first = mixed.start(ask(tensors, range(4)))
    assert (first[1].weights[1] == own(1)[1]).all()
    assert (first[0].weights[1] == start("xavier_normal").start(ask(tensors, (0,)))[0].weights[1]).all()
    # The best of all is of the other start; the nearest is the best of its own.
    tried = [Tried(first[n], float(n), n) for n in (0, 3, 1, 2)]
    later = mixed.start(Ask(tensors, own, (4, 5), 5, tuple(tried), 1))
    assert np.linalg.norm(later[1].weights[1] - first[3].weights[1]) < 0.2


def test_a_projection_that_inverts_is_taken_as_given(tensors):
    class Corner:
        def fit_transform(self, rows):
            self.rows = rows
            return rows[:, :2]

        def inverse_transform(self, points):
            assert points.shape == (1, 2)
            return self.rows[:1]

    tried = [Tried(Started(own(n)), float(n)) for n in range(4)]
    (made,) = CoarseToFine(Own(), Corner(), best=1).start(ask(tensors, (4,), tried))
    assert np.allclose(made.weights[1], own(0)[1])


def test_umap_by_name_is_asked_for_what_few_points_can_be(tensors, monkeypatch):
    asked = {}

    class UMAP:
        def __init__(self, **options):
            asked.update(options)

        def fit_transform(self, rows):
            self.rows = rows
            return rows[:, :2]

        def inverse_transform(self, points):
            return self.rows[:1]

    module = types.ModuleType("umap")
    module.UMAP, module.__spec__ = UMAP, importlib.machinery.ModuleSpec("umap", None)
    monkeypatch.setitem(sys.modules, "umap", module)
    chosen = CoarseToFine(Own(), "umap", best=1)
    tried = [Tried(Started(own(n)), float(n)) for n in range(5)]
    chosen.start(ask(tensors, (5,), tried[:3]))
    assert not asked, "three points are too few"
    (made,) = chosen.start(ask(tensors, (5,), tried))
    assert np.allclose(made.weights[1], own(0)[1])
    assert (asked["n_neighbors"], asked["random_state"]) == (4, 5)


@pytest.mark.skipif(importlib.util.find_spec("umap") is None, reason="umap-learn is not installed")
@pytest.mark.slow
def test_umap_itself_inverts_points_near_the_best(tensors):
    chosen = CoarseToFine(Own(), "umap", best=1)
    coarse = chosen.start(ask(tensors, range(8)))
    tried = [Tried(each, float(n)) for n, each in enumerate(coarse)]
    fine = chosen.start(ask(tensors, (8, 9), tried))
    again = chosen.start(ask(tensors, (8, 9), tried))
    matrices = [each.weights[1] for each in fine]
    assert all((one == other.weights[1]).all() for one, other in zip(matrices, again, strict=True))
    assert np.isfinite(matrices).all()
    assert not (matrices[0] == matrices[1]).all()
    for each in fine:
        assert len(each.point) == 2
        assert np.linalg.norm(each.weights[1]) == pytest.approx(np.linalg.norm(own(0)[1]), rel=1e-5)


def test_umap_that_isnt_installed_is_missed_before_anything_begins(monkeypatch):
    monkeypatch.setitem(sys.modules, "umap", None)
    with pytest.raises(RuntimeError, match=r'pip install "alpa-dejavu\[umap\]"'):
        CoarseToFine(picture="umap")


def test_optunas_samplers_learn_from_what_was_tried(tensors):
    pytest.importorskip("optuna")
    chosen = OptunaSampler()
    first = chosen.start(ask(tensors, range(4)))
    assert [each.point for each in first] == [each.point for each in chosen.start(ask(tensors, range(4)))]
    # What is good is near the largest scales: the sampler goes there.
    tried = []
    for n, scale in enumerate(np.geomspace(0.25, 4, 30)):
        tried.append(Tried(Started(own(n), (float(scale), float(scale))), float(-scale)))
    later = chosen.start(ask(tensors, range(30, 38), tried))
    assert np.median([each.point for each in later]) > 2


def test_starts_refuse_what_cant_be(tensors):
    with pytest.raises(ValueError, match="no start named 'glorot'"):
        start(["sobol", "glorot"])
    with pytest.raises(ValueError, match="must be one or more starts"):
        start([])
    with pytest.raises(ValueError, match="none of them made of several"):
        start(["model", start(["model"])])
    with pytest.raises(ValueError, match="must be two positive fractions or more"):
        CoarseToFine(waves=(1.0,))
    with pytest.raises(ValueError, match="shrink is 2"):
        CoarseToFine(shrink=2)
    with pytest.raises(ValueError, match=r"scales from 2\.0 to 1\.0"):
        LatinHypercube(2.0, 1.0)
    with pytest.raises(ValueError, match="closeness is 0"):
        CoarseToFine(closeness=0)
    with pytest.raises(ValueError, match=r"picture is 'tsne', but must be None, 'pca', 'umap' or"):
        CoarseToFine(picture="tsne")
    vectors = tuple(tensor for tensor in tensors if not tensor.is_matrix)
    with pytest.raises(ValueError, match="nothing to scale"):
        start("sobol").start(ask(vectors))
