"""`/<project>/-/jobs/<id>/artifacts/`: what a job's archive holds, and its files."""

import attrs
from aiohttp import web

from api_server.ci.jobs import artifact_handlers
from api_server.ci.jobs.access import find_job
from api_server.ci.jobs.artifact_handlers import archive_of, check_may_read
from api_server.code.reading import counted_for
from api_server.namespaces.access import project
from api_server.namespaces.resources import Project
from api_server.pages import page
from api_server.pages.ci.jobs import OneJob
from api_server.pages.routes import Pages
from api_server.pages.sessions import Visitor
from api_server.web.errors import not_found
from api_server.web.routes import ask
from api_server.zip_files import ZIP_FILES

pages = Pages()

#: Files and folders that are listed at once.
MOST_ENTRIES = 1_000

_ONE = "/{project}/-/jobs/{id}/artifacts"


@attrs.frozen(kw_only=True)
class Place(OneJob):
    path: str = ""


@pages.get(f"{_ONE}/browse", access=project(opens="builds"))
@pages.get(f"{_ONE}/browse/{{path:.*}}", access=project(opens="builds"))
async def browse(request: web.Request, who: Visitor, wanted: Place, found: Project) -> web.Response:
    """A folder of the archive."""
    job = await find_job(request, found, wanted.id)
    archive = await archive_of(request, job.id)
    check_may_read(found, archive)
    path = wanted.path.strip("/")
    folder = await request.config_dict[ZIP_FILES].folder(
        archive.object_key, f"{path}/" if path else "", MOST_ENTRIES, *counted_for(request)
    )
    if path and not folder.folders and not folder.files:
        raise not_found("Folder")
    return page.answer(
        request,
        who,
        "ci/artifacts.html",
        project=found,
        tab="jobs",
        job=job,
        folder=folder,
        place=path,
        archive=archive,
    )


@pages.get(f"{_ONE}/download", access=project(opens="builds"))
async def download(request: web.Request, wanted: OneJob, found: Project) -> web.StreamResponse:
    """The archive."""
    return await ask(request, artifact_handlers.download, id=str(found.id), job_id=wanted.id)


@pages.get(f"{_ONE}/file/{{path:.+}}", access=project(opens="builds"))
@pages.get(f"{_ONE}/raw/{{path:.+}}", access=project(opens="builds"))
async def download_file(request: web.Request, wanted: Place, found: Project) -> web.StreamResponse:
    """One file of the archive."""
    return await ask(
        request, artifact_handlers.download_file, id=str(found.id), job_id=wanted.id, path=wanted.path
    )
