"""What a command imports: what it uses, and what takes long to import only once something is shown."""
from alpa_dejavu.calibration.history import HISTORY_ENV
from alpa_dejavu.cli.commands import sentences_of
from alpa_dejavu.cli.main import main
from alpa_dejavu.costs.memory_margin import DEFAULT_RISK


def test_help_lists_the_first_sentence_of_each_command():
    imported = {name: main.commands[name] for name in main.commands}
    assert sentences_of(main.commands) == sentences_of(imported)


def test_options_name_what_is_imported_later():
    options = {option.name: option for option in main.commands["plan"].params}
    assert f"[default: {DEFAULT_RISK}]" in options["risk"].help
    assert options["history"].envvar == HISTORY_ENV
