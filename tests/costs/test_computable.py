"""What a cluster's devices can't compute is said before anything is planned."""

import dataclasses

import pytest

from alpa_dejavu.layers.models import Transformer
from alpa_dejavu.planning import plan_model
from alpa_dejavu.planning.given.comparison import SAVINGS, compare
from alpa_dejavu.planning.given.plan_estimate import PlanEstimator
from alpa_dejavu.problem import Cluster, Link
from alpa_dejavu.testing import example_cluster

SIZE = Transformer(512, 2, 4, 1024, 256, feed_forward=2048)


def planned(cluster, runtime="megatron", **changes):
    size = Transformer.of_text(SIZE.text + "".join(f",{name}={value}" for name, value in changes.items()))
    return plan_model(size.text, cluster, batch=16, micro_batches=2, runtime=runtime, cache=False).plan


def test_eight_bits_are_for_gpus_that_have_them():
    assert planned("dgx-h100", precision="float8").step_s > 0
    with pytest.raises(ValueError, match=r"in fp8, but A100-SXM-80GB computes none in it \(it has .*fp16, bf16"):
        planned("dgx-a100", precision="float8")
    assert planned("dgx-b200", precision="nvfp4").step_s < planned("dgx-b200", precision="mxfp8").step_s
    with pytest.raises(ValueError, match=r"in fp4, but H100-SXM-80GB .* --precision bf16, .* generations blackwell$"):
        planned("dgx-h100", precision="nvfp4")
    with pytest.raises(ValueError, match=r"in mxfp8, but H100-SXM-80GB .* --precision fp8, .* generations blackwell$"):
        planned("dgx-h100", precision="mxfp8")
    assert not any("has no rate for products" in note for note in planned("dgx-h100", precision="fp8-blockwise").notes)
    for precision, instead in (("tf32", "fp32"), ("fp8", "fp16")):
        told = f"in {precision}, but V100-SXM2-16GB computes none .*; give --precision {instead}, "
        with pytest.raises(ValueError, match=told):
            planned("p3.16xlarge", precision=precision)
    assert planned("dgx-a100", precision="tf32").step_s == planned("dgx-a100", precision="fp32").step_s


def test_heads_that_no_library_fuses_are_refused_unless_attention_is_plain():
    wide = Transformer(1024, 2, 2, 1024, 256, feed_forward=2048, head_size=512)
    asked = {"batch": 16, "micro_batches": 2, "runtime": "megatron", "cache": False}
    with pytest.raises(ValueError, match="a head has 512 elements, but libraries fuse attention of at most 256 on"):
        plan_model(wide.text, "dgx-h100", **asked)
    notes = plan_model(wide.text, "dgx-h100", **asked, attention="plain").plan.notes
    assert any("with unfused attention" in note for note in notes)


def test_attention_is_plain_on_gpus_that_no_library_fuses_it_on():
    plain = planned("p3.16xlarge", precision="float16")
    assert any("with unfused attention" in note for note in plain.notes)
    size, asked = Transformer.of_text(f"{SIZE.text},precision=float16"), {"batch": 16, "runtime": "megatron"}
    assert PlanEstimator(plain, cache=False).estimate(plain).plan.step_s == pytest.approx(plain.step_s)
    with pytest.raises(ValueError, match="V100-SXM2-16GB is of the Volta generation; give attention='plain'"):
        plan_model(size.text, "p3.16xlarge", **asked, attention="fused", cache=False)
    found = compare(size.text, ["p3.16xlarge", "dgx-a100"], savings=SAVINGS[:1], cache=False, **asked)
    steps = [
        plan_model(size.text, cell.cluster.removeprefix("1 x "), remat=("none",), zero=(0,), cache=False, **asked)
        for cell in found.cells
    ]
    assert [cell.figures.step_s for cell in found.cells] == [one.plan.step_s for one in steps]


def test_a_device_of_ones_own_may_say_that_it_has_eight_bits():
    host = example_cluster(1).hosts[0]
    device = dataclasses.replace(host.device, flop_per_s={"float32": 1e12, "float8": 4e12}, memory_bytes=2.0**34)
    link = Link(1e-6, 1e10)
    assert planned(Cluster.uniform("own", ["a"], device, 4, link, link), precision="float8").step_s > 0
    with pytest.raises(ValueError, match="fp8, but example computes none"):
        planned(Cluster.uniform("own", ["a"], host.device, 4, link, link), precision="float8")
