"""Files of users, most of them JSON: errors name file, line, key and remedy; a file is written whole or not at all."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import json
import os
import pathlib
from collections.abc import Callable, Iterator
from typing import IO, Any, Generic, TypeVar, final

from alpa_dejavu._util import units
from alpa_dejavu._util.dataclass_format import object_of
from alpa_dejavu._util.file_size import VARIABLE, most_bytes
from alpa_dejavu._util.format_fields import WrongDataError
from alpa_dejavu._util.json_text import Path, line_of, line_of_no_json, strict_json

_TEXT_MIB = 64.0
_DESCRIPTORS = "/dev/fd"
"""The folder of this process's open files; on Linux a link into /proc."""
_MOST_LINKS = 40
_Data = TypeVar("_Data")
_Object = TypeVar("_Object")


@final
@dataclasses.dataclass(frozen=True)
class CheckedFile(Generic[_Data]):
    """A file that was read: its text, and its data, which was checked against the format's declared type. `remedy` ends
    errors: what a right file looks like, or where one comes from; `line_of` tells the line of a place in the text.
    """

    path: pathlib.Path
    text: str
    data: _Data
    remedy: str
    line_of: Callable[[str, Path], int | None]

    def problem(self, where: Path, message: str) -> ValueError:
        """Returns the error that says what is wrong at a place in the data, given as keys and indices."""
        line = self.line_of(self.text, where)
        return ValueError(f"{self.path}{'' if line is None else f', line {line}'}: {message}; {self.remedy}")

    def checked(self, kind: type[_Data]) -> CheckedFile[_Data]:
        """Returns this file with its data checked against a declared type.

        Raises:
            ValueError: something in it isn't as the type has it; of all that is wrong the first is told.
        """
        from alpa_dejavu._util.format_check import checked

        try:
            return dataclasses.replace(self, data=checked(self.data, kind))
        except WrongDataError as error:
            raise self.problem(error.where, str(error)) from None

    def described(self, kind: type[_Object]) -> _Object:
        """Returns the dataclass's value that the file's checked data describe.

        Raises:
            ValueError: its parts don't fit each other, as the dataclasses themselves check.
        """
        try:
            return object_of(kind, self.data)  # type: ignore[arg-type]
        except ValueError as error:
            raise self.problem(getattr(error, "where", ()), str(error)) from error


def read_checked(path: pathlib.Path, kind: type[_Data], remedy: str) -> CheckedFile[_Data]:
    """Reads a JSON file, checks its data against a declared type, such as a TypedDict, and returns both. `remedy` ends
    the message of each ValueError: what a right file looks like, or where one comes from; of all that is wrong the
    first is told.
    """
    file: CheckedFile[Any] = CheckedFile(path, read_text(path, remedy), None, remedy, line_of)
    try:
        data = strict_json(file.text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}, line {error.lineno}: this isn't JSON: {error.msg}; {remedy}") from None
    except ValueError as error:
        raise ValueError(f"{path}, line {line_of_no_json(file.text)}: this isn't JSON: {error}; {remedy}") from None
    return dataclasses.replace(file, data=data).checked(kind)


def read_text(path: pathlib.Path, remedy: str) -> str:
    """Returns the text of a UTF-8 file, without a byte order mark; `remedy` ends the message of the ValueError for one
    that can't be read, or is larger than 64 MiB, or than the MiB that the environment variable ALPA_DEJAVU_FILE_MIB
    sets.
    """
    most = most_bytes(_TEXT_MIB)
    try:
        with path.open("rb") as file:
            content = file.read(int(most) + 1)
        text = content.decode("utf-8-sig")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise ValueError(f"{path} can't be read: {why}; {remedy}") from None
    if len(content) > most:
        more = f"set {VARIABLE} to more, if it is meant"
        raise ValueError(f"{path} is larger than {units.size(most)}, which is more than is read; {more}; {remedy}")
    return text


def peek(path: pathlib.Path) -> Any:
    """Returns the data of a JSON file, unchecked; None where it can't be read."""
    if not os.path.isfile(path):
        return None
    try:
        return strict_json(read_text(path, ""), finite=False)
    except ValueError:
        return None


def write_whole(path: pathlib.Path, text: str) -> None:
    """Replaces a file's content by a text atomically, as `write_whole_bytes` does by bytes."""
    write_whole_bytes(path, text.encode("utf-8"))


def write_whole_bytes(path: pathlib.Path, content: bytes) -> None:
    """Replaces a file's content by bytes atomically: a reader, or a crash, never meets half of it. ValueError says why
    it can't be written.

    If the path is a symbolic link, the file that it leads to is replaced. A pipe, a device or a file that is open
    already, such as /dev/stdout, is written to.
    """
    check_folder(path)
    try:
        if is_stream(path):
            _write_stream(path, content)
        else:
            _replace(path.resolve(), content)
    except (OSError, RuntimeError) as error:
        # Links in a circle are a RuntimeError.
        why = error.strerror or error if isinstance(error, OSError) else error
        raise ValueError(f"{path} can't be written: {why}; make room, or give another path") from None


def is_stream(path: pathlib.Path) -> bool:
    """Returns whether a path is a pipe, a device or an open file, as /dev/stdout, which is written to, not replaced."""
    return _open_already(path) is not None or (path.exists() and not path.is_file())


def descriptor(path: pathlib.Path) -> int | None:
    """Returns this process's file descriptor that a path stands for, as 1 for /dev/stdout; None for any other path."""
    entry = _open_already(path)
    own = entry is not None and entry.name.isdecimal() and str(entry.parent) == os.path.realpath(_DESCRIPTORS)
    return int(entry.name) if entry is not None and own else None


def check_folder(path: pathlib.Path) -> None:
    """Raises ValueError if the folder of a file to write doesn't exist."""
    folder = path.absolute().parent
    if not os.path.isdir(folder):
        raise ValueError(f"{path} can't be written: there is no folder {folder}; make it first")


def _open_already(path: pathlib.Path) -> pathlib.Path | None:
    """The entry of /proc or /dev/fd that a path leads to; it is of an open file, and may be a link to a regular one."""
    for _ in range(_MOST_LINKS):
        path = pathlib.Path(os.path.realpath(path.parent), path.name)
        if path.parts[1:2] == ("proc",) or str(path.parent) == _DESCRIPTORS:
            return path
        if not os.path.islink(path):
            return None
        path = path.parent / os.readlink(path)
    return None


def _write_stream(path: pathlib.Path, content: bytes) -> None:
    """Writes behind what others have written: a descriptor is written by itself, as its place in a file is its own."""
    number = descriptor(path)
    with path.open("ab") if number is None else open(number, "wb", closefd=False) as stream:
        stream.write(content)


def _replace(path: pathlib.Path, content: bytes) -> None:
    with unfinished(path) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
        os.replace(file.name, path)
    _sync_folder(path.parent)


def _sync_folder(folder: pathlib.Path) -> None:
    """Has a folder's new names outlast a power failure, where its file system does that."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def csv_lines(path: pathlib.Path, remedy: str) -> Iterator[tuple[int, list[str]]]:
    """Yields the lines of a CSV file, each with its number, from 1, and its cells; `remedy` ends errors.

    Raises:
        ValueError: the file can't be read, or is no CSV, as where a cell has more than 131,072 characters.
    """
    lines = csv.reader(read_text(path, remedy).splitlines())
    try:
        for cells in lines:
            yield lines.line_num, cells
    except csv.Error as error:
        raise ValueError(f"{path}, line {max(lines.line_num, 1)}: it is no CSV ({error}); {remedy}") from None


_NOW: set[str] = set()


@contextlib.contextmanager
def unfinished(path: pathlib.Path) -> Iterator[IO[bytes]]:
    """Yields a new temporary file beside a path, to write and rename to it; it is removed if it wasn't renamed."""
    name = str(path.with_name(f".{path.name}.{os.urandom(4).hex()}"))
    _NOW.add(name)
    try:
        with open(name, "xb") as file:
            try:
                yield file
            finally:
                remove_unfinished(name)
    finally:
        _NOW.discard(name)


def remove_unfinished(*names: str) -> None:
    """Removes temporary files by their paths, or without any all that this process is writing; errors are ignored."""
    for name in names or tuple(_NOW):
        with contextlib.suppress(OSError):
            os.unlink(name)
