"""One attack in a process of its own: the place comes by standard input, what was answered goes to standard output."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections import Counter

from scripts.abuse.attacks import ATTACKS
from scripts.abuse.place import Place


async def attack(name: str, place: Place) -> "Counter[str]":
    """Goes on until SIGTERM."""
    answers: Counter[str] = Counter()
    task = asyncio.create_task(ATTACKS[name](place, answers))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task
    return answers


if __name__ == "__main__":
    os.nice(10)  # what is measured is the service, not who gets the processor
    print(json.dumps(asyncio.run(attack(sys.argv[1], Place.from_json(sys.stdin.read())))))
