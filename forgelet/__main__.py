"""The entry point of `forgelet` and `python -m forgelet`."""

import signal
import sys

from forgelet import SERVERS


def main() -> None:
    """Run the command line, as the installed script `forgelet` does."""
    if sys.platform != "linux":
        sys.stderr.write(
            "Error: forgelet runs on Linux: elsewhere run it in a container or a virtual machine\n"
        )
        sys.exit(2)
    handler = signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C during imports must not print a traceback
    if SERVERS.is_dir():
        sys.path.insert(0, str(SERVERS))  # before another package that is named `common`
    from forgelet.command_line import COMMANDS, forgelet

    # Help and `up` log nothing, and should start fast.
    if not (COMMANDS.keys() - {"up"}).isdisjoint(sys.argv):
        from common import logs

        logs.configure("console", "WARNING")  # logs of the server's code; standard output is for answers
    signal.signal(signal.SIGINT, handler)
    forgelet(prog_name="forgelet")


if __name__ == "__main__":
    main()
