"""Sums that stay in parts: what is cut with them, and where they are put together again."""

from alpa_dejavu.sharding import LogicalMesh, ProgramOperator, ShardingOptions, solve
from operators import dot, elementwise, output, parameter, training_step

MESH = LogicalMesh((4, 1))
BY_ROWS = ((0,), ())
WHOLE = ((), ())


def _solve(operators, force=0, **options):
    options = ShardingOptions(prefer_reduce_scatter=True, force_batch_dim_to_mesh_dim=force, **options)
    return solve(operators, MESH, options)


def test_the_optimizers_state_is_cut_and_the_new_weight_gathered():
    solution = _solve(training_step(4096, 8))
    assert {i: solution.outputs[i] for i in (1, 2, 4, 5, 6, 7)} == {
        1: WHOLE,
        2: BY_ROWS,
        4: BY_ROWS,
        5: BY_ROWS,
        6: BY_ROWS,
        7: BY_ROWS,
    }
    assert solution.recut.gather == (8,)


def _accumulating(batch, hidden):
    """As `training_step`, but the gradient is first added to an accumulator, behind a marker."""
    shape = (hidden, hidden)
    step = training_step(batch, hidden)
    head, tail = step[:5], step[5:9]
    moved = {i: i + 3 for i in range(5, 9)} | {4: 7}
    middle = [parameter(*shape), elementwise(5, 4, shape=shape), ProgramOperator("identity", (6,), shape, 4)]
    tail = [ProgramOperator(o.kind, tuple(moved.get(i, i) for i in o.operands), o.shape, 4, name=o.name) for o in tail]
    return [*head, *middle, *tail, output(9, *shape, alias=2), output(11, *shape, alias=1)]


def test_an_accumulated_gradient_keeps_its_all_reduce():
    cut = _solve(_accumulating(4096, 8))
    kept = _solve(_accumulating(4096, 8), reduce_scatter_grad_acc_friendly=True)
    assert cut.outputs[4] == cut.outputs[5] == BY_ROWS
    assert kept.outputs[4] == kept.outputs[5] == WHOLE
    assert kept.outputs[2] == BY_ROWS


def test_without_the_option_all_stays_whole():
    solution = solve(training_step(4096, 8), MESH, ShardingOptions(force_batch_dim_to_mesh_dim=0))
    assert not solution.recut.specs
    assert solution.outputs[2] == WHOLE


def test_the_parameter_is_cut_too_when_asked_for():
    solution = _solve(training_step(4096, 8), reduce_scatter_aggressive_partition=True)
    assert solution.outputs[1] == BY_ROWS
    assert solution.recut.gather == ()
    assert solution.recut.lone_readers == ((1, 3),)


def test_sizes_that_do_not_come_out_even_stay_whole():
    assert not _solve(training_step(4096, 6)).recut.specs


def test_activations_are_not_cut():
    columns, rows = parameter(512, 512, pinned=((), (0,))), parameter(512, 512, pinned=((0,), ()))
    operators = [parameter(8, 512), columns, dot(0, 1, 8, 512), elementwise(2, shape=(8, 512), name="tanh"), rows,
                 dot(3, 4, 8, 512), output(5, 8, 512)]
    solution = _solve(operators, force=-1)
    assert solution.strategies[5].all_reduce == (0,)
    assert not solution.recut.specs
