"""What other schedules would be worth on a plan's submeshes, against closed forms and by hand."""

import dataclasses

import pytest

from alpa_dejavu.planning import Searched
from alpa_dejavu.planning.given.other_schedules import other_schedules
from alpa_dejavu.problem import Cluster, Device, Link, Operator, Operators, Run
from alpa_dejavu.schedules import SCHEDULES, named_schedule
from alpa_dejavu.simulation import StageTimes, simulate
from models import chain, planned, space


def splitting(num_layers, **more):
    """Layers whose backward pass is, in equal parts, by inputs and by weights."""

    def part(by_weight):
        return Operator("dot", "dot_general", (), (), "float32", 1e9, by_weight=by_weight)

    model = chain(num_layers, **more)
    backward = Operators.of([part(False), part(True)])
    return dataclasses.replace(model, layers=tuple(dataclasses.replace(n, backward=backward) for n in model.layers))


def pipeline(model, size, hosts=4, memory_bytes=2.0**30):
    """A plan of a stage on each host of one device, whose links take no time to speak of."""
    device = Device("example", memory_bytes, {"float32": 1e12}, 1e12, 1e11)
    names = [f"host-{n}" for n in range(hosts)]
    cluster = Cluster.uniform("example", names, device, 1, Link(1e-9, 1e15), Link(1e-9, 1e15))
    return planned(model, cluster, space(1, 1), Run(size), chooser=Searched("all"))


def by_name(found):
    return {one.name: one for one in found}


def test_layers_alike_take_the_published_bubbles():
    made = pipeline(splitting(8, activation_bytes=1.0, exchanged=()), 8)
    assert len(made.choices) == 4
    found = by_name(other_schedules(made))
    each = made.timeline.stages[0]
    pass_s = each.forward_s
    work = 8 * 3 * pass_s
    once = each.per_step_s
    assert found["1f1b"].step_s == pytest.approx(made.plan.step_s)
    bubbles = {
        "1f1b": 9.0, "gpipe": 9.0, "zb_h1": 3.0, "interleaved": 4.5,
        "zb_v": 1.5,  # none between a device's first and last pass; the last device begins so much later
    }  # fmt: skip
    for key, bubble in bubbles.items():
        assert found[key].step_s == pytest.approx(work + bubble * pass_s + once, rel=0.01), key
        assert found[key].fits
    assert found["interleaved_3"].why == "8 layers are too few for 12 stages"
    named = {*SCHEDULES, "interleaved_3", "interleaved_4"}
    assert {one.name for one in found.values()} == named - {"inference", "pipedream"}
    assert found["zb_v"].submesh_of == (0, 1, 2, 3, 3, 2, 1, 0)
    assert found["zb_v"].layers == tuple((n, n) for n in range(8))


def test_the_fastest_that_fits_comes_first_and_what_does_not_fit_is_said():
    model = splitting(8, activation_bytes=2.0**20, exchanged=())
    roomy, tight = (other_schedules(pipeline(model, 8, memory_bytes=size)) for size in (2.0**30, 12.5 * 2.0**20))
    assert [one.step_s for one in roomy[:5]] == sorted(one.step_s for one in roomy[:5])
    gpipe, v_min = by_name(tight)["gpipe"], by_name(tight)["v_min"]
    assert not gpipe.fits
    assert gpipe.why == "it takes more memory than the devices have"
    assert gpipe.memory_bytes > by_name(tight)["1f1b"].memory_bytes
    assert v_min.memory_bytes < by_name(tight)["zb_v"].memory_bytes


def test_a_step_without_gradients_has_none():
    made = pipeline(chain(4, training=False, exchanged=()), 4)
    made = dataclasses.replace(made, run=Run(4, "inference"))
    with pytest.raises(ValueError, match="takes no gradients"):
        other_schedules(made)


def test_uneven_layers_are_cut_anew_for_chunks():
    model = splitting(8, activation_bytes=1.0, exchanged=())
    longer = Operators.of([Operator("dot", "dot_general", (), (), "float32", 4e9)])
    slow = dataclasses.replace(model.layers[0], forward=longer)
    made = pipeline(dataclasses.replace(model, layers=(slow, *model.layers[1:])), 8, hosts=2)
    found = by_name(other_schedules(made))["zb_v"]
    assert sum(last - first + 1 for first, last in found.layers) == 8
    # No cut that is tried by hand is better.
    for other in ((1, 2, 2, 3), (1, 3, 2, 2), (2, 2, 2, 2), (1, 2, 3, 2)):
        stages, begin = [], 0
        for count in other:
            own = model.layers[begin : begin + count]
            slower = 3.0 if begin == 0 else 0.0
            stages.append((len(own) + slower, 2.0 * len(own)))
            begin += count
        times = [StageTimes(f * 1e-3, b * 1e-3, backward_weight_s=b * 0.5e-3) for f, b in stages]
        assert found.step_s <= simulate(times, 8, named_schedule("zb_v", 4, 8)).step_s * 1.01
