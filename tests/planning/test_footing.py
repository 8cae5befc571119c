"""What a plan's seconds rest on: all of them are told of, and what was never measured is named."""

import dataclasses
import math

import pytest

from alpa_dejavu.cli.tables import footing_table
from alpa_dejavu.clusters import named_cluster
from alpa_dejavu.costs.latency._kernels import UNFOLDED_SPREAD
from alpa_dejavu.layers.models._sizes import WideResNet
from alpa_dejavu.layers.models._wresnet import wresnet_step
from alpa_dejavu.planning import plan_model
from alpa_dejavu.planning.given.footing import footings
from alpa_dejavu.planning.search.uncertainty import assumed_spread
from jax_models import trained


def of_plan(planned):
    return footings(planned.table, planned.space, planned.choices, planned.run)


def images(batch_size):
    return wresnet_step(WideResNet(32, 1, (1, 1), classes=8, image=64), batch_size)


@pytest.mark.parametrize("remat", ["none", "layer"])
def test_all_seconds_of_the_stages_are_told_of(remat):
    asked = {"batch": 64, "micro_batches": 4, "layers": 4, "remat": (remat,)}
    planned = plan_model(trained, "g4dn.12xlarge", **asked)
    found, device = of_plan(planned), planned.cluster.hosts[0].device
    assert sum(one.share for one in found) == pytest.approx(1.0)
    seconds = 0.0
    for stage in planned.plan.stages:
        # Starts of programs, two a micro-batch and one a step, rest on the machine's file alone.
        seconds += 4 * (stage.compute_s + stage.collective_s - 2 * device.dispatch_s)
        seconds += stage.per_step_s - device.step_s
    sent = sum(4 * stage.collective_s + stage.synchronisation_s for stage in planned.plan.stages)
    share = sum(one.share for one in found if one.work.startswith("collectives"))
    assert share == pytest.approx(sent / seconds, rel=1e-3)


def test_convolutions_are_named_and_data_sheets_are_called_so():
    asked = {"batch": 64, "micro_batches": 1, "layers": 2}
    fitted, sheets = (plan_model(images, "p3.16xlarge", calibration=one, **asked) for one in (None, "none"))
    by_work = {one.work: one for one in of_plan(fitted)}
    convolutions = by_work["convolutions"]
    assert convolutions.unmeasured
    assert convolutions.rests_on == "fitted to matrix products"
    assert convolutions.spread == pytest.approx(math.hypot(*UNFOLDED_SPREAD), rel=0.01)
    assert {by_work[work].rests_on for work in ("products", "other operators")} <= {
        "measured", "measured on its generation",
    }  # fmt: skip
    (note,) = [note for note in fitted.plan.notes if note.startswith("convolutions")]
    assert f"({convolutions.share:.0%} of the stages' work) are fitted to matrix products: none was measured" in note
    assert {one.rests_on for one in of_plan(sheets)} == {"data sheet"}
    assert not any(note.startswith("convolutions") for note in sheets.plan.notes)
    spread = {one.work: one.spread for one in of_plan(sheets)}
    assert spread["convolutions"] == pytest.approx(assumed_spread("products"))
    assert spread["other operators"] == pytest.approx(assumed_spread("other operators"))
    assert fitted.plan.step_s != sheets.plan.step_s


def test_a_generation_that_was_not_measured_is_named():
    t4 = dataclasses.replace(named_cluster("g4dn.12xlarge").hosts[0], num_devices=1)
    cluster = dataclasses.replace(named_cluster("g4dn.12xlarge"), hosts=(t4,))
    planned = plan_model("gpt-125m", cluster, batch=2, micro_batches=1, layers=2)
    products = next(one for one in of_plan(planned) if one.work == "products" and one.unmeasured)
    assert products.rests_on == "fitted to other generations"
    assert any(note.startswith("products") and "fitted to other generations" in note for note in planned.plan.notes)
    shown = footing_table(of_plan(planned))
    assert shown.row_count == len(of_plan(planned))


def test_what_is_measured_of_this_machine_is_called_so():
    planned = plan_model(trained, "local-cpu", batch=64, micro_batches=4, layers=2)
    assert {one.rests_on for one in of_plan(planned)} == {"measured"}
