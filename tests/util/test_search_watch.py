"""How far a search is, and that it ends with the best that it has when somebody says so."""

import pytest

from alpa_dejavu._util.search_watch import SearchWatch, candidate_priced, is_stopped, watched


def test_the_remaining_seconds_are_those_of_the_candidates_left():
    now = [0.0]
    watch = SearchWatch(lambda: now[0])
    candidates = [(5.0, True), (0.3, False), (0.2, False), (6.0, True), (0.2, False), (4.0, True), (0.3, False)]
    now[0] = 20.0  # until then the model is traced
    watch.begin()
    for n, (own_s, anew) in enumerate(candidates):
        assert (watch.remaining_s() is None) == (n < 2)
        now[0] += own_s
        later = candidates[n + 1 :]
        count = sum(of_it for _, of_it in later)
        watch.price(n > 0, (len(later) - count, count), anew)
        if n and later:
            left_s = sum(seconds for seconds, _ in later)
            assert left_s / 2 <= watch.remaining_s() <= 2 * left_s
    assert watch.remaining_s() is None
    assert (watch.priced, watch.left, watch.has_plan) == (7, (0, 0), True)


def test_what_is_left_gets_less_while_a_candidate_is_priced_and_never_negative():
    now = [0.0]
    watch = SearchWatch(lambda: now[0])
    for _ in range(3):
        now[0] += 2.0
        watch.price(True, (4, 0), False)
    assert watch.remaining_s() == pytest.approx(8.0)
    now[0] += 3.0
    assert watch.remaining_s() == pytest.approx(5.0)
    now[0] += 30.0
    assert watch.remaining_s() == 0.0


def test_a_search_within_the_block_is_told_to_stop():
    watch = SearchWatch()
    with watched(watch):
        candidate_priced(False, (2, 0), False)
        assert not watch.has_plan
        candidate_priced(True, (1, 0), False)
        assert watch.has_plan
        assert not is_stopped()
        watch.is_stopped = True
        assert is_stopped()
    assert not is_stopped()
