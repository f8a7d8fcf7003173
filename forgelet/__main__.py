"""`forgelet`, or `python -m forgelet`."""

import sys

from forgelet import SERVERS


def main() -> None:
    """What the package installs as `forgelet`."""
    if sys.platform != "linux":
        sys.stderr.write(
            "Error: forgelet runs on Linux: elsewhere run it in a container or a virtual machine\n"
        )
        sys.exit(2)
    if SERVERS.is_dir():
        sys.path.insert(0, str(SERVERS))  # before a `common` of somebody else
    from forgelet.command_line import COMMANDS, forgelet

    if not (COMMANDS.keys() - {"up"}).isdisjoint(sys.argv):  # help and `up` log nothing, and are waited for
        from common import logs

        logs.configure("console", "WARNING")  # what the parts log; standard output is for answers
    forgelet(prog_name="forgelet")


if __name__ == "__main__":
    main()
