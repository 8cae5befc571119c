"""Small models made by hand for the planner's tests, whose figures can be reckoned in the head, and tasks of them."""

from alpa_dejavu.calibration import Prices
from alpa_dejavu.costs.memory_margin import COUNTED, UNMEASURED
from alpa_dejavu.costs.runtime import CostModels
from alpa_dejavu.costs.table import cost_table
from alpa_dejavu.planning import PlanningTask, Searched, plan
from alpa_dejavu.planning.search._candidate import Costs
from alpa_dejavu.planning.search.models.model_source import GivenModel
from alpa_dejavu.planning.task import GivenSpace, SpaceRules
from alpa_dejavu.problem import Layer, MeshConfig, Model, Operator, Operators, SearchSpace, Submesh, Tensor
from alpa_dejavu.slicing import slicer

NOTHING = Operators.of([])


def product(flop):
    return Operators.of([Operator("dot", "dot_general", (), (), "float32", float(flop))])


def chain(num_layers=4, flop=1e9, parameter_bytes=1000.0, activation_bytes=100.0, training=True, exchanged=(400.0,)):
    """Layers in a row: each has one parameter, takes the result of the one before, and keeps it for its backward."""
    last = 2 * num_layers - 1
    layers, tensors = [], []
    for n in range(num_layers):
        backward = product(2 * flop) if training else NOTHING
        layers.append(Layer(f"layer {n}", product(flop), backward, NOTHING, exchanged_bytes=exchanged))
        here = (n, last - n) if training else (n,)
        tensors.append(Tensor(parameter_bytes, "parameter", -1, here))
        if n:
            tensors.append(Tensor(activation_bytes, "activation", n - 1, here))
        if training:
            tensors.append(Tensor(parameter_bytes, "gradient", -1, (n,)))
            tensors.append(Tensor(2 * parameter_bytes, "optimizer", -1, (n,)))
        if training and n:
            tensors.append(Tensor(activation_bytes, "activation", last - n, (last - n + 1,)))
    tensors.append(Tensor(activation_bytes, "input", -1, (0, last) if training else (0,)))
    return Model(tuple(layers), tuple(tensors), training)


def space(hosts=1, devices=4, imbalance=float("inf")):
    """Every power of two of devices in a host, then whole hosts; every split into data and tensor parallelism."""
    shapes = [(1, 2**n) for n in range(devices.bit_length())] + [(n, devices) for n in range(2, hosts + 1)]
    rows = []
    for shape in shapes:
        size = shape[0] * shape[1]
        splits = [along for along in (1, 2, 4, 8) if size % along == 0]
        rows.append([MeshConfig((size // along, along), size // along, along) for along in splits])
    width = max(map(len, rows))
    configs = tuple(tuple(row + [None] * (width - len(row))) for row in rows)
    return SearchSpace(tuple(Submesh(*shape) for shape in shapes), configs, imbalance)


def task_of(
    model,
    cluster,
    space,
    run,
    *,
    slicing="dynamic",
    latency="analytic",
    communication="alpha-beta",
    margin=UNMEASURED,
    chooser=None,
    **more,
):
    """A task of given layers in the micro-batches of a run.

    `space`: a search space that may be on any hosts; or samples of a micro-batch, for the space by the rules.
    """
    ruled = isinstance(space, int)
    fields = {
        "source": GivenModel(model, space if ruled else 1, name=""),
        "prices": Prices(cluster, CostModels.named(latency, communication)),
        "batch": space * run.num_micro_batches if ruled else None,
        "layers": (model.num_layers,),
        "micro_batches": (run.num_micro_batches,),
        "chooser": chooser or Searched(),
        "space": SpaceRules(remat=("none",), zero=(0,)) if ruled else GivenSpace(space),
        "schedule": run.schedule,
        "slicer": slicer(slicing),
        "margin": margin,
    }
    return PlanningTask(**(fields | more))


def planned(model, cluster, space, run, **how):
    """The plan of `task_of` the same arguments, with all that it was made from."""
    return plan(task_of(model, cluster, space, run, **how))


def costs_of(model, cluster, space, run, latency="analytic", communication="alpha-beta", margin=COUNTED):
    """The costs of all stages of a model, from which candidates are sliced."""
    table = cost_table(model, cluster, space, run, CostModels.named(latency, communication), margin)
    return Costs(model, cluster, space, run, table)


def best_and_neighbours(costs, search):
    """The best slicing, and those with half as many stages, one less and one more, all simulated."""
    best = costs.sliced(search)
    length = len(best.stages)
    others = (costs.sliced(search, count) for count in sorted({length // 2, length - 1, length + 1} - {0, length}))
    return [best, *(one for one in others if one is not None)]
