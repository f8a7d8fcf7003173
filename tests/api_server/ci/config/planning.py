"""Short ways to plan a text for the tests of the configuration language."""

from api_server.ci.config.context import Context, OtherProject, Repository
from api_server.ci.config.errors import CiConfigError
from api_server.ci.config.pipeline import plan_pipeline
from api_server.ci.config.plan import Plan, PlannedJob
from api_server.ci.config.variables import Variable

#: A job with every keyword.
FULL = """
default:
  after_script: [clean]
variables: {GREETING: 'hello $NAME', NAME: file}
build:
  image: {name: 'python:3.11', entrypoint: [''], pull_policy: if-not-present, docker: {user: app}}
  services:
    - postgres:15
    - {name: redis, alias: cache, command: [redis-server], variables: {X: 1}}
  before_script: [setup]
  script: |
    make
    make check
  timeout: 2h
  retry: {max: 2, when: [script_failure], exit_codes: [137]}
  hooks: {pre_get_sources_script: [echo before]}
  manual_confirmation: Really?
  id_tokens: {VAULT: {aud: 'https://$HOST'}, CLOUD: {aud: [one, two]}}
  coverage: '/TOTAL.*?(\\d+)%/i'
  allow_failure: {exit_codes: [3, 4]}
  interruptible: true
  tags: [linux]
  resource_group: one
  artifacts:
    name: $CI_JOB_NAME
    paths: [out/]
    exclude: [out/tmp]
    expire_in: 1 week
    when: always
    access: developer
    expose_as: the build
    reports: {junit: r.xml, coverage_report: {coverage_format: cobertura, path: c.xml}}
  cache: [{key: pip, paths: [.pip], policy: pull}, {paths: [x], unprotect: true}]
  environment:
    name: staging
    url: 'https://$CI_ENVIRONMENT_SLUG.example.org/$NAME'
    action: start
    auto_stop_in: 1 week
  release:
    tag_name: $CI_COMMIT_TAG
    description: 'The "first" one'
    milestones: [m1]
    released_at: '2026-01-02T03:04:05Z'
    assets: {links: [{name: a, url: 'https://example.org/a', link_type: package}]}
"""

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
        given=tuple(Variable(*one) for one in (given or {}).items()),
        repository=Repository(read=files.get, blob_id=files.get, paths=files.keys, changed=lambda: changed),
    )


def only(repository: Repository) -> OtherProject:
    """A project that has this commit at each ref."""
    return OtherProject(at=lambda _: repository)


def plan(text: str, **kwargs) -> Plan:
    return plan_pipeline(text, context(**kwargs))


def jobs(text: str, **kwargs) -> dict[str, PlannedJob]:
    return {job.name: job for job in plan(text, **kwargs).jobs}


def job(text: str, **kwargs) -> PlannedJob:
    """The one job of a text that has one."""
    (only,) = plan(text, **kwargs).jobs
    return only


def errors(text: str, **kwargs) -> tuple[str, ...]:
    try:
        plan(text, **kwargs)
    except CiConfigError as error:
        return error.errors
    return ()
