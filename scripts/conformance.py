"""Run the public HTTP cache conformance suite against the edge and count the tests that pass.

The suite is not part of this project. Get a checkout of github.com/http-tests/cache-tests, run `npm install` in it
(Node 20 or newer), and give its directory: `scripts/conformance ../cache-tests`. A run takes about a minute.
"""

import argparse
import asyncio
import collections
import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any, Final

from common import logs
from common.serving import serving
from storage_edge.app import create_app, served
from storage_edge.settings import Settings

#: Makes the suite's paths those of raw files.
PREFIX: Final = "/conformance/suite/-/raw/main"
#: Tests of features that this edge does not have by design: methods other than GET, HEAD and OPTIONS, arbitrary query
#: parameters, and cookies in stored answers.
NOT_APPLICABLE: Final = re.compile(r"invalidate-.*|method-POST|query-args-.*|other-set-cookie|.*-Set-Cookie")
KINDS: Final = ("required", "optimal", "check")
PASSED: Final = frozenset({"✅", "Y"})
#: The reason why a test did not pass, by the suite's symbol.
REASONS: Final = {
    "⚪️": "needs another one that failed",
    "🔹": "setup failed",
    "↻": "retried",
    "⁉️": "no result",
}


def is_applicable(test: dict[str, Any]) -> bool:
    """Return whether the test is about a feature that an edge for static objects has."""
    return NOT_APPLICABLE.fullmatch(test["id"]) is None


async def run(checkout: Path) -> list[dict[str, Any]]:
    """Return the suite's results against a fresh edge, one entry for each test."""
    node = await asyncio.create_subprocess_exec(
        "node",
        "--no-warnings",
        str(Path(__file__).with_suffix(".mjs")),
        str(checkout),
        PREFIX,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=2**24,
    )
    assert node.stdin is not None
    assert node.stdout is not None
    origin = json.loads(await node.stdout.readline())["origin"]
    settings = Settings(
        port=0,
        origin=origin,
        access_log=False,
        forward_all_headers=True,
        negative_seconds=0.0,
        stale_when_unreachable=3600.0,
        origin_check_interval=0.0,
    )
    try:
        async with serving(served(create_app(settings), settings)) as (host, port):
            node.stdin.write(f"http://{host}:{port}\n".encode())
            results = json.loads(await node.stdout.readline())
    finally:
        node.stdin.close()
        await node.wait()
    return list(results)


def summary(results: list[dict[str, Any]]) -> str:
    """Return how many of the applicable tests passed, by suite and kind, and then every test that did not pass."""
    applicable = [test for test in results if is_applicable(test)]
    lines = [f"{len(applicable)} of {len(results)} tests are applicable.", ""]
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for test in applicable:
        for suite in (test["suite"], "all"):
            counts[suite][test["kind"]] += 1
            counts[suite][test["kind"] + " passed"] += test["symbol"] in PASSED
    for suite, count in counts.items():
        cells = (f"{count[kind + ' passed']:>4}/{count[kind]:<4}" for kind in KINDS)
        lines.append(f"{suite:<20}" + "".join(cells))
    lines += ["", "Not passed:"]
    for test in applicable:
        if test["symbol"] not in PASSED:
            reason = REASONS.get(test["symbol"]) or test["result"][1]
            lines.append(f"  {test['kind']:<9}{test['id']}: {reason}")
    return "\n".join(lines)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkout", type=Path, help="directory of http-tests/cache-tests")
    arguments = parser.parse_args()
    if shutil.which("node") is None:
        sys.exit("The suite needs Node 20 or newer, which was not found.")
    if not (arguments.checkout / "test-engine" / "client" / "runner.mjs").is_file():
        sys.exit(f"{arguments.checkout} is no checkout of http-tests/cache-tests.")
    logs.configure("console", "ERROR")
    print(summary(asyncio.run(run(arguments.checkout.resolve()))))


if __name__ == "__main__":
    main()
