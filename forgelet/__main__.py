"""`forgelet`, or `python -m forgelet`."""

from common import logs
from forgelet.command_line import forgelet


def main() -> None:
    """What the package installs as `forgelet`."""
    logs.configure("console", "WARNING")  # what the parts log; standard output is for answers
    forgelet(prog_name="forgelet")


if __name__ == "__main__":
    main()
