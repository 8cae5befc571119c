"""Single kernels on a GPU: drawn by a seed, and scored beside the prediction of the bundled calibration."""

import json

import numpy as np
import pytest

import _gpu_layers
import _gpu_times
import gpu_kernels
from alpa_dejavu.calibration import bundled
from alpa_dejavu.costs.latency.learned import Kernels


def _measured(gpu="NVIDIA H100 80GB HBM3", slower=1.0):
    """Relus that take so many times as long as is predicted, and half a launch less in a graph."""
    calibration = bundled("h100")
    sizes = {"batch": [2**power for power in range(8, 22)] * 2, "m": [1] * 28, "n": [4096] * 28, "k": [1] * 28}
    rows = {"op": ["relu"] * 28, "mode": ["float32"] * 28, **sizes}
    kernels = Kernels.of({**rows, "gpu": ["one"] * 28}, {"one": calibration.sheets["H100-SXM-80GB"]})
    seconds = slower * calibration.kernels.predict(kernels).mean
    return {"gpu": gpu, "rows": {**rows, "call_s": seconds.tolist(), "kernel_s": (seconds / 2).tolist()}}


def test_what_is_as_predicted_has_no_error():
    found = {
        row["kernels"]: row for row in gpu_kernels.scores(_measured(), bundled("h100")) if row["timed"] == "call_s"
    }
    assert found["all, float32"]["mape"] == pytest.approx(0, abs=1e-9)
    assert found["all, float32"]["coverage_90"] == 1
    slow = next(gpu_kernels.scores(_measured(slower=2.0), bundled("h100")))
    assert slow["mape"] == pytest.approx(0.5)
    assert slow["bias"] == pytest.approx(-0.5)


def test_a_gpu_without_a_data_sheet_is_refused(tmp_path, capsys):
    file = tmp_path / "measured.json"
    file.write_text(json.dumps(_measured(gpu="made-up")))
    assert gpu_kernels.main(["--score", str(file)]) == 2
    assert "gpu is 'made-up', but must be one of NVIDIA H100" in capsys.readouterr().err


def test_kernels_are_drawn_by_a_seed():
    assert _gpu_times.shapes(1) == _gpu_times.shapes(1) != _gpu_times.shapes(2)
    for row in _gpu_times.shapes(0):
        values = row["batch"] * (row["m"] * row["k"] + row["k"] * row["n"] + row["m"] * row["n"])
        assert 4 * values <= 6e9
        assert row["m"] == row["k"] == 1 or row["op"] in ("linear", "bmm")


def test_a_layer_keeps_its_shape_and_has_gradients():
    import jax

    shapes = _gpu_layers.layer_shapes(64)
    parameters = {
        name: 0.02 * jax.random.normal(jax.random.PRNGKey(n), each) for n, (name, each) in enumerate(shapes.items())
    }
    x = jax.random.normal(jax.random.PRNGKey(9), (1, 8, 64))
    layer = jax.jit(_gpu_layers.layer)
    y = layer(parameters, x)
    assert y.shape == x.shape
    # What comes later is hidden from what comes before.
    changed = layer(parameters, x.at[:, -1].set(0.0))
    np.testing.assert_allclose(changed[:, :-1], y[:, :-1], atol=1e-5)
    of_parameters, of_x = jax.eval_shape(_gpu_layers.forward_and_backward, parameters, x, x)
    assert {name: each.shape for name, each in of_parameters.items()} == shapes
    assert of_x.shape == x.shape
