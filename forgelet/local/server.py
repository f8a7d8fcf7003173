"""`python -m forgelet.local.server api|edge`: one of the two servers, as `forgelet up` runs it.

What it imports takes most of its start. It does that while PostgreSQL starts, and goes on when its standard input ends,
by which it is given its settings: a JSON object of variables.
"""

import gc
import importlib
import json
import os
import sys

from forgelet import SERVERS

_SERVERS = {"api": "api_server.__main__", "edge": "storage_edge.__main__"}
#: Objects until garbage is looked for, of which imports make little: not at all would be 7 MB more.
_RARELY = 20_000


def main() -> None:
    """Run the server that the first argument names."""
    if SERVERS.is_dir():
        sys.path.insert(0, str(SERVERS))  # before a `common` of somebody else
    usual = gc.get_threshold()
    gc.set_threshold(_RARELY)
    server = importlib.import_module(_SERVERS[sys.argv[1]])
    gc.freeze()
    gc.set_threshold(*usual)
    given = sys.stdin.read()
    if not given:  # who has started this has ended, or thought better of it
        return
    os.environ.update(json.loads(given))
    server.main([], prog_name=f"forgelet {sys.argv[1]}")


if __name__ == "__main__":
    main()
