"""The figures of the playground's scale are held or missed by what was measured."""

import playground_scale


def rows(seconds, num_bytes, dearer):
    one = {"wall_s": seconds, "round_s": 1e-4, "memory_bytes": num_bytes}
    fewer = {**one, "round_s": 1e-4 / dearer}
    return [one, one, fewer, fewer]


def test_figures_are_held_up_to_their_aims():
    assert all(figure.held for figure in playground_scale._figures(rows(300.0, 2**32, 1.5)))
    slow = playground_scale._figures(rows(301.0, 2**32, 1.4))
    assert [figure.held for figure in slow] == [False, True, True, True]
    missed = playground_scale._figures(rows(301.0, 2**32 + 1, 1.6))
    assert not any(figure.held for figure in missed)


def test_a_small_run_says_what_it_took():
    row = playground_scale._gossip("small", False, 12, 3)
    assert row["workers"] == 12
    assert row["round_s"] * 12 * 3 <= 60
    assert 0 < row["virtual_s"] < 1
