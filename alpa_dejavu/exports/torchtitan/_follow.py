"""Python followed on its syntax, as far as it is data: constants, calls of the module's functions, and of classes.

Nothing is run or imported. What isn't data has a value of its own, which is refused where it matters.
"""

from __future__ import annotations

import ast
import copy
import dataclasses
import operator
import pathlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, final

from alpa_dejavu._util.near_names import near
from alpa_dejavu.exports._command_line import wrong_line

_MOST_STEPS, _DEEPEST, _LARGEST, _SHOWN = 50_000, 30, 10**12, 60
"""So many parts of expressions are looked at, so deep are calls followed, so large are numbers computed, and so many
bytes of expressions do errors show."""
DECIDED: Final = "is decided as it runs; write it out"
_CHANGES: Final = "it may change what is planned; leave it out"
BUILDERS: Final[dict[str, dict[str, Any]]] = {
    "TrainingConfig": {}, "ParallelismConfig": {}, "DebugConfig": {}, "CommConfig": {},
    "CompileConfig": {"enable": False, "components": ["model", "loss"]},
    "FullAC.Config": {"mode": "full"}, "SelectiveAC.Config": {"mode": "selective", "selective_ac_option": "op"},
    "MemoryBudgetAC.Config": {"mode": "memory_budget"}, "default_adamw": {"name": "AdamW"},
    "OptimizersContainer.Config": {},
}  # fmt: skip
"""The calls that make sections, each with what it stands for in TOML."""
USUAL: Final = {
    "training": "TrainingConfig", "parallelism": "ParallelismConfig", "compile": "CompileConfig",
    "debug": "DebugConfig", "comm": "CommConfig", "activation_checkpoint": "SelectiveAC.Config",
    "optimizer": "default_adamw",
}  # fmt: skip
"""What makes the sections that a configuration leaves out."""
TRAINER: Final = "Trainer.Config"
_CONVERTED = re.compile(r"(?:\w+(?:\.model)? = )?(\w+)\.build\(\)\.convert\((\w+)(?:\.model)?\)")
_OPERATORS: Final[Mapping[type, Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv, ast.Mod: operator.mod, ast.Eq: operator.eq, ast.NotEq: operator.ne,
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
    ast.In: lambda value, values: value in values, ast.NotIn: lambda value, values: value not in values,
    ast.Is: operator.is_, ast.IsNot: operator.is_not,
}  # fmt: skip


@final
@dataclasses.dataclass(eq=False)
class Built:
    """An object that a call makes: the name of what is called, and its arguments with their lines."""

    name: str
    line: int
    fields: dict[str, Any]
    lines: dict[str, int]


@final
@dataclasses.dataclass(frozen=True)
class Undecided:
    """A value that isn't data."""

    text: str
    line: int


@final
class Module:
    """A Python file of functions, some of which return configurations."""

    def __init__(self, path: pathlib.Path, text: str) -> None:
        tree = ast.parse(text)
        self._lines = re.split(rb"\r\n|[\r\n]", text.encode())
        self._path, self._steps, self._depth = path, 0, 0
        self._functions: dict[str, ast.FunctionDef] = {}
        self._names: dict[str, Any] = {}
        self.models: dict[str, str] = {}
        for node in tree.body:
            if isinstance(node, ast.FunctionDef):
                self._functions[node.name] = node
        for node in tree.body:
            if isinstance(node, ast.ImportFrom):
                self._imports(node)
            elif not isinstance(node, (ast.ClassDef, ast.FunctionDef)) and not _is_guard(node):
                self._run([node], self._names)

    def configuration(self, name: str) -> Built:
        """Returns what the function of a name returns; empty: the one that returns a configuration."""
        names = [name for name, node in self._functions.items() if self._returns(node) and not _needs(node)]
        if not names:
            raise ValueError(f"{self._path} has no function that returns a {TRAINER}; give the file of one")
        if name and name not in names:
            what = f"a function of {self._path} that returns a {TRAINER}: {', '.join(names)}{near(name, names)}"
            raise ValueError(f"config is {name!r}, but must be {what}")
        if not name and len(names) > 1:
            several = f"{self._path} has {len(names)} functions that return a {TRAINER}, of which one is read"
            raise ValueError(f"{several}; give --config with one of {', '.join(names)}")
        function = self._functions[name or names[0]]
        config = self.call(function.name)
        if not isinstance(config, Built) or config.name != TRAINER:
            raise self._wrong(function, f"{function.name} doesn't return a {TRAINER} that is written out; write it so")
        return config

    def call(self, name: str) -> Any:
        """Returns what a function without arguments returns."""
        function = self._functions[name]
        return self._call(function, [], {}, function)

    def _imports(self, node: ast.ImportFrom) -> None:
        """Notes of which model a registry is."""
        for alias in node.names:
            if alias.name == "model_registry":
                package = (node.module or self._path.absolute().parent.name).rpartition("models.")[2]
                self.models[alias.asname or alias.name] = package.partition(".")[0]

    def _returns(self, function: ast.FunctionDef, depth: int = 0) -> bool:
        """Returns whether a function says that it returns a configuration, or calls what does."""
        if function.returns is not None:
            return ast.unparse(function.returns).strip("'\"") == TRAINER
        last = function.body[-1]
        value = last.value if isinstance(last, ast.Return) else None
        if isinstance(value, ast.Name):
            sets = (node for node in function.body if isinstance(node, ast.Assign))
            value = next((node.value for node in sets if ast.unparse(node.targets[0]) == ast.unparse(value)), value)
        if not isinstance(value, ast.Call) or depth > _DEEPEST:
            return False
        called = ast.unparse(value.func)
        if called in _COPIES and value.args and isinstance(value.args[0], ast.Call):
            called = ast.unparse(value.args[0].func)
        inner = self._functions.get(called)
        return called == TRAINER or (inner is not None and self._returns(inner, depth + 1))

    def _call(self, function: ast.FunctionDef, args: Sequence[Any], keywords: Mapping[str, Any], at: ast.AST) -> Any:
        """Follows a function of the module on some arguments."""
        spec = function.args
        names = [arg.arg for arg in (*spec.posonlyargs, *spec.args)]
        own = [*names, *(arg.arg for arg in spec.kwonlyargs)]
        defaults = dict(zip(names[len(names) - len(spec.defaults) :], spec.defaults, strict=True))
        defaults |= {arg.arg: value for arg, value in zip(spec.kwonlyargs, spec.kw_defaults, strict=True) if value}
        values = {**dict(zip(names, args, strict=False)), **keywords}
        told = len(args) <= len(names) and {*values} <= {*own} <= {*values, *defaults}
        if function.decorator_list or spec.vararg or spec.kwarg or not told:
            raise self._wrong(at, f"{function.name} takes other arguments, or is decorated; write it out")
        self._depth += 1
        if self._depth > _DEEPEST:
            raise self._wrong(at, f"functions call each other more than {_DEEPEST} deep; write it out")
        scope = {name: values[name] if name in values else self._value(defaults[name], {}) for name in own}
        returned = self._run(function.body, scope)
        self._depth -= 1
        return returned[0] if returned else None

    def _run(self, body: Sequence[ast.stmt], scope: dict[str, Any]) -> tuple[Any, ...]:
        """Follows statements; returns what they return, in a tuple, or nothing."""
        for node in body:
            if isinstance(node, ast.Return):
                return (None if node.value is None else self._value(node.value, scope),)
            if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
                self._assign(node, scope)
            elif isinstance(node, ast.Raise):  # what it makes is for the user to write
                return (Built("raise", node.lineno, {}, {}),)
            elif isinstance(node, ast.FunctionDef):
                scope[node.name] = Undecided(node.name, node.lineno)
            elif isinstance(node, ast.If):
                test = self._value(node.test, scope)
                for undecided in undecided_in(test):
                    raise self._wrong(node, f"whether {undecided.text!r} holds {DECIDED}")
                if returned := self._run(node.body if test else node.orelse, scope):
                    return returned
            elif isinstance(node, ast.For):
                self._convert(node, scope)
            elif isinstance(node, ast.Expr) and isinstance(node.value, (ast.Constant, ast.Call)):
                if isinstance(node.value, ast.Call) and self._text(node.value.func) not in self._functions:
                    raise self._wrong(node, _CHANGES)
                self._value(node.value, scope)
            elif not isinstance(node, (ast.Import, ast.ImportFrom, ast.Assert, ast.Pass, ast.AnnAssign)):
                raise self._wrong(node, _CHANGES)
        return ()

    def _assign(self, node: ast.Assign | ast.AnnAssign, scope: dict[str, Any]) -> None:
        assert node.value is not None, "it was asked for"
        value = self._value(node.value, scope)
        for target in node.targets if isinstance(node, ast.Assign) else (node.target,):
            self._bind(target, value, scope)

    def _bind(self, target: ast.expr, value: Any, scope: dict[str, Any]) -> None:
        """Gives a value to a name, to a field, or part by part to several of them."""
        if isinstance(target, ast.Name):
            scope[target.id] = value
            return
        if isinstance(target, (ast.Tuple, ast.List)):
            fits = isinstance(value, list) and len(value) == len(target.elts)
            for number, inner in enumerate(target.elts):
                self._bind(inner, value[number] if fits else self._undecided(target), scope)
            return
        owner = self._value(target.value, scope) if isinstance(target, ast.Attribute) else None
        if not isinstance(owner, Built) or not isinstance(target, ast.Attribute):
            raise self._wrong(target, _CHANGES)
        owner.fields[target.attr], owner.lines[target.attr] = value, target.lineno

    def _convert(self, node: ast.For, scope: dict[str, Any]) -> None:
        """Applies converters to a model, which is what a loop may do."""
        statement = _CONVERTED.fullmatch(ast.unparse(node.body[0])) if len(node.body) == 1 else None
        converters = self._value(node.iter, scope)
        spec = None if statement is None else scope.get(statement[2])
        if (
            statement is None or statement[1] != ast.unparse(node.target) or not isinstance(converters, list)
            or not isinstance(spec, Built)
        ):  # fmt: skip
            raise self._wrong(node, _CHANGES)
        spec.fields["converters"] = [*(spec.fields.get("converters") or []), *converters]
        spec.lines["converters"] = node.lineno

    def _value(self, node: ast.expr, scope: Mapping[str, Any]) -> Any:
        """Returns what an expression stands for."""
        self._steps += 1
        if self._steps > _MOST_STEPS:
            raise self._wrong(node, "it has more parts than are followed; write it out")
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            return scope.get(node.id, self._names.get(node.id, Undecided(node.id, node.lineno)))
        if isinstance(node, (ast.List, ast.Tuple)):
            return [self._value(inner, scope) for inner in node.elts]
        if isinstance(node, ast.Dict) and None not in node.keys:
            return {str(self._value(key, scope)): self._value(value, scope)
                    for key, value in zip(node.keys, node.values, strict=True) if key is not None}  # fmt: skip
        if isinstance(node, ast.Attribute):
            return self._field(self._value(node.value, scope), node)
        if isinstance(node, ast.Call):
            return self._built(node, scope)
        if isinstance(node, ast.Subscript):
            owner, key = self._value(node.value, scope), self._value(node.slice, scope)
            try:
                return owner[key]
            except (IndexError, KeyError, TypeError):
                return self._undecided(node)
        if isinstance(node, ast.IfExp):
            test = self._value(node.test, scope)
            undecided = next(undecided_in(test), None)
            return undecided or self._value(node.body if test else node.orelse, scope)
        if isinstance(node, ast.BoolOp):
            values = [self._value(inner, scope) for inner in node.values]
            if any(undecided_in(values)):
                return self._undecided(node)
            stops = isinstance(node.op, ast.Or)
            return next((value for value in values if bool(value) == stops), values[-1])
        return self._computed(node, scope)

    def _computed(self, node: ast.expr, scope: Mapping[str, Any]) -> Any:
        """Returns what simple arithmetic, or a comparison, comes to."""
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.Not)):
            value = self._value(node.operand, scope)
            if isinstance(node.op, ast.Not):
                return self._undecided(node) if any(undecided_in(value)) else not value
            return -value if isinstance(value, int | float) else self._undecided(node)
        if isinstance(node, (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
            parts_of = (inner for inner in ast.walk(node) if isinstance(inner, (ast.Name, ast.Constant)))
            if any(_has_section(self._value(inner, scope)) for inner in parts_of):
                raise self._wrong(node, _CHANGES)
        parts = (
            (node.left, node.op, node.right) if isinstance(node, ast.BinOp)
            else (node.left, node.ops[0], node.comparators[0]) if isinstance(node, ast.Compare) and len(node.ops) == 1
            else None
        )  # fmt: skip
        if parts is None or type(parts[1]) not in _OPERATORS:
            return self._undecided(node)
        left, right = self._value(parts[0], scope), self._value(parts[2], scope)
        numbers = all(isinstance(side, int | float) and abs(side) < _LARGEST for side in (left, right))
        if isinstance(node, ast.BinOp) and not numbers:
            return self._undecided(node)
        if any(undecided_in([left, right])):
            return self._undecided(node)
        try:
            return _OPERATORS[type(parts[1])](left, right)
        except (ArithmeticError, TypeError):
            return self._undecided(node)

    def _field(self, owner: Any, node: ast.Attribute) -> Any:
        """Returns an attribute of an object, as it is set, or usual."""
        if not isinstance(owner, Built):
            return self._undecided(node)
        name = node.attr
        usual = USUAL.get(name) if owner.name == TRAINER else None
        if name not in owner.fields and usual is not None:
            owner.fields[name], owner.lines[name] = Built(usual, owner.line, {}, {}), owner.line
        set_by = owner.fields if name in owner.fields else BUILDERS.get(owner.name, {})
        return set_by[name] if name in set_by else self._undecided(node)

    def _built(self, node: ast.Call, scope: Mapping[str, Any]) -> Any:
        """Returns what a call makes."""
        match node:
            case ast.Call(ast.Name("str"), [ast.Call(ast.Attribute(beside, "with_name"), [ast.Constant(str(name))])]):
                if self._text(beside) == "pathlib.Path(__file__)" and not {*"/\\"} & {*name}:
                    return str(self._path.with_name(name))
        called = self._text(node.func)
        args = [self._value(arg, scope) for arg in node.args]
        keywords: dict[str, Any] = {}
        lines: dict[str, int] = {}
        for keyword in node.keywords:
            value = self._value(keyword.value, scope)
            own = value if keyword.arg is None and isinstance(value, dict) else {keyword.arg or "**": value}
            keywords |= own
            lines |= dict.fromkeys(own, keyword.value.lineno)
        if called in self._functions:
            return self._call(self._functions[called], args, keywords, node)
        if called in _COPIES and len(args) == 1 and isinstance(args[0], Built):
            copied = copy.deepcopy(args[0]) if "deepcopy" in called else dataclasses.replace(
                args[0], fields=dict(args[0].fields), lines=dict(args[0].lines)
            )  # fmt: skip
            copied.fields |= keywords
            copied.lines |= lines
            return copied
        if called == "cast" and len(args) == 2:
            return args[1]
        if (called in BUILDERS or called == TRAINER) and (args or "**" in keywords):
            raise self._wrong(node, "it has arguments without names; name them")
        if not called.endswith("Config") and _has_section([*args, *keywords.values()]):
            raise self._wrong(node, _CHANGES)
        positional = {str(n): value for n, value in enumerate(args)}
        return Built(called, node.lineno, positional | keywords, lines)

    def _undecided(self, node: ast.expr) -> Undecided:
        return Undecided(self._text(node), node.lineno)

    def _text(self, node: ast.expr) -> str:
        """Returns how an expression is written, as far as its first line has it, and not longer than errors show it."""
        ends = node.end_col_offset if node.end_lineno == node.lineno else None
        return self._lines[node.lineno - 1][node.col_offset : ends][:_SHOWN].decode(errors="replace")

    def _wrong(self, node: ast.AST, why: str) -> ValueError:
        return wrong_line(self._path, getattr(node, "lineno", 1), why)


_COPIES = ("dataclasses.replace", "replace", "copy.deepcopy", "deepcopy", "copy.copy")


def _is_guard(node: ast.stmt) -> bool:
    """Returns whether a statement is for type checkers, or for a module that is run by itself."""
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "__name__ == '__main__'")


def _needs(function: ast.FunctionDef) -> bool:
    """Returns whether a function has to be given arguments."""
    spec = function.args
    return len(spec.posonlyargs) + len(spec.args) > len(spec.defaults) or None in spec.kw_defaults


def _has_section(value: Any) -> bool:
    """Returns whether a section of a configuration, or a whole one, is in a value."""
    if isinstance(value, (list, dict)):
        return any(map(_has_section, value.values() if isinstance(value, dict) else value))
    return isinstance(value, Built) and (value.name in {TRAINER, *BUILDERS} or _has_section(value.fields))


def undecided_in(value: Any) -> Iterator[Undecided]:
    """Yields the parts of a value that aren't data."""
    if isinstance(value, Undecided):
        yield value
    elif isinstance(value, Built):
        yield Undecided(f"{value.name}(...)", value.line)
    elif isinstance(value, (list, dict)):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from undecided_in(inner)
