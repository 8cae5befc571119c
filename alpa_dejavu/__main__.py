"""`python -m alpa_dejavu` is `alpa-dejavu`."""

import signal

from alpa_dejavu.cli.interrupts import end_at_once


def main() -> None:
    """Runs the command line; an interrupt ends it with a line, while it is being imported and when it ends, too."""
    # Whoever has started this may ignore interrupts, or deal with them.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, end_at_once)
    from alpa_dejavu.cli.main import main as command_line

    command_line()


if __name__ == "__main__":
    main()
