"""The templates of pages, which escape what they are given."""

from __future__ import annotations

from importlib import resources

import jinja2

__all__ = ["template"]


def template(name: str) -> jinja2.Template:
    """Returns a page's template by the name of its file; whatever it is given is escaped."""
    files = resources.files("alpa_dejavu.report")
    loader = jinja2.FunctionLoader(lambda name: files.joinpath(name).read_text(encoding="utf-8"))
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)
    environment.policies["json.dumps_kwargs"] = {"sort_keys": False, "allow_nan": False}
    return environment.get_template(name)
