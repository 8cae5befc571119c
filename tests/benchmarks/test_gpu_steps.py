"""Training steps on a GPU: exported, run, and scored beside what is predicted of them."""

import json

import jax

import _gpu_exported
import gpu_steps

TINY = "transformer:hidden=32,blocks=1,heads=2,vocabulary=64,sequence=16"


def test_a_step_is_exported(tmp_path):
    gpu_steps.exported(tmp_path, [(TINY, 2)])
    (step,) = json.loads((tmp_path / "index.json").read_text())
    assert (step["kind"], step["case"]) == ("step", {"model": TINY, "batch": 2})
    (file,) = step["files"]
    assert file["in"][: step["state"]] == file["out"][: step["state"]]
    assert file["in"][step["state"] :] == [[[2, 16], "int32"], [[2, 16], "int32"]], "tokens and labels"
    # Adam keeps two moments of each master copy.
    moments = [file["in"][n] for n in step["zeros"] if file["in"][n][0]]
    masters = [one for one in file["in"][: step["state"]] if one[1] == "float32" and one[0]]
    assert 3 * len(moments) == 2 * len(masters)
    assert (tmp_path / file["name"]).stat().st_size > 100


def test_a_step_is_timed_and_its_new_state_takes_the_place_of_the_old():
    def step(weights, count, data):
        return weights + (data @ weights).sum(), count + 1, data.sum()

    shapes = [jax.ShapeDtypeStruct((16, 16), "float32"), jax.ShapeDtypeStruct((), "int32")]
    program = jax.jit(step).lower(*shapes, shapes[0]).compile()
    found = _gpu_exported._step(program, {"state": 2, "zeros": [], "below": 4})
    assert found["step_s"] > 0
    assert found["finite"]
    # The state and the data, a sum, and what is between.
    assert 2 * 4 * 16**2 + 4 + 4 <= found["peak_bytes"] < 6 * 4 * 16**2


def test_a_step_that_takes_what_is_predicted_is_inside_and_has_no_error():
    cluster = gpu_steps.one_device("NVIDIA H100 80GB HBM3")
    assert cluster.num_devices == 1
    first = gpu_steps.predicted({"model": TINY, "batch": 2, "step_s": 1.0, "peak_bytes": 1}, cluster)
    assert not first["inside"]
    row = {"model": TINY, "batch": 2, "step_s": first["predicted_s"], "peak_bytes": first["memory_bytes"]}
    again = gpu_steps.predicted(row, cluster)
    assert again["inside"]
    assert again["predicted_s"] == row["step_s"]
