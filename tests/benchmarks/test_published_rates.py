"""Published rates: the table is that of the papers, and a rate is judged by the interval of its own estimate."""

import functools
import json

import jax
import pytest

import published_rates
from alpa_dejavu.layers import trace
from alpa_dejavu.layers.models._sizes import GPT
from alpa_dejavu.layers.models._transformer import transformer_step
from alpa_dejavu.sharding import model_of_step
from published_rates import MEGATRON, Published, compared, figures, published

CASES = {one.name: one for one in published()}


@pytest.mark.parametrize("row", MEGATRON, ids=lambda row: row[0])
def test_sizes_have_the_parameters_that_the_paper_says(row):
    name, heads, hidden, blocks, tensor, pipeline, gpus, batch, _ = row
    # Equation 2 of the paper.
    further = 13 / (12 * hidden) + (51200 + 2048) / (12 * blocks * hidden)
    assert 12 * blocks * hidden**2 * (1 + further) == pytest.approx(float(name[:-1]) * 1e9, rel=0.03)
    assert (
        hidden % heads == gpus % (tensor * pipeline) == batch % (gpus // tensor // pipeline) == blocks % pipeline == 0
    )


def test_work_is_what_the_products_of_a_traced_model_are():
    case = CASES["Megatron-LM 1.7B"]
    model = model_of_step(trace(case.step, batch=1), case.num_layers)
    forward = sum(layer.forward.product_flop for layer in model.layers)
    backward = sum(layer.backward.product_flop for layer in model.layers)
    # All blocks are computed forward twice, the head once.
    head = 2 * 2048 * 2304 * 51200
    work = case.amount * 1e12 * case.gpus / case.batch
    assert 2 * forward + backward - head == pytest.approx(work, rel=0.01)


def test_the_image_classifier_is_resnet_50():
    _, ((trained, _), _) = CASES["ResNet-50 FP32 on 1 V100"].step(1)
    assert sum(leaf.size for leaf in jax.tree.leaves(trained.parameters)) == 25_557_032


def small(rate):
    step = functools.partial(transformer_step, GPT(64, 2, 2, vocabulary=128, sequence=32))
    return Published("small", "dgx-a100", 4, 16, rate, "samples/s", 16, step, (1, 2), 2, pipeline=2, remat="layer")


def test_a_rate_is_inside_the_interval_of_its_own_estimate_or_not(monkeypatch, tmp_path):
    row = compared(small(1.0))
    plans = {each: small(1.0).estimated(each).plan for each in (1, 2)}
    assert row["predicted"] == pytest.approx(16 / min(plan.step_s for plan in plans.values()))
    assert row["calibration"] == "a100"
    assert row["lower"] < row["predicted"] < row["upper"]
    assert not row["inside"]
    assert compared(small(row["predicted"]))["inside"]
    rows = [{**row, "inside": True, "width": 0.2}, {**row, "width": 0.4}]
    assert [figure.held for figure in figures(rows)] == [False, False]
    assert [figure.held for figure in figures(rows[:1])] == [True, True]
    monkeypatch.setattr(published_rates, "published", lambda: iter([small(row["predicted"])]))
    out = tmp_path / "rates.json"
    assert published_rates.main(["--json", str(out)]) == int(row["width"] > published_rates.WIDEST)
    found = json.loads(out.read_text(encoding="utf-8"))
    assert [each["name"] for each in found["rates"]] == ["small"]
