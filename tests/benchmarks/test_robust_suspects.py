"""The table of who is named a suspect."""

import _robust_suspects
from _robust_suspects import ATTACKED, suspects_table
from harness import Results


def test_wrong_ones_are_counted_with_their_median_step_and_right_ones_that_are_named(monkeypatch):
    def runs(name, wrong, seeds):
        named = {"none": [None] * 10, "zeros": [4, None, 9, *[None] * 7]}.get(name, [6] * wrong + [None] * (10 - wrong))
        return {"seeds": [{"gradients": named, "descents": [None] * 10, "loss": 0.5} for _ in seeds]}

    monkeypatch.setattr(_robust_suspects, "_runs", runs)
    table = suspects_table(Results(None), [0, 1])
    rows = {row[0]: row[1:] for row in table.rows}
    assert list(rows) == list(ATTACKED)
    assert rows["none"] == ("", "", "", "", "0.500")
    assert rows["flipped signs"] == ("2 of 2, 6", "0 of 2", "6 of 6, 6", "0 of 6", "0.500")
    assert rows["zeros"] == ("2 of 2, 4, 2 right", "0 of 2", "4 of 6, 6", "0 of 6", "0.500")
