"""Tables that fit a width: no figure is cut, and every cell stands in one of the blocks."""

import re

from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from alpa_dejavu._util.columns import Head, all_blocks, drawn, fitting_block, importance, wrapped

HEADS = [Head("stage", "name"), Head("hosts", "name"), Head("compute"), Head("once a step"), Head("why", "text")]
ROWS = [
    ["0", "p3.16xlarge-7", "141.8 ms", "42.97 ms", "0.3 % slower: +259.6 ms idle, +32.92 ms computing"],
    ["1-14", "p3.16xlarge-[0-7]", "126.8 ms", "37.24 ms", "it has the least memory: 10.29 to 11.10 GiB"],
]


def text(width, heads=HEADS, rows=ROWS, leave=()):
    head, body = drawn(heads, rows, fitting_block(heads, rows, width, importance(heads, leave)))
    return [*head, *body]


def test_what_fits_stands_in_one_line_for_each_row():
    assert text(200) == [
        "stage  hosts               compute  once a step  why",
        "0      p3.16xlarge-7      141.8 ms     42.97 ms  0.3 % slower: +259.6 ms idle, +32.92 ms computing",
        "1-14   p3.16xlarge-[0-7]  126.8 ms     37.24 ms  it has the least memory: 10.29 to 11.10 GiB",
    ]


def test_texts_become_lines_before_a_column_is_left_out():
    assert text(70) == [
        "stage  hosts               compute    once a  why",
        "                                        step",
        "0      p3.16xlarge-7      141.8 ms  42.97 ms  0.3 % slower: +259.6 ms",
        "                                              idle, +32.92 ms",
        "                                              computing",
        "1-14   p3.16xlarge-[0-7]  126.8 ms  37.24 ms  it has the least memory:",
        "                                              10.29 to 11.10 GiB",
    ]


def test_a_number_stays_with_its_unit():
    assert wrapped("it takes 12.5 ms", 13) == ["it takes", "12.5 ms"]
    assert wrapped("2 stages", 4) == ["2", "stag", "es"]
    assert wrapped("", 4) == [""]
    assert wrapped("  indented and long", 12) == ["  indented", "and long"]


figures = st.builds("{} {}".format, st.integers(0, 10**6), st.sampled_from(["ms", "GiB", "%", "TFLOP/s"]))
names = st.text("ab-", min_size=1, max_size=12)


@settings(deadline=None)
@given(st.lists(st.tuples(names, figures, figures, figures), min_size=1, max_size=4), st.integers(1, 60))
def test_no_figure_is_cut_and_blocks_have_every_cell(rows, width):
    heads = [Head("name", "name"), Head("first figure"), Head("second"), Head("third")]
    shown = fitting_block(heads, rows, width, importance(heads))
    body = "\n".join(drawn(heads, rows, shown)[1])
    assert all(row[n] in body for row in rows for n in shown.columns)
    blocks = all_blocks(heads, rows, width)
    assert sorted({n for block in blocks for n in block.columns}) == [0, 1, 2, 3]
    for block in blocks:
        head, lines = drawn(heads, rows, block)
        fits = len(block.columns) > 2
        assert not fits or max(map(cell_len, [*head, *lines])) <= width
        assert all(re.search(re.escape(row[n]), "\n".join(lines)) for row in rows for n in block.columns)
