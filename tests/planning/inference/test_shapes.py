"""Shapes of serving: replicas fill the hosts, and a stage has its devices on one host."""
from alpa_dejavu.planning.inference._decoder import ServingShape


def test_stages_go_on_to_the_next_host_where_one_is_full():
    shape = ServingShape(4, 4, 1, 2)
    assert [shape.host_of(stage) for stage in range(4)] == [0, 0, 1, 1]
