"""The service that the status checks of the demo ask: for every commit it says which of them passed."""

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from forgelet.local.demo_data import encoded
from forgelet.testing.api import Api, ApiError

HOST = "127.0.0.1"
#: By the name of a check: the file without which it fails; None for one that always passes.
CHECKS = {"Security scan": None, "Licence check": "LICENSE"}
_LONGEST = 2**20


@contextlib.contextmanager
def receiving(owner: Api, port: int) -> Iterator[int]:
    """For the length of the block, at `port` if that is free; gives the port. Raise OSError."""

    class Handler(BaseHTTPRequestHandler):
        timeout = 10.0

        def do_POST(self) -> None:
            try:
                length = min(int(self.headers["Content-Length"]), _LONGEST)
                _judge(owner, self.rfile.read(length))
            except (ApiError, OSError, KeyError, TypeError, ValueError):
                self.send_error(400)
                return
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_arguments: object) -> None:
            """Nothing: the service shows what it has sent."""

    try:
        server = ThreadingHTTPServer((HOST, port), Handler)
    except OSError:
        server = ThreadingHTTPServer((HOST, 0), Handler)
    with server:
        threading.Thread(target=server.serve_forever, name="demo checks", daemon=True).start()
        try:
            yield server.server_port
        finally:
            server.shutdown()


def _judge(owner: Api, body: bytes) -> None:
    """Answer the check that has sent `body`, about the newest commit of its merge request."""
    sent = json.loads(body)
    check, about = sent["external_approval_rule"], sent["object_attributes"]
    path, sha = f"projects/{int(sent['project']['id'])}", about["last_commit"]["id"]
    needed = CHECKS[check["name"]]
    passes = needed is None or owner.find(f"{path}/repository/files/{encoded(needed)}?ref={sha}") is not None
    owner.post(
        f"{path}/merge_requests/{int(about['iid'])}/status_check_responses",
        {"external_status_check_id": check["id"], "sha": sha, "status": "passed" if passes else "failed"},
    )
