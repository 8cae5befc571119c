"""Engines run what is exported for them: the newest release of each, in an environment of its own, on CPU processes.

    python benchmarks/engines.py ENGINE [...] [--environments FOLDER] [--json FILE]

For each engine a virtual environment is made once, with the engine and what it needs. Then for each of its cases a plan
of a small transformer is exported as `alpa-dejavu export` does it, and the engine trains three steps by those files on
one process for each device of the plan (gloo or jax, loopback); so it does by the plan of the same model and batch on
one device. All in single precision, from the same weights and tokens. Losses of both must agree to 1e-4. What an engine
refuses is shown by its last line. Exit status 1 if a case doesn't run, or has other losses.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, final

from alpa_dejavu._util import units
from alpa_dejavu.exports import export
from alpa_dejavu.layers.models import Transformer
from alpa_dejavu.plans.outline import Outline
from alpa_dejavu.testing import example_cluster
from harness import Figure, Results, Table, options, wrong_input_told

RUNS: Final = pathlib.Path(__file__).with_name("engine_runs")
STEPS, APART, PATIENCE_S = 3, 1e-4, 600.0
MODEL: Final = Transformer(
    64, 4, 4, 256, 32, kv_heads=2, feed_forward=192, rotary_base=500_000, precision="float32"
)  # fmt: skip
BATCH, MICRO_BATCHES = 8, 4


def _outline(blocks: tuple[int, ...] = (4,), data: int = 1, tensor: int = 1, zero: int = 0, **more: Any) -> Outline:
    remat = more.pop("remat", ("none",) * len(blocks))
    return Outline(
        more.pop("batch", BATCH), more.pop("micro_batches", MICRO_BATCHES), more.pop("schedule", "1f1b"), data, tensor,
        blocks, remat, zero, **more,
    )  # fmt: skip


@final
@dataclasses.dataclass(frozen=True)
class Engine:
    """An engine, and what of it is tried."""

    target: str  # the target of exports whose files it runs
    package: str  # the distribution whose version is shown
    requirements: tuple[str, ...]
    cases: Mapping[str, Outline]
    python: str = "python3.11"
    environ: Mapping[str, str] = dataclasses.field(default_factory=dict)
    one_process: bool = False  # whether one process has all devices, as under jax
    model: Transformer = MODEL


_TORCH = ("torch==2.13.0", "numpy", "setuptools", "wheel")
ENGINES: Final = {
    "deepspeed": Engine(
        "deepspeed", "deepspeed", (*_TORCH, "deepspeed"),
        {
            "pipeline of 3 and 1 blocks": _outline((3, 1)),
            "pipeline, ZeRO 1 and remat": _outline((1, 3), data=2, zero=2, remat=("layer", "none")),
            "ZeRO 3": _outline(data=2, zero=3),
        },
        environ={"DS_ACCELERATOR": "cpu"},
    ),
    "torchtitan": Engine(  # pipelines and FSDP of 0.3.0 need a PyTorch after 2.13, of which there is no CPU build
        "torchtitan", "torchtitan", ("torch==2.14.1", "numpy", "packaging", "torchtitan"),
        {
            "pipeline of 3 and 1 blocks": _outline((3, 1)),
            "ZeRO 3": _outline(data=2, zero=3),
            "tensor parallel": _outline(tensor=2),
        },
    ),
    "maxtext": Engine(  # its extras are for TPUs and GPUs
        "maxtext", "maxtext",
        (
            "maxtext", "jax flax optax orbax-checkpoint grain aqtp qwix chex drjax tokamax jaxtyping pathwaysutils",
            "cloud-accelerator-diagnostics ml-goodput-measurement google-cloud-mldiagnostics",
            "google-cloud-storage gcsfs",
            "datasets transformers tiktoken sentencepiece safetensors pillow sympy jinja2 jsonlines psutil tabulate",
            "ml-collections omegaconf pydantic tensorboardx",
        ),
        {
            "pipeline of 2 and 2 blocks": _outline((2, 2), schedule="gpipe"),
            "ZeRO 3": _outline(data=2, zero=3),
            "tensor parallel": _outline(tensor=2),
        },
        python="python3.12", one_process=True,
    ),
}  # fmt: skip


@wrong_input_told
def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the engines and prints the table; exit status 1 if a case doesn't run, or has other losses."""
    parser = options(__doc__)
    parser.add_argument("engines", nargs="*", choices=[*ENGINES, []], metavar="ENGINE", help=", ".join(ENGINES))
    parser.add_argument(
        "--environments", type=pathlib.Path, metavar="FOLDER", default=pathlib.Path(".engines"),
        help="the folder that environments are made in, or are there already (default: %(default)s)",
    )  # fmt: skip
    given = parser.parse_args(arguments)
    results = Results(given.json, {"model": MODEL.text, "steps": STEPS})
    rows = []
    for name in given.engines or ENGINES:
        python = environment(name, given.environments)
        for case in ENGINES[name].cases:
            row = results.known("rows", f"{name}: {case}", tried, name, case, python)
            rows.append({"engine": name, "case": case, **row})
    figures = [_figure(row) for row in rows]
    return results.shown(_table(rows), figures=figures)


def environment(name: str, folder: pathlib.Path) -> pathlib.Path:
    """Makes an engine's virtual environment, unless it is there, and returns the path of its Python. Raises ValueError
    if there is no such Python, or pip fails.
    """
    engine, place = ENGINES[name], folder.absolute() / name
    python, mark = place / "bin" / "python", place / "requirements.txt"
    wanted = "\n".join(engine.requirements) + "\n"
    if mark.exists() and mark.read_text(encoding="utf-8") == wanted:
        return python
    shutil.rmtree(place, ignore_errors=True)
    made = [[_interpreter(engine.python), "-m", "venv", str(place)]]
    made += [[str(python), "-m", "pip", "install", "--quiet", *step.split()] for step in engine.requirements]
    for command in made:
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise ValueError(f"{' '.join(command)} failed: {done.stderr.strip().splitlines()[-1:]}; see what pip says")
    mark.write_text(wanted, encoding="utf-8")
    return python


def _interpreter(name: str) -> str:
    """Returns the path of an interpreter that runs: there may be links to some that aren't installed."""
    for folder in os.get_exec_path():
        path = shutil.which(name, path=folder)
        if path and subprocess.run([path, "--version"], capture_output=True).returncode == 0:
            return path
    raise ValueError(f"{name} isn't on the PATH, but must be; install it, or put its folder there")


def tried(name: str, case: str, python: pathlib.Path) -> dict[str, Any]:
    """Trains by a case's plan and by one of one device; returns the losses of both, or the last line of an error."""
    engine, begun = ENGINES[name], time.monotonic()
    outline = engine.cases[case]
    alone = Outline(outline.batch, outline.num_micro_batches, "1f1b", 1, 1, (outline.num_blocks,), ("none",))
    losses = []
    version = _version(python, engine.package)
    for each in (alone, outline):
        try:
            losses.append(_trained(name, each, python))
        except RuntimeError as error:
            return {"version": version, "date": datetime.date.today().isoformat(), "refused": str(error)}
    apart = max(abs(a / b - 1) for a, b in zip(*losses, strict=True))
    return {
        "version": version, "date": datetime.date.today().isoformat(), "processes": outline.num_devices,
        "alone": losses[0], "losses": losses[1], "apart": apart, "wall_s": time.monotonic() - begun,
    }  # fmt: skip


def _version(python: pathlib.Path, package: str) -> str:
    """Returns the version of a distribution that an environment has."""
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


@functools.cache
def _trained(name: str, outline: Outline, python: pathlib.Path) -> list[float]:
    """Exports an outline's plan and trains by its files; returns the losses. Raises RuntimeError with the last line of
    an error if a process fails, or doesn't end in time.
    """
    engine = ENGINES[name]
    plan = outline.plan(example_cluster(1, outline.num_devices), engine.model)
    with tempfile.TemporaryDirectory() as folder:
        export(plan, engine.target, folder, model=engine.model)
        (pathlib.Path(folder) / "run.json").write_text(json.dumps(_facts(outline, engine.model)), encoding="utf-8")
        processes = _started(engine, name, python, folder, outline.num_devices)
        try:
            said = [_ended(process) for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.wait()
    failed = [text for status, text in said if status]
    if failed:
        raise RuntimeError(min(map(_reason, failed), key=lambda text: "onnection" in text or "peer" in text))
    told = [json.loads(line) for _, text in said for line in re.findall(r"^LOSSES (.*)$", text, re.MULTILINE)]
    return next(losses for losses in told if losses is not None)


def _facts(outline: Outline, model: Transformer) -> dict[str, Any]:
    """Returns what a user knows beside the files: sizes, batch and steps."""
    return {
        "steps": STEPS, "hidden": model.hidden, "heads": model.num_heads, "blocks": model.num_blocks,
        "vocabulary": model.vocabulary, "sequence": model.sequence, "batch": outline.batch,
        "micro_batches": outline.num_micro_batches, "data_parallel": outline.data_parallel,
    }  # fmt: skip


def _started(engine: Engine, name: str, python: pathlib.Path, folder: str, world: int) -> list[subprocess.Popen[str]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    count = 1 if engine.one_process else world
    shared = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | {
        "WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={world}", "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": os.pathsep.join([folder, str(RUNS), str(RUNS.with_name("torch_runtime"))]),
        "TORCH_EXTENSIONS_DIR": str(python.parents[1] / "extensions"), **engine.environ,
    }  # fmt: skip
    return [
        subprocess.Popen(
            [python, str(RUNS / f"run_{name}.py"), folder], text=True, cwd=folder,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env=shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(count)
    ]  # fmt: skip


def _ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    try:
        text, _ = process.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        return 1, f"it didn't end in {units.seconds(PATIENCE_S)}"
    return process.returncode, text


def _reason(text: str) -> str:
    """Returns the line of a traceback that says what is wrong, else the last one."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["nothing was said"]
    lines = [re.sub(r"^\[rank\d+\]: ?", "", line) for line in lines]
    errors = [line for line in lines if re.match(r"(\w+\.)*\w*(Error|Exception): ", line)]
    return (errors or lines)[-1]


def _table(rows: Sequence[Mapping[str, Any]]) -> Table:
    columns = {
        "engine": "{engine} {version}", "date": "{date}", "plan": "{case}",
        "processes": "{processes}", "losses": lambda row: ", ".join(f"{loss:.4f}" for loss in row["losses"]),
        "apart": "{apart:.1e}", "refused": "{refused}",
    }  # fmt: skip
    return Table.of(rows, columns, "engines on CPU processes, by the files that are exported for them")


def _figure(row: Mapping[str, Any]) -> Figure:
    ran = "apart" in row
    measured = f"{row['apart']:.1e} apart" if ran else str(row["refused"])
    what = f"losses of {row['case']} beside one process"
    return Figure(row["engine"], what, f"at most {APART:.0e} apart", measured, ran and row["apart"] <= APART)


if __name__ == "__main__":
    sys.exit(main())
