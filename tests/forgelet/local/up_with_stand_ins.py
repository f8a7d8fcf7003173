"""`forgelet up` with stand-ins for the API server and the edge."""

import functools
import sys
from pathlib import Path

from forgelet.command_line import forgelet
from forgelet.commands import up
from forgelet.local import supervisor

stand_in = str(Path(__file__).with_name("stand_in.py"))
planned = functools.partial(
    supervisor.Plan,
    api_command=(sys.executable, stand_in, "api"),
    edge_command=(sys.executable, stand_in, "edge"),
)
supervisor.CLOSING_SECONDS = 0.5
setattr(up, "Plan", planned)  # noqa: B010 - a type checker would refuse the assignment
forgelet(["up", *sys.argv[1:]], prog_name="forgelet")
