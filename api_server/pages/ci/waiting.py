"""The reason why a pending job waits, in one sentence, with the page on which that can be changed."""

import attrs
from aiohttp import web

from api_server.namespaces.resources import Project
from api_server.pages.ci import queries
from api_server.pages.ci.queries import WaitingJob
from api_server.web import context
from api_server.web.routes import Role


@attrs.frozen
class Reason:
    """The reason why a job waits. `is_stuck` says that no runner takes it until somebody does something. `link` is a
    title and an address, or None if there is nothing that the visitor can change."""

    text: str
    is_stuck: bool = True
    link: tuple[str, str] | None = None


async def reasons(request: web.Request, project: Project, job_ids: list[int]) -> dict[int, Reason]:
    """Return the reasons why jobs wait, by id, for those of the jobs that are pending."""
    if not job_ids:
        return {}
    services = context.services(request)
    jobs = await queries.waiting_jobs(services.database, job_ids, star_is_any=services.settings.testing)
    return {job.job_id: reason(job, project) for job in jobs}


def reason(job: WaitingJob, project: Project) -> Reason:
    """Return the reason why a pending job waits: the first obstacle for runners that could take it."""
    settings = f"/{project.full_path}/-/settings"
    runners = ("Project runners", f"{settings}/ci_cd#runners")
    text, link = _first_obstacle(job, project, runners)
    if not text:
        return Reason("Waiting for a free runner.", is_stuck=False)
    return Reason(text, link=link if project.role >= Role.MAINTAINER else None)


def _first_obstacle(
    job: WaitingJob, project: Project, runners: tuple[str, str]
) -> tuple[str, tuple[str, str] | None]:
    """Return a sentence and a link to the page on which to change it, or "" and None if a runner may take the job."""
    base = f"/{project.full_path}/-"
    if project.archived:
        return "The project is archived, so runners do not run its jobs.", (
            "General settings",
            f"{base}/edit",
        )
    if not job.is_open:
        text = "CI/CD is disabled for the project, so runners do not run its jobs."
        return text, ("General settings", f"{base}/edit")
    if not job.runners:
        return "The project has no runners.", runners
    if not job.with_tags and job.tag_list:
        tags = ", ".join(job.tag_list)
        return (
            f"No runner of the project has the {'tag' if len(job.tag_list) == 1 else 'tags'} {tags}.",
            runners,
        )
    if not job.with_tags:
        return "The job has no tags, and no runner of the project runs untagged jobs.", runners
    if not job.of_ref:
        text = f"The matching runners run jobs of protected branches and tags only, and {job.ref} is not protected."
        return text, ("Protected branches", f"{base}/settings/repository#branches")
    if not job.active:
        return "All matching runners are paused.", runners
    if not job.online:
        only = job.active == 1
        subject = "The only matching runner" if only else "None of the matching runners"
        if job.last_seen is None:
            return (
                f"{subject} has {'not ' if only else ''}been started yet. Start the runner with its token.",
                runners,
            )
        when = f"last contacted the service at {job.last_seen:%Y-%m-%d %H:%M} UTC"
        when = when if only else f"is online; the last one {when}"
        return f"{subject} {when}. Restart the runner and check its log.", runners
    return "", None
