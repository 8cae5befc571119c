"""Joint draws of cost tables: what an entry is made of, what errs together, and what a measurement says."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alpa_dejavu._util.range_sums import stage_sum
from alpa_dejavu.costs.communication import AlphaBeta, CommunicationModel, Nccl
from alpa_dejavu.costs.communication.learned import LearnedCommunication
from alpa_dejavu.costs.latency import AnalyticLatency, KernelLatency, Latency, LatencyModel
from alpa_dejavu.costs.runtime import CostModels
from alpa_dejavu.costs.table import cost_table
from alpa_dejavu.planning.search.uncertainty import CLASSES, Errors, Factors, Resolver, entry_seconds, meet, redrawn
from alpa_dejavu.planning.search.uncertainty._resolved import Resolved, WorkSeconds
from alpa_dejavu.planning.search.uncertainty._spreads import (
    ALPHA_BETA,
    DIVIDED,
    DIVIDED_ALIKE,
    OWN_IN_PLANS,
    ROOFLINE,
    KnowsInterval,
    SharesErrors,
    Spreads,
)
from alpa_dejavu.planning.search.uncertainty._table_draws import _configs
from alpa_dejavu.problem import Operators, Run
from alpa_dejavu.testing import example_cluster
from models import chain, space

RUN = Run(4)
PRODUCTS, LAUNCHES = CLASSES.index("products"), CLASSES.index("launches")


class Unsure(LatencyModel):
    """The roofline, which says that it is off by a fifth."""

    def predict(self, operators, device):
        mean = AnalyticLatency().predict(operators, device).mean_s
        return Latency(mean, 0.2 * mean)


class UnsureLinks(CommunicationModel):
    """The alpha-beta model, which says that it is off by up to a factor of two with 90 %."""

    def seconds(self, collective, num_bytes, group):
        return AlphaBeta().seconds(collective, num_bytes, group)

    def interval(self, collective, num_bytes, group):
        seconds = self.seconds(collective, num_bytes, group)
        return seconds / 2, seconds * 2, np.ones(seconds.shape, dtype=bool)


def table_of(model, hosts=1, choices=None, run=RUN, latency=None, communication=None):
    choices = choices or space(hosts)
    models = CostModels(latency or AnalyticLatency(), communication or AlphaBeta())
    return cost_table(model, example_cluster(hosts), choices, run, models), choices


def met(table, choices):
    resolver = Resolver()
    meet(table, choices, resolver)
    return resolver


def varied(config, n):
    return config and dataclasses.replace(config, remat=("none", "layer")[n % 2], zero=(0, 2, 3)[n % 3])


def class_table(table, space, resolver):
    """The seconds of each stage's micro-batch by class of work, shape (N, L, L, S, C)."""
    found = np.zeros((len(CLASSES), *table.offered.shape))
    for s, c, resolved in _configs(table, space, resolver):
        part = resolved.micro_batch
        for number in range(len(CLASSES)):
            found[number, :, :, s, c] += stage_sum(part.of_variants[:, number], resolved.of_stages)
        for number, ranges in part.of_ranges.items():
            found[number, :, :, s, c] += ranges
    return found


@pytest.mark.parametrize("hosts", [1, 2])
@pytest.mark.parametrize("training", [True, False])
def test_the_classes_of_every_entry_add_up_to_the_table(hosts, training):
    plain = space(hosts)
    rows = tuple(tuple(varied(config, n) for n, config in enumerate(row)) for row in plain.configs)
    choices = dataclasses.replace(plain, configs=rows)
    run = RUN if training else Run(4, "inference")
    model = chain(4, activation_bytes=1e6, parameter_bytes=1e5, training=training)
    table, choices = table_of(model, hosts, choices, run)
    total = class_table(table, choices, Resolver()).sum(axis=0)
    whole = table.compute_s + table.collective_s
    assert np.allclose(total[table.offered], whole[table.offered], rtol=1e-12)
    assert np.sum(table.offered) > 20


def test_entries_that_share_their_layers_err_together_and_drawn_one_by_one_they_would_not():
    table, choices = table_of(chain(4))
    resolver = Resolver()
    resolved = resolver.resolved(table.stage_costs, table.devices[0], choices.configs[0][0])
    factors = Errors.unmeasured(resolver).drawn(400)
    one, two = (entry_seconds(resolved.micro_batch, resolved, first, last, factors) for first, last in ((0, 1), (0, 2)))
    together = np.log(one / two).std()
    apart = np.log(one / np.roll(two, 1)).std()
    assert np.log(one).std() > 0.3
    assert together < 0.02 * apart


def test_unlike_meshes_have_own_errors_beside_the_common_one():
    table, choices = table_of(chain(4, exchanged=()))
    resolver = Resolver()
    entries = [resolver.resolved(table.stage_costs, table.devices[s], choices.configs[s][0]) for s in (0, 1)]
    factors = Errors.unmeasured(resolver).drawn(4000)
    one, two = (np.log(entry_seconds(each.micro_batch, each, 0, 2, factors)) for each in entries)
    common, own = ROOFLINE["products"]
    own *= OWN_IN_PLANS
    of_mesh, shared = (1 - DIVIDED_ALIKE) * own**2, common**2 + DIVIDED_ALIKE * own**2
    # The second one is on two devices: a doubling.
    assert (one - two).std() == pytest.approx(np.sqrt(2 * of_mesh + DIVIDED**2), rel=0.1)
    alone = shared + of_mesh
    assert np.corrcoef(one, two)[0, 1] == pytest.approx(shared / np.sqrt(alone * (alone + DIVIDED**2)), abs=0.06)


def test_a_stage_of_more_devices_takes_the_factor_of_each_doubling():
    table, choices = table_of(chain(4, exchanged=()))
    resolver = Resolver()
    each = [resolver.resolved(table.stage_costs, table.devices[s], choices.configs[s][0]) for s in (0, 1, 2)]
    assert [one.doublings for one in each] == [0, 1, 2]
    factors = Errors.unmeasured(resolver).drawn(4)
    same = Factors(factors.common, np.ones_like(factors.own))
    alone, two, four = (entry_seconds(one.micro_batch, one, 0, 3, same) for one in each)
    launches = 2 * 1e-5 * factors.common[:, LAUNCHES]
    doubled, products = factors.common[:, CLASSES.index("doublings")], alone - launches
    assert two == pytest.approx((products / 2 + launches) * doubled)
    assert four == pytest.approx((products / 4 + launches) * doubled**2)
    after = Errors.unmeasured(resolver).measured(each[2].micro_batch, each[2], 0, 3, ratio=2.0)
    assert np.log(after.middle.common[0, CLASSES.index("doublings")]) > 0


def test_a_redrawn_table_has_what_its_entries_are_drawn_as():
    table, choices = table_of(chain(4, activation_bytes=1e6, parameter_bytes=1e6), hosts=2)
    resolver = met(table, choices)
    factors = Errors.unmeasured(resolver).drawn(3)
    drawn = redrawn(table, choices, resolver, factors, draw=2)
    for i, j, s, c in np.argwhere(table.offered).tolist():
        resolved = resolver.resolved(table.stage_costs, table.devices[s], choices.configs[s][c])
        micro, step = (
            entry_seconds(part, resolved, i, j, factors)[2] for part in (resolved.micro_batch, resolved.step)
        )
        assert drawn.compute_s[i, j, s, c] + drawn.collective_s[i, j, s, c] == pytest.approx(micro)
        assert drawn.per_step_s[i, j, s, c] == pytest.approx(step)
    factor = factors.common[2, CLASSES.index("send between hosts")]
    assert drawn.interstage.forward_s == pytest.approx(factor * table.interstage.forward_s)
    assert drawn.interstage.forward_s[1:].all()
    assert drawn.transfer.between(1, (0,), (1,))[0] == pytest.approx(factor * table.transfer.between(1, (0,), (1,))[0])


def test_models_that_say_their_spread_are_believed():
    resolver = met(*table_of(chain(3), latency=Unsure(), communication=UnsureLinks()))
    spreads = resolver.spreads
    assert spreads.common[PRODUCTS] == pytest.approx(np.log(1.2) * np.sqrt(0.5))
    assert spreads.own[PRODUCTS] == pytest.approx(np.log(1.2) * np.sqrt(0.5))
    assert spreads.common[CLASSES.index("all_reduce within hosts")] == pytest.approx(np.log(2) / 1.6449)
    assert resolver.source == "the errors of the models"


def one_layer(products=1.0, launches=0.0):
    """A stage of one layer, all of it products and launches."""
    row, ranges = np.zeros((1, len(CLASSES))), {LAUNCHES: np.full((1, 1), launches)}
    row[0, PRODUCTS] = products
    seconds = WorkSeconds(row, ranges)
    return Resolved(np.array([[0, 1]]), None, seconds, seconds)


def errors_of(common, own, launches=0.0):
    sizes = np.zeros((2, len(CLASSES)))
    sizes[0, PRODUCTS], sizes[1, PRODUCTS], sizes[0, LAUNCHES] = common, own, launches
    spreads = Spreads(sizes[0], sizes[1], np.zeros(len(CLASSES), dtype=bool))
    return Errors(Resolver(), spreads, np.zeros(len(CLASSES) + 2))


def test_a_measured_stage_updates_the_common_and_its_own_error_by_their_shares():
    stage, errors = one_layer(), errors_of(0.4, 0.3)
    after = errors.measured(stage.micro_batch, stage, 0, 0, ratio=2.0)
    variance = 0.4**2 + 0.3**2 + 0.03**2
    factors = after.middle
    assert np.log(factors.common[0, PRODUCTS]) == pytest.approx(np.log(2) * 0.4**2 / variance)
    assert np.log(factors.of_layers(stage, np.zeros(1, dtype=np.intp))[0, 0, 0]) == pytest.approx(
        np.log(2) * 0.3**2 / variance
    )
    drawn = np.log(entry_seconds(stage.micro_batch, stage, 0, 0, after.drawn(4000)))
    assert drawn.std() == pytest.approx(0.5 * 0.03 / np.sqrt(variance), rel=0.1)
    left = np.log(after.drawn(4000).common[:, PRODUCTS]).std()
    assert left == pytest.approx(0.4 * np.sqrt(1 - 0.16 / variance), rel=0.1)


@settings(max_examples=50, deadline=None)
@given(ratio=st.floats(0.2, 5.0), share=st.floats(0.05, 0.95))
def test_after_a_measurement_the_stage_is_predicted_as_measured(ratio, share):
    stage, errors = one_layer(1 - share, share), errors_of(0.5, 0.3, launches=0.4)
    after = errors.measured(stage.micro_batch, stage, 0, 0, ratio)
    predicted = entry_seconds(stage.micro_batch, stage, 0, 0, after.middle)[0]
    assert predicted == pytest.approx(ratio, rel=0.05)
    prior, left = np.eye(len(after.mean)), after.root @ after.root.T
    assert (np.linalg.eigvalsh(prior - left) > -1e-9).all(), "nothing gets less sure by a measurement"


def test_classes_by_hand():
    table, choices = table_of(chain(3, flop=1e9))
    classes = class_table(table, choices, Resolver())[:, 0, 2, 0, 0]
    assert classes[PRODUCTS] == pytest.approx(3 * 3e9 / 1e12)
    assert classes[LAUNCHES] == pytest.approx(2 * 1e-5)
    assert classes.sum() == pytest.approx(classes[PRODUCTS] + classes[LAUNCHES])


def test_tensor_parallelism_is_in_the_class_of_its_link():
    table, choices = table_of(chain(2))
    classes = class_table(table, choices, Resolver())[:, 0, 1, 1, 1]
    assert classes[CLASSES.index("all_reduce within hosts")] == pytest.approx(table.collective_s[0, 1, 1, 1])


def test_devices_that_are_processes_of_one_cpu_take_no_factor_of_doublings():
    cluster, choices = dataclasses.replace(example_cluster(2), cores=4), space(2)
    model = chain(4, exchanged=())
    table = cost_table(model, cluster, choices, RUN, CostModels(AnalyticLatency(), AlphaBeta()))
    resolver = Resolver()
    each = [
        resolver.resolved(table.stage_costs, devices, row[0])
        for devices, row in zip(table.devices, choices.configs, strict=True)
    ]
    # One, two and four devices of a process, then eight processes, four on each Ray node.
    assert [one.doublings for one in each] == [0, 1, 2, 0]


def test_a_layers_own_error_is_the_mean_of_its_operators():
    model = chain(2, exchanged=())
    records = tuple(
        dataclasses.replace(model.layers[0].forward.records[0], input_shapes=((size,),)) for size in (1, 2, 3, 4)
    )
    several = Operators.of(records)
    layers = tuple(dataclasses.replace(layer, forward=several, backward=several) for layer in model.layers)
    resolver = met(*table_of(dataclasses.replace(model, layers=layers)))
    assert resolver.spreads.own[PRODUCTS] == pytest.approx(OWN_IN_PLANS * ROOFLINE["products"][1] / 2)
    assert resolver.spreads.common[PRODUCTS] == ROOFLINE["products"][0]


def test_draws_are_in_the_middle_on_average():
    table, choices = table_of(chain(4))
    resolver = Resolver()
    resolved = resolver.resolved(table.stage_costs, table.devices[0], choices.configs[0][0])
    factors = Errors.unmeasured(resolver).drawn(200)
    assert np.log(factors.common).mean(axis=0) == pytest.approx(0.0, abs=1e-12)
    assert len(np.unique(np.round(factors.common[:, PRODUCTS], 12))) == 200
    assert len(Errors.unmeasured(resolver).drawn(3)) == 3
    assert resolved.own.tolist() == [[0, 1]] * 4


def test_without_errors_a_redrawn_table_is_the_table():
    table, choices = table_of(chain(3))
    resolver = met(table, choices)
    same = redrawn(table, choices, resolver, Errors.unmeasured(resolver).middle)
    assert np.allclose(same.costs_s[table.offered], table.costs_s[table.offered], rtol=1e-12)


def test_the_null_models_say_that_their_spread_is_assumed():
    resolver = met(*table_of(chain(3)))
    spreads = resolver.spreads
    common, own = ROOFLINE["products"]
    assert (spreads.common[PRODUCTS], spreads.own[PRODUCTS]) == (common, OWN_IN_PLANS * own)
    assert spreads.common[CLASSES.index("all_reduce within hosts")] == ALPHA_BETA["within hosts"]
    assert not spreads.stated.any()
    assert "roofline" in resolver.source


def test_a_measurement_says_nothing_of_what_it_has_no_part_in():
    stage, errors = one_layer(), errors_of(0.4, 0.3, launches=0.5)
    after = errors.measured(stage.micro_batch, stage, 0, 0, ratio=2.0)
    assert after.middle.common[0, LAUNCHES] == pytest.approx(1.0)
    assert np.log(after.drawn(4000).common[:, LAUNCHES]).std() == pytest.approx(0.5, rel=0.1)


class UnsureTogether(LatencyModel):
    """As `Unsure`, but it knows which share of its errors operators have in common."""

    def predict(self, operators, device):
        return Unsure().predict(operators, device)

    def common_share(self, operators, device):
        return np.where(operators.is_product, 0.9, 0.2)


def test_a_model_that_knows_what_operators_err_in_together_is_asked():
    resolver = met(*table_of(chain(3), latency=UnsureTogether()))
    assert resolver.spreads.common[PRODUCTS] == pytest.approx(np.log(1.2) * np.sqrt(0.9))
    assert resolver.spreads.own[PRODUCTS] == pytest.approx(np.log(1.2) * np.sqrt(0.1))


def test_the_fitted_models_are_among_those_that_are_asked():
    assert issubclass(KernelLatency, SharesErrors)
    assert issubclass(Nccl, KnowsInterval)
    assert issubclass(LearnedCommunication, KnowsInterval)
