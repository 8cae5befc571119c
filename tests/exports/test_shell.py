"""Shell scripts are read as bash reads them; what bash decides as it runs is marked with its line."""

import re
import shutil
import subprocess
import sys

import pytest

from alpa_dejavu.exports._command_line import command_line_of
from alpa_dejavu.exports._shell import Script


def arguments(tmp_path, text):
    path = tmp_path / "run.sh"
    path.write_text(text)
    return command_line_of(path, ("num-layers",)).arguments


KNOWN = [
    "A=\"--x 1 --y 2\"\npython t.py --num-layers 2 $A",
    "A=1\v2\npython t.py --num-layers 2 --x $A --y \f\u00a0\u2003",
    "A='--x 1\n --y 2'\npython t.py --num-layers 2 $A",
    "A=(--x 'a b' \"--y 2\")\npython t.py --num-layers 2 ${A[@]}",
    "A=(--x 'a b' \"--y 2\")\npython t.py --num-layers 2 \"${A[@]}\"",
    "A=(--x 1)\nA+=(--y 2)\npython t.py --num-layers 2 ${A[*]} # --z 3",
    "A=\"--x 1\"\nA+=\" --y 2\"\npython t.py --num-layers 2 $A",
    "A=--x; B=${A}y\npython t.py --num-layers 2 $B=3 ${C:-4} ${A:-5} ${C-6} ${A:+7} ${C:+8}",
    ": ${N:=3}\npython t.py --num-layers $N",
    "echo \"it's\nopen\" 'and\nmore'\nawk '{print $1}' x\npython t.py --num-layers 2 --x",
    "cat <<END\nan apostrophe isn't one\n--num-layers 9\nEND\npython t.py --num-layers 2 --x",
    "cat <<< 'a b'\npython t.py --num-layers 2 --x",
    "cat <<-'END'\n\tit isn't\n\tEND\npython t.py --num-layers 2 --x",
    "python t.py --num-layers 2 \\\n  --x 1 \\\n  --y '([0]*1+[1]*3)' > log 2>&1",
    "X=1 python t.py --num-layers 2 --x \"a\\\"b\" c\\ d --y 'e\"f' | tee log",
    "set -euo pipefail\nexport A=1 B='2 3'\npython t.py --num-layers $A --x \"$B\" \"$@\"",
    "if [ -d x ]; then\n  mkdir y\nelse\n  echo \"--num-layers 9\"\nfi\npython t.py --num-layers 2",
    "run() {\n  N=3\n}\nM=2\npython t.py --num-layers $M",
    "case $X in\n  a|b) N=1;;\n  *) echo no;;\nesac\nfor i in 1 2; do echo $i; done\npython t.py --num-layers 2",
    "CMD=\"python t.py --num-layers 2 --x 1\"\neval $CMD",
    "bash -c 'python t.py --num-layers 2 --x 1'",
    "B=()\nA=(a 'b c')\nA=d\nA+=(e)\npython t.py --num-layers 2 \"${A[@]}\" '' \"\" \"${B[@]}\" \"$B\"\n",
    "Y=()\nA=${Z:-\"p q\"}\nB=x\"${Y[*]}\"\npython t.py --num-layers 2 ${Z:-\"p q\" r} $A ${Z:-'s t'}u $B",
    "D=\nD+=(a)\nC=()\npython t.py --num-layers 2 ${D:-d e} ${D[@]:-f} \"${C[@]}\" ${C:-g}",
    "[[ -z \"$X\" ]] && echo none\ncd / && python t.py --num-layers 2",
]  # fmt: skip


@pytest.mark.parametrize("text", KNOWN)
def test_words_are_those_that_bash_makes(tmp_path, text):
    if shutil.which("bash") is None:
        pytest.skip("there is no bash")
    found = []
    for one in arguments(tmp_path, text):
        assert one.unknown is None
        found += [f"--{one.name}={one.value}", *one.values[1:]] if one.joined else [f"--{one.name}", *one.values]
    shown = 'python() { shift; for each in "$@"; do printf "<%s>" "$each" >&3; done; }; export -f python; '
    ran = subprocess.run(
        ["bash", "-c", f"{{ {shown}\n{text}\n}} 3>&1 >/dev/null 2>/dev/null"], capture_output=True, text=True,
        cwd=tmp_path,
    )  # fmt: skip
    assert "".join(f"<{word}>" for word in found) == ran.stdout


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("if [ $X = 1 ]; then\nN=2\nfi\npython t.py --num-layers $N", 1, r"a branch \(if\)"),
        ("case $X in\n1) N=2;;\nesac\npython t.py --num-layers $N", 1, r"a branch \(case\)"),
        ("\nfor N in 1 2; do\necho $N\ndone\npython t.py --num-layers $N", 2, "a loop sets it"),
        ("N=2\nwhile true; do\nN=3\ndone\npython t.py --num-layers $N", 2, r"a loop \(while\)"),
        ("f() {\nN=3\n}\npython t.py --num-layers $N", 1, "a function"),
        ("N=1\n[ -z $X ] && N=2\npython t.py --num-layers $N", 2, "on a condition"),
        ("N=`nproc`\npython t.py --num-layers $N", 1, "the output of a command"),
        ("N=$(nproc)\npython t.py --num-layers $N", 1, "the output of a command"),
        ("M=2\nN=$((M * 2))\npython t.py --num-layers $N", 2, "reckoned"),
        ("python t.py --num-layers $N", 1, "isn't set in the script"),
        ("python t.py --num-layers $1", 1, "comes from outside"),
        ("M=24x\npython t.py --num-layers ${M%x}", 2, "a substitution"),
        ("N=2\nsource other.sh\npython t.py --num-layers $N", 2, "may set it anew"),
        ("read N\npython t.py --num-layers $N", 1, "read sets it"),
        ("A=(--num-layers 2)\nif true; then\nA+=(--x)\nfi\npython t.py ${A[@]}", 2, r"a branch \(if\)"),
        ("A='--num-layers 2'\nif true; then\nA=\"$A --x\"\nfi\npython t.py $A", 2, r"a branch \(if\)"),
        ('A=(--num-layers 2)\nif true; then\nA=("${A[@]}" --x)\nfi\npython t.py ${A[@]}', 2, r"a branch \(if\)"),
        ("python t.py --num-layers {1,2}", 1, "braces"),
    ],
)
def test_what_bash_decides_as_it_runs_is_unknown_with_its_line(tmp_path, text, line, said):
    (one,) = (one for one in arguments(tmp_path, text) if one.unknown)
    assert one.unknown.line == line
    assert re.search(said, one.unknown.reason)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "if true; then\npython t.py --num-layers 2\nfi",
            r"line 1: whether line 2 trains isn't known: a branch \(if\)",
        ),
        ("for i in 1 2; do python t.py --num-layers $i; done", "line 1: whether line 1 trains isn't known: a loop"),
        ("python t.py --num-layers 2\npython t.py --num-layers 3", "line 2: it trains again, after line 1; leave one"),
        ("A=()\nif true; then A=(--num-layers 2); fi\npython t.py ${A[@]}", "line 2: what line 3 runs isn't known"),
        ("A=x\nif true; then A=y; fi\neval $A", "line 2: what line 3 runs isn't known: a branch"),
        ("echo 'open", "line 1: it can't be read: No closing quotation; end the quote in it"),
        ("if true; then\npython t.py --num-layers 2", "line 1: it can't be read: the if that begins in it doesn't end"),
        ("fi", "line 1: it can't be read: fi ends nothing"),
        ("python t.py --num-layers (2)", "line 1: it can't be read: a parenthesis is in the midst"),
        ("cat <<END\n--num-layers", "line 1: it can't be read: the text up to END doesn't end"),
        ("A=x\n" + "A=$A$A\n" * 40 + "python t.py --num-layers $A", "variables make more than"),
        ("python t.py", "there are no arguments of Megatron's in it"),
    ],
)
def test_what_is_wrong_is_said_by_its_line(tmp_path, text, said):
    with pytest.raises(ValueError, match=said):
        arguments(tmp_path, text)


@pytest.mark.parametrize(
    "text",
    [
        "A=xxxxxxxxxx\n" + "A=$A$A\n" * 40 + "python a.py $A",
        "".join(f"A{n}=1\n" for n in range(2000)) + "source x\n" * 1000,
        "export" + "".join(f" A{n}=1" for n in range(2000)) + "\n" + "bash -c true\n" * 1000,
        "A=(" + "x " * 2000 + ")\n" + "echo ${A[1]}\n" * 1000,
    ],
    ids=["doubled", "source", "bash -c", "elements"],
)
def test_what_variables_make_is_bounded(text):
    with pytest.raises(SyntaxError, match="variables make more than 8000000 characters; shorten them"):
        Script(text)


def test_files_of_arguments_alone(tmp_path):
    plain = arguments(tmp_path, "--num-layers 2\n--x 3 \\\n--y\n")
    assert [(one.name, one.values, one.line) for one in plain] == [
        ("num-layers", ("2",), 1), ("x", ("3",), 2), ("y", (), 3),
    ]  # fmt: skip
    arrays = arguments(tmp_path, "A=(\n  --num-layers 2\n)\nB='--x 3'\n")
    assert [(one.name, one.line) for one in arrays] == [("num-layers", 2), ("x", 4)]


def calls(text):
    """How many functions are called as a script is read."""
    count = 0

    def called(frame, event, _):
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(called)
    try:
        Script(text)
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize(
    "word",
    ["w ", "'a' ", '"a$B" ', "$A ", "${a:-b} ", "`a` ", "$(a) ", "A=1\n", "true;", "# x\n", "\\\n", "{a,b}"],
)
def test_reading_takes_as_many_steps_as_there_are_words(word):
    few, many = calls("A=1 ; x " + 100 * word), calls("A=1 ; x " + 1000 * word)
    assert many <= 10 * few
