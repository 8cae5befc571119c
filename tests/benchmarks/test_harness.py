"""What benchmarks share: results that are gone on from, tables and figures, pages, and processes beside this one."""

import json

import pytest

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


def test_a_missed_figure_is_an_exit_status_and_the_page_is_written_from_the_file(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["/somewhere/benchmarks/it.py", "--seed", "1", "--rules", *["a rule"] * 12])
    held, missed = (Figure("it", "all", "1 s", "2 s", held) for held in (True, False))
    file, into = tmp_path / "out.json", tmp_path / "page.md"
    assert Results(None).shown(figures=[held]) == 0
    assert Results(file, rows=ROWS).shown(Table.of(ROWS, COLUMNS), "a line", figures=[held, missed]) == 1
    assert "1 of 2 figures are held" in capsys.readouterr().out
    assert [figure["held"] for figure in json.loads(file.read_text(encoding="utf-8"))["figures"]] == [True, False]
    assert page.main([str(file)]) == 0
    said = capsys.readouterr().out
    rules = " ".join(["'a rule'"] * 8)
    assert f"python benchmarks/it.py --seed 1 --rules {rules} \\\n    'a rule' " in said
    assert "| b | it fails |  |" in said
    assert "**Date:** " in said
    into.write_text("before\n<!-- it: begin -->\nold\n<!-- it: end -->\nafter\n", encoding="utf-8")
    assert page.main([str(file), "--into", str(into)]) == 0
    written = into.read_text(encoding="utf-8")
    assert written.startswith("before\n<!-- it: begin -->\n```\n")
    assert written.endswith("<!-- it: end -->\nafter\n")
    assert "old" not in written
    into.write_text("<!-- other: begin -->\n<!-- other: end -->\n", encoding="utf-8")
    assert page.main([str(file), "--into", str(into), "--mark", "other"]) == 0
    assert "| b | it fails |  |" in into.read_text(encoding="utf-8")
    assert page.main([str(file), "--only", "no title"]) == 2
    assert "no table is titled 'no title'" in capsys.readouterr().err
    assert page.main([str(file), "--only", "1 of 2 figures are held"]) == 0
    assert "| b | it fails |  |" not in capsys.readouterr().out
    into.write_text("nothing", encoding="utf-8")
    assert page.main([str(file), "--into", str(into)]) == 2


def test_a_page_shows_ten_rows_and_links_the_file_of_all(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["benchmarks/it.py"])
    (tmp_path / "results").mkdir()
    file, into = tmp_path / "results" / "out.json", tmp_path / "page.md"
    numbers = [{"n": n, "square": n * n} for n in range(12)]
    columns = {"n": "{n}", "square": "{square}"}
    Results(file).shown("a line", Table.of(numbers, columns), Table.of(numbers[:10], columns, "short"))
    into.write_text("<!-- it: begin -->\n<!-- it: end -->\n", encoding="utf-8")
    assert page.main([str(file), "--into", str(into), "--only", ""]) == 0
    written = into.read_text(encoding="utf-8")
    assert written.endswith("| 11 | 121 |\n\nThese are 10 of [12 rows](results/out-2.csv).\n<!-- it: end -->\n")
    assert written.count("\n| ") == 2 + 10
    assert "**Date:**" not in written
    rows = (tmp_path / "results" / "out-2.csv").read_text(encoding="utf-8").splitlines()
    assert (rows[0], len(rows), rows[-1]) == ("n,square", 13, "11,121")
    assert page.main([str(file), "--into", str(into), "--only", "short"]) == 0
    assert "rows](" not in into.read_text(encoding="utf-8")
    assert len(list((tmp_path / "results").glob("*.csv"))) == 1


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
