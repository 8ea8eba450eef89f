"""`python -m mrfrec`, and the command `mrfrec`."""

import signal


def main() -> None:
    """Run the command line. Ctrl-C ends the process at once while it is being imported."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not if it is ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from mrfrec.cli import main as run

    run()


if __name__ == "__main__":  # not in the processes that it starts
    main()
