"""`python -m alpa_dejavu` is `alpa-dejavu`."""

import contextlib
import os
import signal


def main() -> None:
    """Runs the command line; an interrupt ends it with a line, while it is being imported and when it ends, too."""
    # Whoever has started this may ignore interrupts, or deal with them.
    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ours:
        signal.signal(signal.SIGINT, _end)
    from alpa_dejavu.cli.main import main as command_line

    try:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        command_line()
    except KeyboardInterrupt:
        _end()
    finally:
        if ours:
            signal.signal(signal.SIGINT, _end)


def _end(*_: object) -> None:
    """Ends at once: nothing is open, and an exception might be caught by what is being imported."""
    with contextlib.suppress(OSError):
        os.write(2, b"Interrupted\n")
    os._exit(130)


if __name__ == "__main__":
    main()
