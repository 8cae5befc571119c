"""A calibration and its file: what is written is read, what is wrong is named, and measured figures reach a cluster."""

import dataclasses
import json
import os
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alpa_dejavu.calibration import Calibration, Fit, MeasuredLink, prices, read_calibration, write_calibration
from alpa_dejavu.calibration.text import json_text
from alpa_dejavu.costs.communication import AlphaBeta, Group
from alpa_dejavu.costs.latency import AnalyticLatency
from alpa_dejavu.costs.memory_margin import MemoryResiduals
from alpa_dejavu.costs.runtime import CostModels
from alpa_dejavu.problem import Host, Link, Operator, Operators
from alpa_dejavu.testing import check_communication_model, check_latency_model
from made_up import EXAMPLE, collectives, fitted, measured


def written(tmp_path, calibration):
    path = tmp_path / "calibration.json"
    write_calibration(calibration, path)
    return path


def changed(tmp_path, change, calibration=None):
    """A file in which `change` has changed what JSON holds."""
    path = written(tmp_path, calibration or measured())
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data, indent=1))
    return path


def test_models_predict_from_the_file_what_they_were_fitted_to_predict(tmp_path):
    before = fitted()
    after = read_calibration(written(tmp_path, before))
    pairs = [(model.within.predict(collectives(1.0, (2.0, 6.0))) for model in (before, after))]
    pairs += [(model.across.predict(collectives(2.0, (4.0, 16.0))) for model in (before, after))]
    for one, other in pairs:
        for end in ("mean", "lower", "upper"):
            assert np.abs(getattr(other, end) / getattr(one, end) - 1).max() < 1e-6
        assert (one.in_domain == other.in_domain).all()


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    path = written(tmp_path, fitted())
    whole = path.read_text()

    class Wrong:
        def state(self):
            return {"values": [0.0, float("nan")]}

    with pytest.raises(ValueError, match=r"within\.values\[1\] is nan, which no calibration may hold"):
        write_calibration(dataclasses.replace(fitted(), within=Wrong()), path)
    assert path.read_text() == whole
    assert os.listdir(tmp_path) == [path.name]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"version": 1', "line 1: this isn't JSON"),
        ("[]", "but must be an object"),
        ("{}", "lacks the key 'version'"),
        ('{\n"version": 2, "figures": []}', "line 2: version is 2, but must be 1, the version of calibrations"),
    ],
)
def test_a_broken_file_is_named(tmp_path, text, said):
    path = tmp_path / "broken.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"broken\.json.*alpa-dejavu calibrate") as error:
        read_calibration(path)
    assert said in str(error.value)


def _set(*where, value):
    def change(data):
        for key in where[:-1]:
            data = data[key]
        data[where[-1]] = value

    return change


def _drop(*where):
    def change(data):
        for key in where[:-1]:
            data = data[key]
        del data[where[-1]]

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_set("units", value="ms"), 'units is "ms", but must be "SI"'),
        (_set("date", value="2024-13-01"), "date is '2024-13-01', but must be a day"),
        (_set("devices", "example", "memory_bytes", value=-1), "memory_bytes is -1, but must be a number above 0"),
        (_drop("devices", "example", "memory_bytes"), "lacks the key 'memory_bytes'"),
        (_set("devices", "example", "speed", value=1), "speed is an unknown key"),
        (_set("devices", "example", "name", value="other"), "the device 'other' is listed as 'example'"),
        (_set("device_spread", "other", value={"kernel_s": 0.1}), "device_spread is of 'other'"),
        (_set("device_spread", "example", "colour", value=0.1), "a spread of 'colour', which is no figure"),
        (_set("links", 0, "link", "bytes_per_s", value=-1), "links[0].link.bytes_per_s is -1, but must be a number ab"),
        (_set("links", 0, "link", "cached_bytes", value=1), "link: cached_bytes_per_s and cached_bytes belong togethe"),
        (_set("links", 1, "within", value=True), "the link example - example is there twice"),
        (_set("links", 0, "devices", value=["example"]), "a list of the two kinds of devices"),
        (_set("memory", "log_ratios", "peak", value=[0.1]), "log_ratios.peak is [0.1], but must be a list of two or"),
        (_set("memory", "log_ratios", "peak", 1, value="high"), 'log_ratios.peak[1] is "high", but must be a number'),
        (_set("memory", "log_ratios", "heap", value=[0.1, 0.2]), "memory.log_ratios.heap is an unknown key"),
        (_set("memory", "log_ratios", value={"resident": [0.1, 0.2]}), "has ['resident'], but needs each of"),
        (_set("memory", "num_groups", value=0), "num_groups is 0, but must be a whole number of at least 1"),
        (_drop("memory", "framework"), "memory lacks the key 'framework'"),
    ],
)
def test_wrong_figures_are_named(tmp_path, change, said):
    with pytest.raises(ValueError, match=r"calibration\.json") as error:
        read_calibration(changed(tmp_path, change))
    assert said in str(error.value)


LOG_RATIO = "must be a finite number: a logarithm of a ratio"


@pytest.mark.parametrize(
    ("where", "value", "said"),
    [
        (("within",), [], "within is [], but must be an object: fitted collectives within hosts"),
        (("within", "ends", "seen sizes", 1), None, f"seen sizes[1] is null, but {LOG_RATIO}"),
        (("within", "ends", "seen sizes", 1), 1e301, f"is 1e+301, but {LOG_RATIO}, and at most 1e+300"),
        (("within", "ends", "seen sizes"), [0.1], "is [0.1], but must be a list of the two ends of an interval"),
        (("within", "ends", "other sizes"), [0.5, -0.5], "an interval, the lower one first; 0.5 is above -0.5"),
        (("within", "values", 3), "x", 'within.values[3] is "x", but must be a finite number'),
        (("within", "collectives", 1), "broadcast", "but must be all_gather, all_reduce, all_to_all or reduce_scatter"),
        (("within", "collectives"), [], "within.collectives is [], but must be a list of the names of collectives"),
        (("across", "sizes", 0), -2, "across.sizes[0] is -2, but must be a whole number of at least 1"),
        (("across", "outliers"), None, "across.outliers is null, but must be a list of whole numbers of at least 0"),
        (("within", "most_bytes"), -1, "within.most_bytes is -1, but must be bytes above 0"),
        (("products", "example", "float32", "bend"), "deep", 'bend is "deep", but must be a number'),
    ],
)
def test_wrong_values_in_models_are_named_with_their_line(tmp_path, where, value, said):
    path = changed(tmp_path, _set(*where, value=value), fitted())
    key, text = where[-1], json.dumps(value, indent=1)
    begins = text if isinstance(key, int) else f'"{key}": {text.splitlines()[0]}'
    assert named_line(path, said).startswith(begins)


def named_line(path, said):
    """The line of a file that the error of reading it names."""
    with pytest.raises(ValueError, match=r"calibration\.json, line \d+: .*alpa-dejavu calibrate") as error:
        read_calibration(path)
    assert said in str(error.value)
    line = re.search(r"line (\d+):", str(error.value))[1]
    return path.read_text().splitlines()[int(line) - 1].strip()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_set("within", "values", value=[1.0]), "within is no fitted model: values has 1 numbers, but must have"),
        (_set("products", "example", "float32", "most_flop", value=1.0), "curve of products: least_flop is"),
        (_set("products", "other", value={}), "products are of 'other', which has no measured figures"),
        (_drop("within"), "has collectives across hosts, but none within"),
        (_set("kernels", value={}), "kernels is an unknown key"),
    ],
)
def test_models_whose_parts_do_not_fit_are_named(tmp_path, change, said):
    with pytest.raises(ValueError, match=r"calibration\.json.*alpa-dejavu calibrate") as error:
        read_calibration(changed(tmp_path, change, fitted()))
    assert said in str(error.value)


def test_measured_figures_take_the_place_of_the_clusters():
    after = measured().applied_to(EXAMPLE)
    assert {host.device for host in after.hosts} == {measured().devices["example"]}
    assert [host.name for host in after.hosts] == [host.name for host in EXAMPLE.hosts]
    assert after.links[0][0] == after.links[1][1] == measured().links[0].link
    assert after.links[0][1] == after.links[1][0] == measured().links[1].link


def test_other_devices_than_the_clusters_are_named():
    stranger = dataclasses.replace(EXAMPLE.hosts[0].device, name="stranger")
    cluster = dataclasses.replace(EXAMPLE, hosts=(EXAMPLE.hosts[0], Host("host-x", stranger, 4)))
    with pytest.raises(ValueError, match="cluster example has 'stranger', but the calibration made-up knows 'example'"):
        fitted().applied_to(cluster)
    other = dataclasses.replace(measured().devices["example"], name="other")
    linked = MeasuredLink(("example", "far"), False, Link(1e-3, 1e8))
    with pytest.raises(ValueError, match="measured on 'far', which the cluster example doesn't have"):
        dataclasses.replace(measured(), links=(linked,)).applied_to(EXAMPLE)
    both = dataclasses.replace(measured(), devices={**measured().devices, "other": other})
    with pytest.raises(ValueError, match="measured on 'other', which the cluster example doesn't have"):
        both.applied_to(EXAMPLE)


def test_a_devices_own_products_are_as_far_off_as_was_measured():
    square = Operator("dot", "dot_general", ((4096,) * 2,) * 2, ((4096,) * 2,), "float32", 2.0 * 4096**3, 0, 2e8, 1e8)
    add = Operator("elementwise", "add", ((1024,) * 2,) * 2, ((1024,) * 2,), "float32", 1e6, 0, 8e6, 4e6)
    device, operators = EXAMPLE.hosts[0].device, Operators.of([square, dataclasses.replace(square, dtype="int8"), add])
    plain = dataclasses.replace(fitted(), products={}).latency().predict(operators, device).mean_s
    own = fitted().latency().predict(operators, device).mean_s
    factor = fitted().products["example"]["float32"].factor(np.array([square.flop]))[0]
    work = plain[0] - device.kernel_s
    assert own[0] - device.kernel_s == pytest.approx(factor * work, rel=1e-6)
    assert factor > 1.3
    assert (own[1:] == plain[1:]).all()


def test_prices_are_the_calibrations_or_as_given():
    none = prices(EXAMPLE, None, "analytic", "free")
    assert none.cluster is EXAMPLE
    assert none.models.latency == AnalyticLatency()
    default = prices(EXAMPLE, None, "auto", "auto")
    assert default.models == CostModels(AnalyticLatency(), AlphaBeta())
    given = MemoryResiduals({"peak": (0.1, 0.2)}, 2)
    assert (none.calibration, none.residuals(None), none.residuals(given)) == (None, None, given)
    own = prices(EXAMPLE, known := measured(), "auto", "auto")
    assert own.calibration is known
    assert (own.residuals(None), own.residuals(given)) == (known.memory, given)
    assert own.cluster == measured().applied_to(EXAMPLE)
    with pytest.raises(ValueError, match="both a calibration and communication='free'"):
        prices(EXAMPLE, measured(), "auto", "free")
    with pytest.raises(ValueError, match="both a calibration and latency='analytic'"):
        prices(EXAMPLE, measured(), "analytic", "auto")
    with pytest.raises(ValueError, match="both a calibration and communication='alpha-beta'"):
        prices(EXAMPLE, measured(), "auto", "alpha-beta")
    with pytest.raises(ValueError, match="both a calibration and latency=AnalyticLatency"):
        prices(EXAMPLE, measured(), AnalyticLatency(), "auto")
    with pytest.raises(TypeError, match="calibration is 3; give a file"):
        prices(EXAMPLE, 3, "auto", "auto")
    with pytest.raises(ValueError, match=r"no calibration 'v100'; give the path .* or leave it out"):
        prices(EXAMPLE, "v100", "auto", "auto")


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: Fit("products", "x", -1), "rows is -1"),
        (lambda: Fit("products", "x", 1, held_out={"mape": float("inf")}), "mape is inf"),
        (lambda: MeasuredLink(("a", "b"), True, Link(0, 1), {"bytes_per_s": -0.1}), "spread of bytes_per_s is -0.1"),
        (lambda: Calibration("x", "x", "yesterday"), "date is 'yesterday'"),
    ],
)
def test_nonsense_is_refused(made, said):
    with pytest.raises(ValueError, match=said):
        made()


JSONS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=40,
)


@settings(max_examples=100, deadline=None)
@given(JSONS)
def test_text_is_the_same_json_with_nine_digits(value):
    def rounded(each):
        if isinstance(each, float):
            return float(f"{each:.9g}")
        if isinstance(each, dict):
            return {key: rounded(inner) for key, inner in each.items()}
        return [rounded(inner) for inner in each] if isinstance(each, list) else each

    assert json.loads(json_text(value)) == rounded(value)
    assert json_text(json.loads(json_text(value))) == json_text(value)


MODELS = ("within", "across")


def test_what_was_read_is_written_as_the_same_bytes(tmp_path):
    for calibration in (fitted(), measured()):
        first = written(tmp_path, calibration).read_bytes()
        again = read_calibration(tmp_path / "calibration.json")
        assert written(tmp_path, again).read_bytes() == first
        names = [field.name for field in dataclasses.fields(again) if field.name not in MODELS]
        assert [getattr(again, name) for name in names] == [getattr(calibration, name) for name in names]
        assert [getattr(again, n) is None for n in MODELS] == [getattr(calibration, n) is None for n in MODELS]


def test_what_was_not_measured_stays():
    partly = dataclasses.replace(fitted(), links=measured().links[:1])
    after = partly.applied_to(EXAMPLE)
    assert [host.device.flop_per_s for host in after.hosts] == [host.device.flop_per_s for host in EXAMPLE.hosts]
    assert after.links[0][1] == EXAMPLE.links[0][1]
    assert after.links[1][1] != EXAMPLE.links[1][1]
    assert fitted().applied_to(EXAMPLE).links == EXAMPLE.links


def test_links_of_unlike_hosts_are_told_apart():
    other = dataclasses.replace(measured().devices["example"], name="other")
    hosts = (EXAMPLE.hosts[0], Host("host-x", other, 4))
    mixed = dataclasses.replace(EXAMPLE, hosts=hosts)
    between, within = Link(1e-3, 1e8), Link(0, 1e9)
    links = MeasuredLink(("other", "example"), False, between), MeasuredLink(("other", "other"), True, within)
    both = {"example": measured().devices["example"], "other": other}
    after = dataclasses.replace(measured(), devices=both, links=links).applied_to(mixed)
    assert after.links[0][1] == after.links[1][0] == between
    assert after.links[1][1] == within
    assert after.links[0][0] == EXAMPLE.links[0][0]


def test_its_models_are_sound():
    check_latency_model(fitted().latency())
    check_communication_model(fitted().communication())
    assert dataclasses.replace(measured(), device_spread={}).latency() == AnalyticLatency()
    assert dataclasses.replace(measured(), links=()).communication() == AlphaBeta()
    within = dataclasses.replace(fitted(), across=None).communication()
    far = Group(EXAMPLE, (0, 1))
    assert within.seconds("all_reduce", 1e6, far) == AlphaBeta().seconds("all_reduce", 1e6, far)
    near = Group(EXAMPLE, (0, 0))
    assert within.seconds("all_reduce", 1e6, near) != AlphaBeta().seconds("all_reduce", 1e6, near)
