"""Crowds: clients that read one object at once, and runners that work."""

import asyncio
import select
import socket
import time
from typing import Any

import aiohttp

from forgelet.local.api_client import Api

LONGEST = 300.0  # seconds
_PIECE = 1 << 20


def read(port: int, path: str, clients: int, length: int) -> None:
    """All of them read a body of so many bytes to its end; raises `RuntimeError` where one of them does not."""
    head = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode()
    connections = {}
    poller = select.epoll()
    try:
        for _ in range(clients):
            connection = socket.create_connection(("127.0.0.1", port))
            connection.sendall(head)
            connection.setblocking(False)
            connections[connection.fileno()] = connection
            poller.register(connection, select.EPOLLIN)
        received = dict.fromkeys(connections, 0)
        _drain(poller, connections, received)
    finally:
        poller.close()
        for connection in connections.values():
            connection.close()
    if not all(length < count < length + 4096 for count in received.values()):  # with the head
        raise RuntimeError(f"Between {min(received.values())} and {max(received.values())} bytes have come.")


def _drain(poller: select.epoll, connections: dict[int, socket.socket], received: dict[int, int]) -> None:
    """The kernel throws the bytes away (MSG_TRUNC): nothing is copied."""
    nowhere, left, deadline = bytearray(_PIECE), len(connections), time.monotonic() + LONGEST
    while left:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{left} clients are not served after {LONGEST:.0f} s.")
        for number, _ in poller.poll(1):
            try:
                count = connections[number].recv_into(nowhere, _PIECE, socket.MSG_TRUNC)
            except BlockingIOError:
                continue
            received[number] += count
            if count == 0:
                poller.unregister(number)
                left -= 1


POLLING = 20
LINE = b"a line of a log, as long as it takes\n"


def project_with_jobs(api: Api, number: int, name: str) -> tuple[int, str]:
    """A new project, and the token of a runner for that many pending jobs of it."""
    project = int(api.post("projects", {"name": name})["id"])
    text = "".join(f"job{index}: {{script: make}}\n" for index in range(number))
    body = {"branch": "main", "content": text, "commit_message": "Begin [ci skip]"}
    api.post(f"projects/{project}/repository/files/%2Egitlab-ci%2Eyml", body)
    api.post(f"projects/{project}/pipeline", {"ref": "main"})
    wanted = {"runner_type": "project_type", "project_id": project}
    return project, str(api.post("user/runners", wanted)["token"])


async def take_all(base_url: str, token: str, number: int) -> list[dict[str, Any]]:
    """All jobs, by POLLING runners that ask at the same time."""
    taken: list[dict[str, Any]] = []

    async def poll(session: aiohttp.ClientSession, system: int) -> None:
        body = {"token": token, "system_id": f"s_{system}"}
        while len(taken) < number:
            async with session.post(f"{base_url}/api/v4/jobs/request", json=body) as answer:
                if answer.status != 201:
                    return
                taken.append(await answer.json())

    async with aiohttp.ClientSession() as session:
        await asyncio.gather(*(poll(session, system) for system in range(POLLING)))
    if len(taken) != number:
        raise RuntimeError(f"{len(taken)} of {number} jobs were handed out.")
    return taken


async def append(base_url: str, job: dict[str, Any], size: int) -> None:
    """So many bytes at the beginning of a job's log."""
    headers = {"JOB-TOKEN": job["token"], "Content-Range": f"0-{size - 1}"}
    piece = (LINE * (size // len(LINE) + 1))[:size]
    url = f"{base_url}/api/v4/jobs/{job['id']}/trace"
    async with aiohttp.ClientSession() as session, session.patch(url, data=piece, headers=headers) as answer:
        if answer.status != 202:
            raise RuntimeError(f"An append was answered {answer.status}.")


def job_with_log(api: Api, size: int = 4096) -> dict[str, Any]:
    """A running job of a project with an agent: `id`, `token` and `project_id`."""
    project, token = project_with_jobs(api, 1, "ci")
    api.post(f"projects/{project}/cluster_agents", {"name": "agent"})
    [job] = asyncio.run(take_all(api.base_url, token, 1))
    asyncio.run(append(api.base_url, job, size))
    return {"id": job["id"], "token": job["token"], "project_id": project}
