"""Flags of every command with values of all sorts, paths that can't be written, and models that are none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import click
from hypothesis import strategies as st

from fuzzing._example import Example, Placed
from fuzzing._formats import outputs_of
from fuzzing._right import MACHINE, MODEL, PLANNED, Files

TEXTS = ("", "0", "x", "-", ".", "名前", "\x1b[31mred", "a\nb", "=", "x=1e308", "x" * 5000, "--json", "%s", "{}")
INTEGERS = (
    "1", "2", "3", "7", "64", "1000", "1000000", "1000000007", str(2**60), "0", "-1", "9" * 5000, "1.5", "auto", "٣",
)  # fmt: skip
FLOATS = ("0", "0.01", "0.5", "1", "-1", "2", "nan", "inf", "-inf", "1e308", "1e-320", "", "x", "0x1p3")
PATHS = (
    "new", "new.json", "plan.json", "folder", "missing/new.json", "nowhere", "loop", "linked", "/dev/null", "/dev/full",
    "-", ".", "..", "", "\x1b[31m.json", "名.json", "a\nb.json", "x" * 300, "plan.json/new", "~", "cluster.json",
)  # fmt: skip
_NAMED: Mapping[str, tuple[str, ...]] = {
    "model": (
        MODEL, "fuzzing._models:mlp_1_1_float32", "fuzzing._models:nothing", "fuzzing._models:table", "fuzzing:x",
        "nowhere:x", ":", "a:b:c", "..:x", "gpt-125", "GPT", "plan.json", "fuzzing._models:mlp.__code__",
    ),
    "cluster": (
        MACHINE, "cluster.json", "machine.json", "plan.json", "folder", "p3", "0 x p3.8xlarge", "2 x p3.8xlarge",
        "missing.json", "local-cpu", "loop.json",
    ),
    "calibration": ("v100", "measured.json", "fitted.json", "plan.json", "v", "folder", "missing.json"),
    "without": (f"{MACHINE}-0", f"{MACHINE}-1", MACHINE, "all"),
    "slow": (f"{MACHINE}-0=1.5", f"{MACHINE}-0=0", f"{MACHINE}-0=nan", f"{MACHINE}-0=1e308", "=2", "nobody=2"),
}  # fmt: skip
_RIGHT: Mapping[str, tuple[str, ...]] = {
    "plan": (*PLANNED, "--cluster", MACHINE),
    "estimate": ("plan.json", "--model", MODEL),
    "explain": ("plan.json",),
    "diff": ("plan.json", "other.json", "--model", MODEL, "--cluster", "cluster.json"),
    "replan": ("plan.json", "--without", f"{MACHINE}-1"),
    "history": ("--history", "history.sqlite"),
    # Both run on Ray's devices, so that they are given what ends them before.
    "profile": ("nowhere.json", "--no-history"),
    "calibrate": ("--output", "missing/new.json"),
}
"""A command line of each command but `doctor`, which has no flags and tries what runs for half a minute."""

_LEFT_OUT = ("help", "output")
"""With an output that can be written, `calibrate` would go on to Ray's devices."""
_THERE = (
    Placed("folder", sort="folder"), Placed("linked", b"nowhere/new", "link"), Placed("loop", b"loop", "link"),
    Placed("loop.json", b"loop.json", "link"),
)  # fmt: skip


def flag_examples(right: Files) -> st.SearchStrategy[Example]:
    """A right command line with one or two flags more, or twice, each with a value that may be wrong."""
    from alpa_dejavu.cli.main import main

    # What click calls a parameter is an argument where it has no leading dashes: those are in the right lines.
    options = {
        name: [one for one in command.params if isinstance(one, click.Option) and one.name not in _LEFT_OUT]
        for name, command in main.commands.items()
        if name in _RIGHT
    }
    return _flagged(options, right)


@st.composite
def _flagged(draw: st.DrawFn, options: Mapping[str, Sequence[click.Option]], right: Files) -> Example:
    name = draw(st.sampled_from((*["plan"] * 6, *sorted(options))))
    chosen = draw(st.lists(st.sampled_from(list(options[name])), min_size=1, max_size=2))
    words = [word for option in chosen for word in _given(draw, option)]
    return _made("flags", (name, *_RIGHT[name], *words), right)


def _given(draw: st.DrawFn, option: click.Option) -> tuple[str, ...]:
    """The flag, and one of its values."""
    flag = option.opts[-1]
    if option.is_flag:
        return (flag,)
    values: Sequence[str] = _NAMED.get(option.name or "", ())
    if isinstance(option.type, click.Choice):
        values = (*map(str, option.type.choices), *TEXTS[:4])
    elif isinstance(option.type, click.Path):
        values = PATHS
    elif isinstance(option.type, click.types.FloatParamType):
        values = FLOATS
    elif isinstance(option.type, click.types.IntParamType) or "N" in str(option.type.name).split("|"):
        values = INTEGERS
    return flag, draw(st.sampled_from((*values, *values, *values, *TEXTS)))


_SIZES: Mapping[str, tuple[str, ...]] = {
    "--hosts": ("2", "16", "1000", "1000000", str(2**60)),
    "--batch": ("64", "4096", str(2**20), str(10**9 + 7), str(2**60)),
    "--micro-batches": ("8", "1000", "10000000"),
    "--layers": ("6", "12", "1000", "1000000"),
    "--slicer": ("exhaustive", "mcmc", "gradient", "uniform", "amp_pipe"),
    "--strategy": ("alpa", "amp", "hetpipe", "megatron"),
}  # fmt: skip


@st.composite
def size_examples(draw: st.DrawFn, right: Files) -> Example:
    """Right flags alone, one to three of which ask for much."""
    words = ["plan", "--model", f"fuzzing._models:mlp_{draw(st.sampled_from((4, 12, 40)))}_4_float32"]
    words += ["--cluster", draw(st.sampled_from((MACHINE, "machine.json"))), "--batch", "8"]
    chosen = draw(st.lists(st.sampled_from(sorted(_SIZES)), min_size=1, max_size=3, unique=True))
    for flag in chosen:
        words += [flag, draw(st.sampled_from(_SIZES[flag]))]
    return _made("sizes", tuple(words), right)


@st.composite
def output_examples(draw: st.DrawFn, right: Files) -> Example:
    """Commands whose outputs go where they can't, to where others go, or over what they read."""
    name = draw(st.sampled_from(("plan", "estimate", "replan")))
    flags = ("--json", "--python", "--html", "--trace") if name != "replan" else ("--json", "--python")
    chosen = draw(st.lists(st.sampled_from(flags), min_size=1, max_size=3, unique=True))
    words = [word for flag in chosen for word in (flag, draw(st.sampled_from(PATHS)))]
    return _made("outputs", (name, *_RIGHT[name], *words), right)


_DTYPES = ("float32", "bfloat16", "float16", "float64")
_WRONG = ("constant", "no_step", "no_arguments", "no_batch", "table", "failing")
_OWN = "failing"
"""The model whose own error is shown with its traceback."""


@st.composite
def model_examples(draw: st.DrawFn, right: Files) -> Example:
    """Models of a user, good and bad, in several sizes."""
    sizes = st.tuples(st.integers(1, 6), st.sampled_from((1, 4, 16, 33)), st.sampled_from(_DTYPES))
    good = sizes.map(lambda parts: "_".join(map(str, ("mlp", *parts))))
    model = draw(st.one_of(good, good, good, st.just("inference"), st.sampled_from(_WRONG)))
    words = ["plan", "--model", f"fuzzing._models:{model}", "--cluster", MACHINE, "--no-cache"]
    words += ["--batch", draw(st.sampled_from(("8", "64", "1", "2", "3", "12")))]
    for flag in ("--layers", "--micro-batches"):
        words += draw(st.sampled_from(([], [], [flag, "1"], [flag, "2"], [flag, "4"], [flag, "auto"], [flag, "64"])))
    schedule = "inference" if model == "inference" else draw(st.sampled_from(("1f1b", "gpipe", "inference")))
    return _made("models", (*words, "--schedule", schedule), right, own_error=model == _OWN)


_VARIABLES: Mapping[str, tuple[str, ...]] = {
    "ALPA_DEJAVU_CACHE": ("folder", "plan.json", "missing/deep", "loop", "/dev/null", "x" * 300),
    "ALPA_DEJAVU_CACHE_MIB": FLOATS,
    "ALPA_DEJAVU_HISTORY": PATHS,
    "ALPA_DEJAVU_FILE_MIB": FLOATS,
    "XDG_CACHE_HOME": ("relative", "/dev/null", ""),
    "COLUMNS": INTEGERS,
}


@st.composite
def variable_examples(draw: st.DrawFn, right: Files) -> Example:
    """Variables of the environment with values of all sorts."""
    name = draw(st.sampled_from(sorted(_VARIABLES)))
    value = draw(st.sampled_from(_VARIABLES[name]))
    line = draw(st.sampled_from(("plan", "explain", "history")))
    words = _RIGHT[line] if line != "history" else ()
    changed = (value, "relative/", "missing/", "folder/") if "CACHE" in name else ()
    return _made("variables", (line, *words), right, variables=((name, value),), changed=changed)


def _made(
    kind: str,
    arguments: tuple[str, ...],
    right: Files,
    *,
    variables: tuple[tuple[str, str], ...] = (),
    changed: tuple[str, ...] = (),
    own_error: bool = False,
) -> Example:
    files = (*(Placed(name, content) for name, content in right.items()), *_THERE)
    # No argument of a program, and no variable, holds a zero byte.
    words = tuple(word.replace("\x00", "") for word in arguments)
    outputs = (*outputs_of(words), *changed)
    return Example(kind, words, files, outputs, variables, own_error=own_error)
