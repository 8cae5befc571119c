"""A chain whose stages are measured by made-up devices: seconds and peaks off by known factors."""

from alpa_dejavu.costs.communication import AlphaBeta
from alpa_dejavu.costs.latency import AnalyticLatency
from alpa_dejavu.costs.measured_memory import StageMeasurement
from alpa_dejavu.costs.memory_margin import COUNTED
from alpa_dejavu.costs.runtime import CostModels
from alpa_dejavu.costs.table import cost_table
from alpa_dejavu.planning import Measured
from alpa_dejavu.problem import Run, StageChoice
from alpa_dejavu.testing import example_cluster
from models import chain, planned, space

SPACE, RUN = space(), Run(8)
MODEL = chain(6, flop=1e9, activation_bytes=1e4, parameter_bytes=1e8, exchanged=(2e5,) * 4)
NARROW = 8.4e8
"""Two layers' bytes, and a little more."""
ROOMY = example_cluster(1, memory_bytes=2.0**34)
STAGE = StageChoice(0, 2, 1, 0)


def table_of(cluster=ROOMY, run=RUN, margin=COUNTED, model=MODEL):
    return cost_table(model, cluster, SPACE, run, CostModels(AnalyticLatency(), AlphaBeta()), margin)


def counted_bytes(table, stage, in_flight=1):
    return table.memory[stage.submesh][stage.config].peak(in_flight)[stage.first, stage.last]


def decided(measure, cluster=ROOMY, margin=COUNTED):
    chooser = Measured(measure, 60.0, seconds=lambda: 0.0)
    return planned(MODEL, cluster, SPACE, RUN, chooser=chooser, margin=margin).plan


def measuring(factor, cluster=ROOMY, collectives=1.0):
    """Measures made-up stages: their seconds with collectives off by a factor, their peaks as many times the count."""
    table = table_of(cluster)
    seconds = table.compute_s + collectives * table.collective_s
    asked = []

    def measure(stage):
        asked.append(stage)
        entry = stage.first, stage.last, stage.submesh, stage.config
        times = factor(len(asked)) if callable(factor) else factor
        return StageMeasurement(float(seconds[entry]), times * float(counted_bytes(table, stage)))

    return measure, asked
