"""forgelet, the command line: what an operator types."""

from pathlib import Path

#: Where the packages of both processes lie in an installed forgelet, whose only package of its own this is. There is no
#: such folder in a checkout, where they lie beside this one.
SERVERS = Path(__file__).resolve().parent / "servers"
