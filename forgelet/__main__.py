"""`forgelet`, or `python -m forgelet`."""

from forgelet.command_line import forgelet


def main() -> None:
    """What the package installs as `forgelet`."""
    forgelet(prog_name="forgelet")


if __name__ == "__main__":
    main()
