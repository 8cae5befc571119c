"""A state's leaves as an NPZ file: written whole, read without unpickling, checked against the layout."""

from __future__ import annotations

import io
import pathlib
import zipfile

import numpy as np

from alpa_dejavu._json_file import write_whole_bytes
from alpa_dejavu.initialization._layout import Array, Layout, Leaves


def write_leaves(path: pathlib.Path, leaves: Leaves) -> None:
    """Raises ValueError if it can't be written."""
    content = io.BytesIO()
    np.savez(content, **{f"leaf_{n}": _plain(leaf) for n, leaf in enumerate(leaves)})
    write_whole_bytes(path, content.getvalue())


def read_leaves(path: pathlib.Path, layout: Layout) -> Leaves:
    """Raises ValueError if the file isn't there, is no such file, or holds another layout's state."""
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            found = {name: file[name] for name in file.files}
    except (OSError, ValueError, zipfile.BadZipFile, EOFError) as error:
        raise ValueError(f"{path} can't be read as a state: {error}; give the NPZ file that was written beside the "
                         "result") from None  # fmt: skip
    if set(found) != {f"leaf_{n}" for n in range(len(layout.leaves))}:
        raise ValueError(
            f"{path} holds {len(found)} arrays, but the state has {len(layout.leaves)}; give the model that "
            "the file was written for"
        )
    leaves = []
    for n, tensor in enumerate(layout.leaves):
        leaf = found[f"leaf_{n}"]
        plain = _plain(np.empty(0, tensor.dtype)).dtype
        if leaf.shape != tensor.shape or leaf.dtype != plain:
            raise ValueError(
                f"{path} holds {leaf.dtype}{list(leaf.shape)} for {tensor.name}, which is "
                f"{tensor.dtype}{list(tensor.shape)}; give the model that the file was written for"
            )
        leaves.append(leaf if plain == tensor.dtype else leaf.view(tensor.dtype))
    return tuple(leaves)


def _plain(leaf: Array) -> Array:
    """Numbers that numpy hasn't, as bfloat16, by their bits: a file of numpy forgets what they are."""
    leaf = np.asarray(leaf)
    return leaf.view(f"u{leaf.dtype.itemsize}") if leaf.dtype.kind == "V" else leaf
