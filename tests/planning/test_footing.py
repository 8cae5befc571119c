"""What a plan's seconds rest on: all of them are told of, and what was never measured is named."""
from alpa_dejavu.planning import plan_model
from alpa_dejavu.planning.given.footing import footings
from jax_models import trained


def of_plan(planned):
    return footings(planned.table, planned.space, planned.choices, planned.run)


def test_what_is_measured_of_this_machine_is_called_so():
    planned = plan_model(trained, "local-cpu", batch=64, micro_batches=4, layers=2)
    assert {one.rests_on for one in of_plan(planned)} == {"measured"}
