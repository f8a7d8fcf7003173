"""The command line `forgelet`."""

from pathlib import Path

#: The packages of both processes in an installed forgelet, whose only top-level package is `forgelet`. A checkout has
#: no such folder: there they lie beside this package.
SERVERS = Path(__file__).resolve().parent / "servers"
