"""`python -m api_server`: the API server on its own, its database brought up to date first."""

import uvloop
from aiohttp import web

from api_server.app import create_app, served
from api_server.git.version import check_git
from api_server.settings import Settings
from api_server.state.migrate import migrate, unsuitable_database
from common import logs, settings
from common.mistakes import usable_folder
from common.object_stores import check_object_store
from common.serving import allow_files, serving, stopping


def serve(chosen: Settings) -> None:
    """Runs until SIGINT or SIGTERM. Raises `Mistake` where it cannot work."""
    logs.configure(chosen.log_format)
    usable_folder("The data directory", chosen.data_dir)
    if chosen.object_store_url:
        check_object_store("The object store", chosen.object_store_url)
    check_git()
    with unsuitable_database():
        migrate(chosen.database_url)
        uvloop.run(_serve(create_app(chosen), chosen))


async def _serve(app: web.Application, chosen: Settings) -> None:
    wanted = served(app, chosen)
    allow_files(wanted.connections)
    async with stopping() as stop, serving(wanted):
        await stop.wait()


if __name__ == "__main__":
    settings.command(Settings, section="api_server", env_prefix="FORGELET_API_", run=serve)()
