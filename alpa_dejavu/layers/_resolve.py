"""A model function from what a user names: a suite's model, `module:function`, or gives: the function itself, or a
module of PyTorch with its inputs.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import pathlib
import sys
from collections.abc import Callable
from typing import Any

from alpa_dejavu._util.near_names import near
from alpa_dejavu.layers.models import known_models, known_name, model_function
from alpa_dejavu.layers.torch_modules import is_module, is_pair, of_any_batch
from alpa_dejavu.problem import Plan

ModelFunction = Callable[..., Any]
"""Takes a batch size and returns `(train_step, (state, batch, ...))` with arrays or abstract ones."""


def resolve(function: str | ModelFunction) -> ModelFunction:
    """Returns the model function that a known model's name, a text of sizes or `module:function` stands for, or
    the function itself. It takes a batch size and returns a train step with its arguments. A module is looked for where
    `python -m` would: in the current directory first. What it raises while it is imported is passed on.

    Raises:
        ValueError: there is no such model, module or function; near names are listed.
        TypeError: what the name stands for isn't a function.
    """
    if not isinstance(function, str):
        return _function(function, "the model")
    is_known = known_name(function) is not None
    if ":" not in function or is_known:
        file = pathlib.Path(f"{function.removesuffix('.py')}.py")
        if not is_known and os.path.isfile(file):
            raise ValueError(_without_function(function, file))
        return model_function(function)
    module_name, _, name = function.partition(":")
    module = _import(module_name, function)
    value: Any = module
    for part in name.split("."):
        if not hasattr(value, part):
            public = [other for other in dir(value) if callable(getattr(value, other)) and not other.startswith("_")]
            others = f"; there are {', '.join(map(repr, public))}" if public else "; it defines none"
            raise ValueError(f"{module_name!r} has no function {name!r}{near(part, public) or others}")
        value = getattr(value, part)
    return _function(value, repr(function))


def _function(value: Any, which: str) -> ModelFunction:
    """The model function that a value is, or that makes the inputs of a module of PyTorch."""
    if is_pair(value):
        return of_any_batch(*value)
    if is_module(value):
        raise TypeError(
            f"{which} is a {type(value).__name__}, but must have its inputs, too; give (module, inputs), with a tuple "
            "or a dict of example tensors, or a function that takes a batch size and returns these"
        )
    if not callable(value):
        raise TypeError(
            f"{which} is {value!r}, but must be a function that takes a batch size; give its name or itself"
        )
    return value


def _import(module_name: str, function: str) -> Any:
    folder = os.getcwd()
    sys.path.insert(0, folder)
    try:
        importlib.invalidate_caches()
        if module_name.endswith(".py") or os.sep in module_name:
            raise ValueError(_as_module(module_name, function, folder))
        if not _exists(module_name):
            models = ", ".join(known_models()[:3])
            close = near(module_name, [file.stem for file in pathlib.Path(folder).glob("*.py")])
            raise ValueError(
                f"model {function!r}: there is no module {module_name!r} in {folder} or among the installed ones"
                f"{close}; give 'module:function', or a known model such as {models}"
            )
        return importlib.import_module(module_name)
    finally:
        if folder in sys.path:
            sys.path.remove(folder)


def _as_module(path: str, function: str, cwd: str) -> str:
    """The error for a file's path in place of a module, which says what to write."""
    folder, file = os.path.split(path)
    module, name = file.removesuffix(".py"), function.partition(":")[2]
    missing = "" if os.path.exists(path) or os.path.exists(f"{path}.py") else f" (there is no file {path!r} in {cwd})"
    if folder and os.path.abspath(folder) != cwd:
        remedy = f"go to its folder, `cd {folder}`, and write {module}:{name}"
    else:
        remedy = f"write {module}:{name}"
    return f"model is {function!r}, but must be 'module:function', a module that Python can import{missing}; {remedy}"


def _without_function(model: str, file: pathlib.Path) -> str:
    """The error for a file that is there, without the function that is meant; names those that it defines."""
    try:
        body = ast.parse(file.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        body = []
    defined = [node.name for node in body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")]
    names = [f"{file.stem}:{name}" for name in defined[:3]] or [f"{file.stem}:function"]
    where = "" if file.parent == pathlib.Path() else f"go to its folder, `cd {file.parent}`, and "
    return (
        f"model is {model!r}, but must be 'module:function', with the function that takes a batch size and returns a "
        f"train step; {where}write {' or '.join(names)}"
    )


def _exists(module_name: str) -> bool:
    parts = module_name.split(".")
    if not all(part.isidentifier() for part in parts):
        return False
    try:
        return importlib.util.find_spec(module_name) is not None
    except ModuleNotFoundError as missing:
        if missing.name is not None and module_name.startswith(missing.name):
            return False
        raise
    except ValueError:
        return module_name in sys.modules


def trusted_model(
    plan: Plan, model: str | Callable[..., Any] | None = None, trust_model: bool = False
) -> str | Callable[..., Any]:
    """Returns the model that the caller gives, or else the one that a plan names, if that may be trusted.

    A plan file may come from anyone, and a `module:function` in it would be imported and called: it is only returned
    with `trust_model`. Known models' names, and texts of sizes, are always trusted.

    Raises:
        ValueError: neither the caller nor the plan names a model, or the plan names a function that isn't trusted.
    """
    if model:
        return model
    if not plan.model:
        raise ValueError("the plan doesn't name its model; give --model, a name or 'module:function'")
    if ":" in plan.model and known_name(plan.model) is None and not trust_model:
        raise ValueError(
            f"model is {plan.model!r} in the plan's file, but must be a known model's name: code that a file names "
            "isn't run; if you know that function, give it by --model, or trust the file's by --trust-model "
            "(trust_model=True)"
        )
    return plan.model
