"""Model functions by name: the user's own, and what is wrong with a name."""

import sys
import textwrap

import pytest

from alpa_dejavu.layers import resolve, trace


def test_functions_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_own_model.py").write_text(
        textwrap.dedent("""
        def train(batch_size):
            raise LookupError(f"no data for {batch_size}")

        not_a_function = 3
        """)
    )
    (tmp_path / "broken_model.py").write_text("import a_package_that_nobody_has")
    path = list(sys.path)
    assert callable(resolve("my_own_model:train"))
    with pytest.raises(LookupError, match="no data for 8"):
        trace("my_own_model:train", batch=8)
    with pytest.raises(ValueError, match="no function 'trian'; did you mean 'train'"):
        resolve("my_own_model:trian")
    with pytest.raises(TypeError, match="is int, not a function"):
        resolve("my_own_model:not_a_function")
    with pytest.raises(ValueError, match="no module 'my_one_model'"):
        resolve("my_one_model:train")
    with pytest.raises(ModuleNotFoundError, match="a_package_that_nobody_has"):
        resolve("broken_model:train")
    with pytest.raises(TypeError, match="the model is 3"):
        resolve(3)
    assert sys.path == path


@pytest.mark.parametrize(
    ("given", "remedy"),
    [("own.py:fn", "write own:fn"), ("sub/own.py:fn", "`cd sub`, and write own:fn"),
     ("gone.py:fn", r"there is no file 'gone.py'.*write gone:fn")],
)  # fmt: skip
def test_a_file_in_place_of_a_module_is_told_what_to_write(given, remedy, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    for path in ("own.py", "sub/own.py"):
        (tmp_path / path).write_text("def fn(batch_size): ...")
    with pytest.raises(ValueError, match=f"must be 'module:function'.*{remedy}"):
        resolve(given)


@pytest.mark.parametrize(
    ("given", "remedy"),
    [("net", "write net:train or net:other$"), ("net.py", "write net:train or net:other$"),
     ("sub/net", "`cd sub`, and write net:train or"), ("broken", "write broken:function$")],
)  # fmt: skip
def test_a_file_without_its_function_is_told_which_it_has(given, remedy, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    for path in ("net.py", "sub/net.py"):
        (tmp_path / path).write_text("def train(batch_size): ...\ndef _own(): ...\ndef other(batch_size): ...\n")
    (tmp_path / "broken.py").write_text("def train(")
    with pytest.raises(ValueError, match=f"model is '{given}', but must be 'module:function'.*{remedy}"):
        resolve(given)
    with pytest.raises(ValueError, match="there is no model named"):
        resolve("n" * 5000)
