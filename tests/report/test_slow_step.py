"""Why a step is slow: each cause is claimed by what traces show of it, and by nothing else."""

import pytest

from alpa_dejavu.calibration.traces import KindTime, MeasuredStep, TracedExchange, TracedOperator
from alpa_dejavu.problem import Cluster, Device, Link
from alpa_dejavu.report.slow_step import why_slow

DEVICE = Device("gpu", 2.0**35, {"float32": 1e12, "bfloat16": 4e12}, 1e12, 1e11)
LINK = Link(1e-6, 1e9)
CLUSTER = Cluster.uniform("cluster", ["host"], DEVICE, 2, LINK, LINK)


def product(seconds, count=10, flop=1e9, dtype="c10::BFloat16"):
    return TracedOperator("products", "aten::mm", ((64, 64), (64, 64)), dtype, count, seconds, flop)


def step(rank=0, seconds=1.0, products=0.9, operators=None, exchanges=(), longest_gap_s=0.0, **others):
    times = {"products": KindTime(products, products, 10)}
    times |= {name.replace("_", " "): own for name, own in others.items()}
    operators = (product(products),) if operators is None else tuple(operators)
    return MeasuredStep(rank, 0, seconds, times, tuple(exchanges), operators, longest_gap_s)


def names(told):
    return [cause.name for cause in told.causes]


def test_a_step_that_computes_all_the_time_has_no_cause():
    told = why_slow([step(products=0.99), step(1, products=0.98)], cluster=CLUSTER)
    assert told.causes == ()
    assert told.step_s == 1.0


def test_a_rank_that_computes_longer_with_the_same_work_is_slow():
    ranks = [step(0, products=0.5), step(1, products=0.5), step(2, products=0.9)]
    (cause,) = [own for own in why_slow(ranks).causes if own.name == "one slow rank"]
    assert cause.saves_s == pytest.approx(0.4)
    assert "rank 2 computes for 900 ms, the others 500 ms" in cause.evidence


def test_a_rank_with_more_operations_is_no_slow_rank_but_an_imbalance():
    ranks = [step(0, products=0.4), step(1, products=0.8, operators=[product(0.8, count=20)])]
    told = why_slow(ranks)
    assert "imbalance" in names(told)
    assert "one slow rank" not in names(told)
    assert told.causes[0].saves_s == pytest.approx(0.2)


def test_a_link_far_below_its_rate_is_slow_and_one_near_it_is_not():
    def ranks(seconds):
        exchange = TracedExchange("all_reduce", 1e8, 2, seconds)
        exposed = KindTime(seconds, seconds, 1)
        return [step(n, products=0.5, exchanges=[exchange], **{"exchanges:_all_reduce": exposed}) for n in (0, 1)]

    slow = why_slow(ranks(0.4), cluster=CLUSTER)  # 1e8 bytes in 0.4 s where 0.1 s are usual
    assert slow.causes[0].name == "a slow link"
    assert slow.causes[0].saves_s == pytest.approx(0.3)
    assert "a slow link" not in names(why_slow(ranks(0.12), cluster=CLUSTER))
    assert "a slow link" not in names(why_slow(ranks(0.4)))  # nothing says what is usual


def test_exchanges_that_something_hides_are_no_cause():
    exchange = TracedExchange("all_reduce", 1e8, 2, 0.2)
    hidden = [step(n, exchanges=[exchange], **{"exchanges:_all_reduce": KindTime(0.2, 0.02, 1)}) for n in (0, 1)]
    assert "exchanges that don't hide" not in names(why_slow(hidden, cluster=CLUSTER))
    shown = [
        step(n, products=0.7, exchanges=[exchange], **{"exchanges:_all_reduce": KindTime(0.2, 0.2, 1)}) for n in (0, 1)
    ]
    (cause,) = [own for own in why_slow(shown, cluster=CLUSTER).causes if own.name == "exchanges that don't hide"]
    assert cause.saves_s == pytest.approx(0.2)


def test_seconds_in_which_a_rank_waits_for_a_slow_one_are_no_exchange():
    def rank(number, computes, exchanges):
        exchange = TracedExchange("all_reduce", 1e8, 2, exchanges)
        return step(number, products=computes, exchanges=[exchange],
                    **{"exchanges:_all_reduce": KindTime(exchanges, exchanges, 1)})  # fmt: skip

    told = why_slow([rank(0, 0.4, 0.5), rank(1, 0.85, 0.05)], cluster=CLUSTER)
    assert told.causes[0].name == "one slow rank"
    parts = {part.name: part.measured_s for part in told.parts}
    assert parts["waiting for other ranks"] == pytest.approx(0.45 / 2)
    assert parts["exchanges that nothing hides"] == pytest.approx(0.05)


def test_attention_is_written_out_where_a_softmax_reads_scores():
    scores = (4, 8, 512, 512)
    operators = [
        product(0.4, count=10, flop=1e11),  # 2.5 TFLOP/s
        TracedOperator("products", "aten::bmm", ((32, 512, 512), (32, 512, 64)), "float", 2, 0.1, 5e10),
        TracedOperator("norms and softmax", "aten::_softmax", (scores,), "float", 1, 0.2, 0.0),
        TracedOperator("element-wise", "aten::masked_fill", (scores,), "float", 1, 0.1, 0.0),
    ]
    (cause,) = [own for own in why_slow([step(operators=operators)]).causes if "attention" in own.name]
    assert cause.saves_s == pytest.approx(0.4 - 1e11 / (2.5e12 / 2))
    fused = [product(0.4), TracedOperator("attention", "flash", ((4, 8, 512, 64),), "float", 2, 0.1, 0.0)]
    assert not [own for own in why_slow([step(operators=fused)]).causes if "attention" in own.name]


def test_single_precision_is_judged_by_the_rates_of_the_device():
    operators = [product(0.6, dtype="float"), product(0.2)]
    (cause,) = [own for own in why_slow([step(operators=operators)], cluster=CLUSTER).causes if "single" in own.name]
    assert cause.saves_s == pytest.approx(0.6 * (1 - 1 / 4))
    assert not why_slow([step(operators=operators, products=0.99)]).causes


def test_loading_data_and_gaps_in_one_piece():
    loading = why_slow([step(products=0.7, data=KindTime(0.3, 0.25, 1))])
    assert loading.causes[0].name == "loading data"
    assert loading.causes[0].saves_s == pytest.approx(0.25)
    sleeping = why_slow([step(products=0.7, longest_gap_s=0.28), step(1, products=0.7, longest_gap_s=0.27)])
    assert sleeping.causes[0].name == "a gap in which nothing runs"
    assert sleeping.causes[0].saves_s == pytest.approx(0.27)


def test_many_small_operators_are_bound_by_the_host():
    told = why_slow([step(products=0.4, longest_gap_s=0.01, dispatch=KindTime(0.2, 0.2, 5000))])
    assert told.causes[0].name == "small kernels, bound by the host"
    assert told.causes[0].saves_s == pytest.approx(0.4 - 0.01 + 0.2)
