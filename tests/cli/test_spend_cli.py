"""`alpa-dejavu spend`: what it prints, writes and refuses."""
from click.testing import CliRunner

from alpa_dejavu.cli.main import main


def test_the_help_has_two_examples():
    told = CliRunner().invoke(main, ["spend", "--help"]).stdout
    assert told.count("alpa-dejavu spend --model") == 2
