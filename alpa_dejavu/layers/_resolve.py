"""A model function from what a user names: a suite's model, `module:function`, or the function itself."""

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
from alpa_dejavu.layers.models import known_models, model_function, transformer_size

_SAID = 3
"""So many functions of a file are named at most."""
ModelFunction = Callable[..., Any]
"""Takes a batch size and returns `(train_step, (state, batch, ...))` with arrays or abstract ones."""


def resolve(function: str | ModelFunction) -> ModelFunction:
    """Returns the model function that a known model's name, a transformer's sizes or `module:function` stands for.

    A function is returned as it is. A model function takes a batch size and returns a train step with its arguments. A
    module is looked for where `python -m` would: in the current directory first. What it raises while it is imported is
    passed on as it is.

    Raises:
        ValueError: there is no such model, module or function; near names are listed.
        TypeError: what the name stands for isn't a function.
    """
    if callable(function):
        return function
    if not isinstance(function, str):
        raise TypeError(f"the model is {function!r}; give a name, 'module:function' or a function")
    if ":" not in function or transformer_size(function) is not None:
        file = pathlib.Path(f"{function.removesuffix('.py')}.py")
        if function.lower() not in known_models() and os.path.isfile(file):
            raise ValueError(_without_function(function, file))
        return model_function(function)
    module_name, _, name = function.partition(":")
    module = _import(module_name, function)
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            public = [each for each in dir(found) if callable(getattr(found, each)) and not each.startswith("_")]
            raise ValueError(f"{module_name!r} has no function {name!r}{_near_or_all(part, public)}")
        found = getattr(found, part)
    if not callable(found):
        raise TypeError(f"{function!r} is {type(found).__name__}, not a function that takes a batch size")
    return found


def _near_or_all(name: str, known: list[str]) -> str:
    """The end of an error message: the known names that are like a wrong one, or else all known names."""
    others = f"; there are {', '.join(map(repr, known))}" if known else "; it defines none"
    return near(name, known) or others


def _import(module_name: str, function: str) -> Any:
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        importlib.invalidate_caches()
        if module_name.endswith(".py") or os.sep in module_name:
            raise ValueError(_as_module(module_name, function, here))
        if not _exists(module_name):
            models = ", ".join(known_models()[:3])
            close = near(module_name, [file.stem for file in pathlib.Path(here).glob("*.py")])
            raise ValueError(
                f"model {function!r}: there is no module {module_name!r} in {here} or among the installed ones{close}; "
                f"give 'module:function', or a known model such as {models}"
            )
        return importlib.import_module(module_name)
    finally:
        if here in sys.path:
            sys.path.remove(here)


def _as_module(path: str, function: str, here: str) -> str:
    """The error for a file's path in place of a module, which says what to write."""
    folder, file = os.path.split(path)
    module, name = file.removesuffix(".py"), function.partition(":")[2]
    missing = "" if os.path.exists(path) or os.path.exists(f"{path}.py") else f" (there is no file {path!r} in {here})"
    if folder and os.path.abspath(folder) != here:
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
    defined = [one.name for one in body if isinstance(one, ast.FunctionDef) and not one.name.startswith("_")]
    names = [f"{file.stem}:{name}" for name in defined[:_SAID]] or [f"{file.stem}:function"]
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
