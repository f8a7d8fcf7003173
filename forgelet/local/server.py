"""The API server or the edge as `forgelet up` runs it: `python -m forgelet.local.server api|edge`.

Imports take most of its start, so it does them while PostgreSQL starts. Then it reads its settings, a JSON object of
variables, from standard input to its end.
"""

import gc
import json
import os
import sys

from forgelet import SERVERS, import_quickly

_SERVERS = {"api": "api_server.__main__", "edge": "storage_edge.__main__"}


def main() -> None:
    """Run the server that the first argument names."""
    if SERVERS.is_dir():
        sys.path.insert(0, str(SERVERS))  # before another package that is named `common`
    server = import_quickly(_SERVERS[sys.argv[1]])
    gc.freeze()
    variables = sys.stdin.read()
    if not variables:  # the process that started this one has ended or given up
        return
    os.environ.update(json.loads(variables))
    server.main([], prog_name=f"forgelet {sys.argv[1]}")


if __name__ == "__main__":
    main()
