"""What is marked experimental: it is there, can still be chosen, and the page that shows why is there."""

import pathlib
import re

import pytest
from click.testing import CliRunner

from alpa_dejavu.cli.main import main
from alpa_dejavu.sharding import experimental as sharding
from alpa_dejavu.slicing import EXPERIMENTAL, SLICERS, Dynamic, experimental, slicer

ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.parametrize("command", ["plan", "replan"])
def test_experimental_slicers_can_be_chosen_and_help_says_so(command):
    assert set(EXPERIMENTAL) < set(SLICERS)
    assert not any(isinstance(slicer(name), Dynamic) for name in EXPERIMENTAL)
    said = " ".join(CliRunner().invoke(main, [command, "--help"]).output.split())
    assert "Experimental, no better than the default" in said
    assert all(name in said for name in EXPERIMENTAL)


@pytest.mark.parametrize("package", [experimental, sharding])
def test_an_experimental_package_names_the_page_of_its_figures(package):
    (page,) = re.findall(r"docs/results/\S+\.md", package.__doc__)
    assert package.__doc__.startswith("Experimental: ")
    assert (ROOT / page).is_file()
