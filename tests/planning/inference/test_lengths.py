"""Lengths of requests: means and percentiles by hand, and files that aren't as they must be."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpa_dejavu.planning.inference import Lengths


def test_means_and_percentiles_of_a_file_are_weighted(tmp_path):
    path = tmp_path / "lengths.csv"
    path.write_text("prompt,output,weight\n100,10,94\n1000,200,6\n")
    lengths = Lengths.read(path)
    assert lengths.prompt == round(100 * 0.94 + 1000 * 0.06)
    assert lengths.output == round(10 * 0.94 + 200 * 0.06)
    assert (lengths.high_prompt, lengths.high_total) == (1000, 1200)
    assert lengths.context == pytest.approx((94 * 10 * 105 + 6 * 200 * 1100) / (94 * 10 + 6 * 200))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the columns are none; a file of lengths is CSV"),
        ("prompt\n3\n", "the columns are prompt; "),
        ("prompt,output,user\n1,2,3\n", "the columns are prompt, output, user"),
        ("prompt,prompt,output\n1,2,3\n", "the columns are prompt, prompt, output"),
        ("prompt,output\n", "line 1: requests is empty"),
        ("prompt,output\n8,8\n8,x\n", "line 3: output is 'x', but must be a whole number"),
        ("prompt,output\n8,0\n", "line 2: output is 0 tokens, but must be from 1"),
        ("prompt,output\n8\n", "line 2: a line has too few or too many cells"),
        ("prompt,output\n8,8,8\n", "line 2: a line has too few or too many cells"),
        ("prompt,output\n8,99999999999999999999\n", "line 2: output is '9999"),
        ("prompt,output\n8,8\n8," + "9" * 131_073, "line 3: it is no CSV (field larger than field limit"),
        ("prompt,output,weight\n8,8,-1\n", "line 2: weight is -1.0, but must be a finite number above 0"),
        ("prompt,output,weight\n8,8,some\n", "line 2: weight is 'some', but must be a number above 0"),
    ],
)
def test_what_is_wrong_in_a_file_is_told_with_its_line(tmp_path, text, said):
    path = tmp_path / "lengths.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"lengths\.csv") as caught:
        Lengths.read(path)
    assert said in str(caught.value)


def test_a_file_that_is_not_there_is_told(tmp_path):
    with pytest.raises(ValueError, match=r"none.csv can't be read"):
        Lengths.read(tmp_path / "none.csv")


@given(st.lists(st.tuples(st.integers(1, 9000), st.integers(1, 9000), st.floats(1e-3, 1e3)), min_size=1, max_size=9))
def test_a_percentile_is_a_length_and_covers_so_many(requests):
    lengths = Lengths(tuple(requests))
    assert lengths.high_prompt in {prompt for prompt, *_ in requests}
    covered = sum(weight for prompt, _, weight in requests if prompt <= lengths.high_prompt)
    assert covered >= 0.95 * sum(weight for *_, weight in requests) * (1 - 1e-9)
    assert min(p for p, *_ in requests) <= lengths.context <= max(p + o / 2 for p, o, _ in requests) * (1 + 1e-9)
