"""Two servers with the same repositories: ours, and `git http-backend` behind nginx by fcgiwrap."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import attrs

from scripts.bench.harness.measuring import listening, need
from scripts.bench.harness.runs import Bench
from scripts.bench.scene.many_rows import git, grow
from scripts.bench.scene.service import TOKEN, plain
from tests.support.ports import free_port

NGINX = """
daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/nginx.log; {user}
events {{ worker_connections 1024; }}
http {{
  access_log {folder}/access.log; client_max_body_size 0;
  client_body_temp_path {folder}/b; fastcgi_temp_path {folder}/f; proxy_temp_path {folder}/p;
  uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  server {{
    listen 127.0.0.1:{port};
    location / {{
      fastcgi_pass unix:{socket};
      fastcgi_param SCRIPT_FILENAME {backend};
      fastcgi_param GIT_PROJECT_ROOT {root};
      fastcgi_param GIT_HTTP_EXPORT_ALL "";
      fastcgi_param REMOTE_USER bench;
      fastcgi_param PATH_INFO $uri;
      fastcgi_param QUERY_STRING $query_string;
      fastcgi_param REQUEST_METHOD $request_method;
      fastcgi_param CONTENT_TYPE $content_type;
      fastcgi_param CONTENT_LENGTH $content_length;
    }}
  }}
}}
"""
#: Requests at once, as many as fcgiwrap has processes.
AT_ONCE = 4


@attrs.frozen
class GitServer:
    """`{url}/{name}.git` is a repository."""

    url: str


@contextlib.contextmanager
def source(bench: Bench) -> Iterator[dict[str, Path]]:
    """What both servers have: repositories of 5 MB and of 200 MB."""
    folder = bench.new_folder()
    found = {"small": folder / "small.git", "large": folder / "large.git"}
    for path, size in ((found["small"], 5_000_000), (found["large"], bench.size.large_repository)):
        grow(path, "main", size)
    yield found


@contextlib.contextmanager
def ours(bench: Bench) -> Iterator[GitServer]:
    """The API server, with public projects; pushes as the administrator."""
    running = bench.use(plain).running
    url = running.api.base_url.replace("://", f"://root:{TOKEN}@") + "/root"
    for name, path in bench.use(source).items():
        running.api.post("projects", {"name": name, "visibility": "public"})
        git(path, "push", "--quiet", f"{url}/{name}.git", "main")
    yield GitServer(url)


@contextlib.contextmanager
def http_backend(bench: Bench) -> Iterator[GitServer]:
    """`git http-backend`, run by fcgiwrap behind nginx; it asks nobody who he is."""
    need("nginx", "fcgiwrap")
    port, folder = free_port(), bench.new_folder()
    root, socket = folder / "root", folder / "socket"
    root.mkdir()
    for name, path in bench.use(source).items():
        subprocess.run(
            ["git", "clone", "--quiet", "--bare", "--no-local", path, root / f"{name}.git"], check=True
        )
        git(root / f"{name}.git", "config", "http.receivepack", "true")
    core = subprocess.run(["git", "--exec-path"], capture_output=True, text=True, check=True).stdout.strip()
    configuration = folder / "nginx.conf"
    user = "user root;" if os.geteuid() == 0 else ""
    backend = Path(core, "git-http-backend")
    text = NGINX.format(folder=folder, port=port, socket=socket, root=root, backend=backend, user=user)
    configuration.write_text(text)
    command = ["nginx", "-p", str(folder), "-c", str(configuration)]
    with fcgiwrap(socket), listening(command, port, folder / "log"):
        yield GitServer(f"http://127.0.0.1:{port}")


@contextlib.contextmanager
def fcgiwrap(socket: Path) -> Iterator[None]:
    """Runs it behind `socket`, and ends it with the processes that it has made, which outlive it by themselves."""
    command = ["fcgiwrap", "-c", str(AT_ONCE), "-s", f"unix:{socket}"]
    nothing = subprocess.DEVNULL
    with subprocess.Popen(command, stdout=nothing, stderr=nothing, start_new_session=True) as process:
        try:
            while not socket.exists():
                if process.poll() is not None:
                    raise RuntimeError("fcgiwrap does not start.")
                time.sleep(0.01)
            yield
        finally:
            os.killpg(process.pid, signal.SIGTERM)
