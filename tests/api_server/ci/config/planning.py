"""Functions that plan a text, for the tests of the configuration language."""

from pathlib import Path

from api_server.ci.config.context import Context, OtherProject, Repository
from api_server.ci.config.errors import CiConfigError
from api_server.ci.config.pipeline import plan_pipeline
from api_server.ci.config.plan import Plan, PlannedJob
from api_server.ci.config.variables import Variable


def text_of(name: str) -> str:
    """Return a CI file of the folder `texts`."""
    return (Path(__file__).parent / "texts" / f"{name}.yml").read_text()


#: A job with every keyword.
FULL = text_of("full")

BRANCH = {
    "CI_COMMIT_BRANCH": "main",
    "CI_COMMIT_REF_NAME": "main",
    "CI_DEFAULT_BRANCH": "main",
    "CI_PIPELINE_SOURCE": "push",
    "CI_PROJECT_PATH": "group/app",
}
TAG = {
    "CI_COMMIT_TAG": "v1.0",
    "CI_COMMIT_REF_NAME": "v1.0",
    "CI_PIPELINE_SOURCE": "push",
    "CI_PROJECT_PATH": "group/app",
}
MERGE_REQUEST = {"CI_COMMIT_REF_NAME": "topic", "CI_PIPELINE_SOURCE": "merge_request_event"}


def context(predefined=None, given=None, files=None, changed=None) -> Context:
    files = files or {}
    return Context(
        predefined=tuple(Variable(*one) for one in (BRANCH if predefined is None else predefined).items()),
        overrides=tuple(Variable(*one) for one in (given or {}).items()),
        repository=Repository(
            read=files.get, content_id=files.get, paths=files.keys, changed=lambda: changed
        ),
    )


def only(repository: Repository) -> OtherProject:
    """Return a project that has this commit at each ref."""
    return OtherProject(at=lambda _: repository)


def plan(text: str, **kwargs) -> Plan:
    return plan_pipeline(text, context(**kwargs))


def jobs(text: str, **kwargs) -> dict[str, PlannedJob]:
    return {job.name: job for job in plan(text, **kwargs).jobs}


def job(text: str, **kwargs) -> PlannedJob:
    """Return the only job of a text."""
    (only,) = plan(text, **kwargs).jobs
    return only


def errors(text: str, **kwargs) -> tuple[str, ...]:
    try:
        plan(text, **kwargs)
    except CiConfigError as error:
        return error.errors
    return ()
