"""The spread that a calibration found is that of a plan's operators and links, and the plan says whose it is."""

import dataclasses

import numpy as np
import pytest

from alpa_dejavu.calibration import Calibration, prices, read_calibration, write_calibration
from alpa_dejavu.costs.communication import AlphaBeta, Group, MeasuredAlphaBeta
from alpa_dejavu.costs.latency import AnalyticLatency, MeasuredRoofline
from alpa_dejavu.costs.table import cost_table
from alpa_dejavu.planning.search.uncertainty import CLASSES, Errors, Resolver, meet
from alpa_dejavu.planning.search.uncertainty._errors import entry_seconds
from alpa_dejavu.planning.search.uncertainty._spreads import ALPHA_BETA, ROOFLINE
from alpa_dejavu.problem import Operator, Operators, Run, SmallProducts, StridedReads
from alpa_dejavu.testing import check_communication_model, check_latency_model, example_cluster
from made_up import fitted, measured
from models import chain, planned, space

RUN, ONE = Run(4), example_cluster(1)
FACTOR_OF_TWO = np.log(2) / 1.6449
SPREAD = {
    "flop_per_s[float32]": 0.1, "flop_per_s[float16]": 0.2, "vector_flop_per_s": 0.3, "memory_bytes_per_s": 0.15,
    "kernel_s": 0.4, "transcendental_flop": 0.25, "small_products": 0.35, "dispatch_s": 0.5, "step_s": 0.5,
}  # fmt: skip
DEVICE = dataclasses.replace(ONE.hosts[0].device, small_products=SmallProducts(1e6, 0.5))


def relative_on(device, spread, *records, own=0.0):
    operators = Operators.of(records)
    found = MeasuredRoofline({"example": spread}, own, "us").predict(operators, device)
    assert (found.mean_s == AnalyticLatency().predict(operators, device).mean_s).all()
    return np.log1p(found.spread_s / found.mean_s)


def dot(dtype="float32", size=4096, **fields):
    return Operator("dot", "dot_general", ((size,) * 2,) * 2, ((size,) * 2,), dtype, 2.0 * size**3, **fields)


def relative(*records, own=0.0, spread=SPREAD):
    """Standard deviation of each operator's logarithm."""
    return relative_on(DEVICE, spread, *records, own=own)


def test_an_operator_errs_as_the_figures_that_bound_it():
    add = Operator("elementwise", "add", ((1024,),) * 2, ((1024,),), "float32", 1024.0)
    moving = dataclasses.replace(add, read_bytes=1e9, count=3.0)
    tanh = dataclasses.replace(add, primitive="tanh", flop=0.0, transcendental=1024.0)
    found = relative(dot(), dot("float16"), dot("bfloat16"), dot(size=32), add, moving, tanh)
    rates = [0.1, 0.2, 0.1, np.hypot(0.1, 0.35), 0.3, 0.15, np.hypot(0.3, 0.25)]
    assert found == pytest.approx(rates, rel=1e-9)
    assert relative(dot(), own=0.2) == pytest.approx(np.hypot(0.1, 0.2))


def test_what_operators_have_in_common_is_what_their_device_has():
    only, beside = (MeasuredRoofline({"example": SPREAD}, own, "us") for own in (0.0, 0.2))
    add = Operator("elementwise", "add", ((8,), (8,)), ((8,),), "float32", flop=8.0)
    operators = Operators.of([dot(), add])
    assert only.common_share(operators, DEVICE).tolist() == [1.0, 1.0]
    shares = [0.1**2 / (0.1**2 + 0.2**2), 0.15**2 / (0.15**2 + 0.2**2)]
    assert beside.common_share(operators, DEVICE) == pytest.approx(shares)


def sigma(model, collective, num_bytes, hosts):
    group = Group(example_cluster(2), hosts)
    lower, upper, known = model.interval(collective, [num_bytes], group)
    assert lower[0] * upper[0] == pytest.approx(model.seconds(collective, num_bytes, group) ** 2)
    return float(np.log(upper / lower)[0] / 2 / 1.6449), bool(known[0])


def test_a_collective_errs_as_the_latency_or_the_rate_of_its_slowest_link():
    near = example_cluster(2).links[0][0]
    model = MeasuredAlphaBeta({near: {"latency_s": 0.4, "bytes_per_s": 0.1}}, 0.3, "us")
    assert sigma(model, "all_reduce", 1e-3, (0, 0)) == (pytest.approx(0.5, rel=1e-3), True)
    assert sigma(model, "all_gather", 1e12, (0, 0)) == (pytest.approx(np.hypot(0.1, 0.3), rel=1e-3), True)
    assert sigma(model, "send", 1e12, (0, 0)) == (pytest.approx(0.1, rel=1e-3), True)
    assert sigma(model, "send", 1e12, (0, 1)) == (0.0, False)
    apart = dataclasses.replace(near, send_latency_s=1e-3, send_bytes_per_s=1e9)
    cluster = dataclasses.replace(ONE, links=((apart,),))
    sent = MeasuredAlphaBeta({apart: {"latency_s": 0.1, "bytes_per_s": 0.1, "send_bytes_per_s": 0.2}}, 0.3, "us")
    for size, expected in ((1e12, 0.2), (1e-3, FACTOR_OF_TWO)):
        lower, upper, _ = sent.interval("send", [size], Group(cluster, (0, 0)))
        assert np.log(upper / lower)[0] / 2 / 1.6449 == pytest.approx(expected, rel=1e-3)


def test_the_models_are_sound():
    check_latency_model(MeasuredRoofline({"example": SPREAD}, 0.2, "us"))
    check_communication_model(MeasuredAlphaBeta({}, 0.3, "us"))


def calibrated(**changes) -> Calibration:
    """Measured figures with a spread of each."""
    near, far = measured().links
    links = (near, dataclasses.replace(far, spread={"bytes_per_s": 0.3}))
    device = dataclasses.replace(measured().devices["example"], dispatch_s=1e-5)
    fields = {"devices": {"example": device}, "device_spread": {"example": SPREAD}, "links": links}
    return dataclasses.replace(measured(), **{**fields, **changes})


def test_a_calibrated_clusters_plan_says_whose_spread_it_is(tmp_path):
    path = tmp_path / "mine.json"
    write_calibration(calibrated(name="mine"), path)
    model, plain = chain(4, parameter_bytes=1e6, activation_bytes=1e6), None
    for calibration, said in ((None, "roofline"), (read_calibration(path), "the errors of the calibration mine")):
        priced = prices(ONE, calibration, "auto", "auto")
        models = {"latency": priced.models.latency, "communication": priced.models.communication}
        made = planned(model, priced.cluster, space(), RUN, **models).plan
        assert said in made.confidence.spread_from
        low, high = made.confidence.interval_s
        plain = plain or high / low
    assert high / low < 0.6 * plain


def test_a_kernels_start_has_its_share_of_the_error():
    flop = DEVICE.kernel_s * DEVICE.vector_flop_per_s
    one = Operator("elementwise", "add", ((8,),), ((8,),), "float32", flop, written_bytes=8)
    assert relative(one) == pytest.approx(np.hypot(0.3, 0.4) / 2)


def test_reading_against_the_order_in_memory_holes_and_weights_err_as_their_own_rates_do():
    device = dataclasses.replace(DEVICE, dilated_flop_per_s=1e11, strided=StridedReads(1e9, 1e10, 1e6, 1e11))
    device = dataclasses.replace(device, uncached_bytes_per_s=1e9, extreme_flop_per_s=1e9)
    own = {"dilated_flop_per_s": 0.05, "strided[bytes_per_s]": 0.6, "strided[cached_bytes_per_s]": 0.7}
    own |= {"strided[near_bytes_per_s]": 0.75, "uncached_bytes_per_s": 0.8, "extreme_flop_per_s": 0.9}
    copy = Operator("layout", "transpose", ((8,),), ((8,),), "float32", 0.0)
    records = [
        dataclasses.replace(dot(), kind="conv", dilated=True),
        dataclasses.replace(copy, strided_bytes=1e9, strided_cache_bytes=4e6),
        dataclasses.replace(copy, strided_bytes=1e9, strided_cache_bytes=2e6),
        dataclasses.replace(copy, strided_bytes=1e9, strided_cache_bytes=1e5),
        dataclasses.replace(copy, read_bytes=1e9, unbatched_read_bytes=1e9),
        dataclasses.replace(copy, read_bytes=1e9, passed_bytes=1e9),
        Operator("reduce", "reduce_max", ((8,),), ((),), "float32", 1e9),
    ]
    found = relative_on(device, SPREAD | own, *records)
    assert found == pytest.approx([0.05, 0.6, 0.7, 0.75, 0.8, 0.8, 0.9])


def test_figures_that_nobody_measured_may_be_off_by_a_factor_of_two():
    assert relative(dot(), spread={"kernel_s": 0.1}) == pytest.approx(FACTOR_OF_TWO)
    assert relative(dot(), spread={}) == pytest.approx(FACTOR_OF_TWO)


def spreads_of(calibration, hosts=1):
    model = chain(4, parameter_bytes=1e6, activation_bytes=1e6)
    priced = prices(example_cluster(hosts), calibration, "auto", "auto")
    choices = space(hosts)
    table = cost_table(model, priced.cluster, choices, RUN, priced.models)
    resolver = Resolver()
    meet(table, choices, resolver)
    return resolver, table, choices


def test_the_draws_have_the_spread_that_the_fit_found():
    resolver, table, choices = spreads_of(calibrated())
    spreads, number = resolver.spreads, {name: n for n, name in enumerate(CLASSES)}
    assert spreads.common[number["products"]] == pytest.approx(0.1)
    assert spreads.own[number["products"]] == pytest.approx(0.2)
    assert spreads.common[number["launches"]] == pytest.approx(0.5)
    assert 0.2 < spreads.common[number["all_reduce within hosts"]] < np.hypot(FACTOR_OF_TWO, 0.3)
    assert spreads.stated[[number["products"], number["launches"], number["send within hosts"]]].all()
    resolved = resolver.resolved(table.stage_costs, table.devices[0], choices.configs[0][0])
    drawn = Errors.unmeasured(resolver).drawn(4000)
    logs = np.log(drawn.common)
    for name in ("products", "launches", "send within hosts"):
        assert logs[:, number[name]].std() == pytest.approx(spreads.common[number[name]], rel=0.05)
    stage = entry_seconds(resolved.micro_batch, resolved, 0, 2, drawn)
    assert np.log(stage).std() == pytest.approx(np.hypot(0.1, 0.2), rel=0.1)


def test_layers_on_one_device_err_together_as_far_as_its_figures_do():
    own = spreads_of(calibrated())[0].spreads
    wide = {name: 3 * value for name, value in SPREAD.items()}
    wider = spreads_of(dataclasses.replace(calibrated(), device_spread={"example": wide}))[0].spreads
    assert wider.common[0] == pytest.approx(3 * own.common[0])
    assert wider.own[0] == pytest.approx(own.own[0])


def test_what_was_not_measured_keeps_the_spread_that_is_assumed():
    links = spreads_of(dataclasses.replace(calibrated(), device_spread={}))[0].spreads
    assert links.common[0] == ROOFLINE["products"][0]
    alone = spreads_of(dataclasses.replace(calibrated(), links=()), hosts=2)[0]
    number = CLASSES.index("all_reduce within hosts")
    assert alone.spreads.common[number] == ALPHA_BETA["within hosts"]
    assert not alone.spreads.stated[number]


def test_sends_beside_learned_collectives_have_the_links_spread():
    both = calibrated(within=fitted().within)
    learned, links = both.communication(), calibrated().communication()
    group = Group(both.applied_to(ONE), (0, 0))
    assert learned.interval("send", [1e6], group) == links.interval("send", [1e6], group)
    assert learned.seconds("send", 1e6, group) == AlphaBeta().seconds("send", 1e6, group)
    assert learned.interval("all_reduce", [1e6], group)[1] != links.interval("all_reduce", [1e6], group)[1]
