"""The course of an attack: made in a process of its own, beside somebody innocent, until it is over and forgotten."""

import asyncio
import json
import subprocess
import sys
from collections import Counter

import aiohttp

from scripts.abuse import innocent
from scripts.abuse.ground import Ground
from scripts.abuse.report import LEFT, Outcome
from scripts.abuse.watching import Held, longest_step

#: How long is waited for what an attack has left behind to go away.
SETTLE_SECONDS = 60
END_SECONDS = 30
CROWD = 50
CROWD_SECONDS = 1


def felt_in_quiet(ground: Ground, seconds: int) -> innocent.Felt:
    """What the innocent client feels while nobody attacks; afterwards both servers hold what they keep open."""
    asyncio.run(_crowd(ground))
    return asyncio.run(_beside(ground, None, seconds))


async def _crowd(ground: Ground) -> None:
    """Many clients for a moment: pools of connections grow to their size once, and that is no leak."""
    felt = innocent.Felt()
    tasks = [
        asyncio.create_task(innocent.work(ground.innocent_urls, ground.innocent, felt)) for _ in range(CROWD)
    ]
    await asyncio.wait(tasks, timeout=CROWD_SECONDS)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


def made(name: str, ground: Ground, seconds: int, quiet: innocent.Felt, before: tuple[Held, Held]) -> Outcome:
    """Makes the attack for this long; `before` is what the servers held when nobody had attacked yet."""
    command = [sys.executable, "-P", "-m", "scripts.abuse.attack", name]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as attacker:
        assert attacker.stdin is not None
        attacker.stdin.write(ground.place.to_json())
        attacker.stdin.close()
        attacker.stdin = None
        with ground.api, ground.edge:
            felt = asyncio.run(_beside(ground, attacker, seconds))
        attacker.terminate()
        try:
            said, _ = attacker.communicate(timeout=END_SECONDS)
        except subprocess.TimeoutExpired:
            attacker.kill()
            said, _ = attacker.communicate()
    after = asyncio.run(_settled(ground, before))
    return Outcome(
        name=name,
        answers=Counter(json.loads(said)) if said else Counter({"the attack itself failed": 1}),
        quiet=quiet,
        felt=felt,
        api=ground.api.peak,
        edge=ground.edge.peak,
        before=before,
        after=after,
    )


async def _beside(ground: Ground, attacker: "subprocess.Popen[str] | None", seconds: int) -> innocent.Felt:
    """What the innocent client feels for this long, or until the attacker has failed."""
    felt = innocent.Felt()
    work = asyncio.create_task(innocent.work(ground.innocent_urls, ground.innocent, felt))
    servers = {ground.place.api_url: ground.api, ground.place.edge_url: ground.edge}
    async with aiohttp.ClientSession() as http:
        looking = [
            asyncio.create_task(longest_step(http, f"{url}/-/liveness", server.pid))
            for url, server in servers.items()
        ]
        for _ in range(seconds * 10):
            await asyncio.sleep(0.1)
            if attacker is not None and attacker.poll() is not None:
                break
        # An answer that is waited for is part of what was felt.
        await asyncio.wait({work}, timeout=0.1)
        for task in (work, *looking):
            task.cancel()
        await asyncio.wait({work})
        for server, task in zip(servers.values(), looking, strict=True):
            server.peak.step = await task
    return felt


async def _settled(ground: Ground, before: tuple[Held, Held]) -> tuple[Held, Held]:
    """What the servers hold when what the attack has left has had its time to go."""
    for _ in range(SETTLE_SECONDS * 2):
        after = ground.held()
        if all(
            now.children <= then.children
            and now.descriptors <= then.descriptors
            and now.memory <= then.memory + LEFT
            for now, then in zip(after, before, strict=True)
        ):
            break
        await asyncio.sleep(0.5)
    return after
