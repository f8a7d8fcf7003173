"""`forgelet edge` as a process: what it has in memory."""

import json
import subprocess
import sys

from tests.support.checkout import CHECKOUT

PROGRAM = "import json, sys, forgelet.commands.edge; print(json.dumps([n for n in sys.modules if 'api_server' in n]))"


def test_an_edge_has_nothing_of_the_api_server() -> None:
    said = subprocess.run([sys.executable, "-c", PROGRAM], cwd=CHECKOUT, capture_output=True, check=True)
    assert json.loads(said.stdout) == []
