"""What benchmarks share: results that are gone on from, tables and figures, pages, and processes beside this one."""

import ast
import json
import re
from pathlib import Path

import pytest

import _conformance
import page
from harness import Figure, Remote, Results, Table, answer_all, at_least, options, wrong_input_told

ROWS = [{"name": "a", "deep": {"s": 1.5}, "fits": True}, {"name": "b", "error": "it fails\nin a long story"}]
COLUMNS = {"name": "{name}", "seconds": "{deep[s]:.2f} s", "fits": lambda row: row["fits"]}


class Counter:
    """Counts in another process."""

    def __init__(self):
        self.count = 0

    def more(self, number):
        self.count += number
        return self.count

    def fail(self):
        raise ValueError("as it should")


def serve(connection):
    answer_all(connection, Counter())


def test_cells_are_templates_or_functions_and_what_is_missing_is_empty():
    table = Table.of(ROWS, COLUMNS, "title")
    assert table.rows == (("a", "1.50 s", "yes"), ("b", "it fails", ""))
    text = Table(("a | b",), (("c",),)).markdown()
    assert text.splitlines() == ["| a \\| b |", "| --- |", "| c |"]
    assert table.markdown().startswith("**title**\n\n| name |")


def test_a_wide_table_is_several_or_a_list_where_the_first_column_does_not_tell_rows_apart():
    columns, rows = ("of", "aim", ""), (("a", "x" * 9, "held"), ("b", "y", ""))
    assert Table(columns, rows).markdown(width=20).count("| of |") == 2
    alike = Table(columns, (rows[0], ("a", "y", ""))).markdown(width=20)
    assert alike.splitlines() == ["- a; aim: xxxxxxxxx;", "  held", "- a; aim: y"]


def test_results_are_gone_on_from_by_the_same_settings_alone(tmp_path):
    file, asked = tmp_path / "folder" / "out.json", []

    def computed():
        asked.append(1)
        return {"s": 1.0}

    for _ in range(2):
        results = Results(file, {"seed": 1, "sizes": (1, 2)})
        assert results.known("rows", "it", computed)["s"] == 1.0
    assert asked == [1]
    with pytest.raises(SystemExit, match="name another file"):
        Results(file, {"seed": 2})
    assert "rows" not in Results(file, settings={"seed": 1})


def test_a_missed_figure_is_an_exit_status(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["/somewhere/benchmarks/it.py", "--seed", "1"])
    held, missed = (Figure("it", "all", "1 s", "2 s", held) for held in (True, False))
    file = tmp_path / "out.json"
    assert Results(None).shown(figures=[held]) == 0
    assert Results(file, rows=ROWS).shown(Table.of(ROWS, COLUMNS), "a line", figures=[held, missed]) == 1
    assert "1 of 2 figures are held" in capsys.readouterr().out
    kept = json.loads(file.read_text(encoding="utf-8"))
    assert [figure["held"] for figure in kept["figures"]] == [True, False]
    assert kept["run"]["command"] == "python benchmarks/it.py --seed 1"


@pytest.fixture
def pages(tmp_path, monkeypatch):
    """Writes a page with a mark, fills it in, and returns what it then says."""
    monkeypatch.setattr("sys.argv", ["benchmarks/it.py", "--json", "x.json", "--rules", *["a rule"] * 12])
    results = tmp_path / "docs" / "results"
    results.mkdir(parents=True)
    numbers = [{"n": n, "s": f"{n * n} ms", "share": f"{n}%"} for n in range(12)]
    columns = {"n": "{n}", "seconds": "{s}", "share": "{share}"}
    held = Figure("it", "all", "1 s", "2.5 s", True)
    Results(results / "it.json").shown(
        "3 of 4 % held", Table.of(numbers, columns), Table.of(numbers[:3], columns, "short"), figures=[held]
    )
    (tmp_path / "README.md").write_text("A page.\n", encoding="utf-8")
    page_file = tmp_path / "docs" / "page.md"

    def filled(text, **declared):
        (results / "figures.json").write_text(json.dumps(declared), encoding="utf-8")
        page_file.write_text(text, encoding="utf-8")
        status = page.main(["--root", str(tmp_path)])
        assert page.main(["--root", str(tmp_path), "--check"]) == status
        return page_file.read_text(encoding="utf-8") if status == 0 else status

    return filled


def test_a_page_has_the_command_of_a_run_and_its_date(pages):
    rules = " ".join(["'a rule'"] * 9)
    text = pages("before\n<!-- run it -->\nold\n<!--end-->\nafter\n")
    assert text.startswith(f"before\n<!-- run it -->\n```\npython benchmarks/it.py --rules {rules} \\\n    'a rule' ")
    assert re.search(r"\[All figures of this run\]\(results/it\.json\), \d+ \w+ \d{4}\.\n<!--end-->\nafter\n$", text)


def test_a_page_shows_ten_rows_and_links_the_file_of_all(pages, tmp_path):
    text = pages('<!-- table it 1 without "share" -->\n<!--end-->\n')
    assert text.endswith("| 11 | 121 ms |\n\nThese are 10 of [12 rows](results/it-2.csv).\n<!--end-->\n")
    assert text.count("\n| ") == 2 + 10
    sheet = tmp_path / "docs" / "results" / "it-2.csv"
    rows = sheet.read_text(encoding="utf-8").splitlines()
    assert (rows[0], len(rows), rows[-1]) == ("n,seconds,share", 13, "11,121 ms,11%")
    text = pages('<!-- table it 1 rows 1\n    "1?, *" -->\n<!--end-->\n')
    assert [line.split()[1] for line in text.splitlines() if line.startswith("| 1")] == ["1", "10", "11"]
    assert pages("<!-- table it short -->\n<!--end-->\n").count("\n| ") == 2 + 3
    assert not sheet.exists()
    assert "**1 of 1 figures are held**" in pages("<!-- table it figures -->\n<!--end-->\n")


@pytest.mark.parametrize(
    ("declared", "shown"),
    [
        ({"row": "4", "column": "seconds"}, "16 ms"),
        ({"row": "4", "column": "share"}, "4 %"),
        ({"row": "4", "column": "seconds", "as": "{:.3f} s"}, "0.016 s"),
        ({"table": "figures", "row": "it, all", "column": "measured"}, "2.5 s"),
        ({"find": r"(\d) of 4"}, "3"),
        ({"column": "share", "median": True, "as": "{:.1f} %"}, "5.5 %"),
        ({"column": "share", "find": "1.%", "count": True}, "2"),
        ({"row": "10", "column": "seconds", "over": "other", "as": "{:.2f} times"}, "4.00 times"),
    ],
)
def test_a_figure_is_the_one_of_its_run(pages, declared, shown):
    other = {"run": "it", "row": "5", "column": "seconds"}
    text = pages("It took 9.9 s<!--=it--> then.\n", it={"run": "it", **declared}, other=other)
    assert text == f"It took {shown}<!--=it--> then.\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('<!-- table it "no title" -->\n<!--end-->', "no table is titled 'no title'"),
        ("<!-- table it 1 rows 99 -->\n<!--end-->", "no rows ['99']"),
        ("<!-- table gone 1 -->\n<!--end-->", "gone.json"),
        ("1<!--=it-->", "is 12 times in it.json, but must be once"),
        ("1<!--=gone-->", "the figure 'gone' is not in "),
    ],
)
def test_a_mark_of_nothing_is_told(pages, capsys, text, told):
    assert pages(text, it={"run": "it", "column": "n"}) == 2
    assert told in capsys.readouterr().err


def test_options_say_what_is_too_small(capsys):
    parser = options("it measures")
    parser.add_argument("--rounds", type=at_least(2))
    assert parser.parse_args(["--rounds", "2"]).rounds == 2
    with pytest.raises(SystemExit):
        parser.parse_args(["--rounds", "1"])
    assert "it is '1'; give a whole number of 2 or more" in capsys.readouterr().err


def test_a_wrong_input_is_told(capsys):
    @wrong_input_told
    def main(_):
        raise FileNotFoundError("there is none")

    assert main() == 2
    assert capsys.readouterr().err == "error: there is none\n"


def test_an_object_in_another_process_answers_and_fails_there():
    with Remote.started(serve, name="counter", patience_s=60.0) as counter:
        counter.send("more", 1)
        assert counter.answer() == 1
        assert counter("more", 2) == 3
        with pytest.raises(RuntimeError, match="as it should"):
            counter("fail")


@pytest.mark.parametrize("script", sorted(Path(page.__file__).parent.glob("*.py")), ids=lambda path: path.name)
def test_a_script_runs_when_all_of_it_is_defined(script):
    body = ast.parse(script.read_text(encoding="utf-8")).body
    starts = [place for place, node in enumerate(body) if ast.unparse(node).startswith("if __name__ ==")]
    assert starts in ([], [len(body) - 1])


def test_a_page_of_alpas_tests_keeps_what_was_written_by_hand():
    folders, files = _conformance.tables([_conformance.FileResult("util/test_a.py", 1, 0, 0)])
    first = _conformance.page("Run today.", folders, files)
    by_hand = "\n## On a newer jax\n\nIt stops.\n"
    assert _conformance.page("Run today.", folders, files, first + by_hand) == first + by_hand
