"""Variables that people give to what runs: only from the role on that the project asks for
(`ci_pipeline_variables_minimum_override_role`)."""

from collections.abc import Iterable, Sequence

from api_server.ci.config.errors import ConfigError
from api_server.ci.config.variables import Variable
from api_server.ci.pipelines.creation_queries import Subject
from api_server.ci.variables import rules
from api_server.namespaces.resources import Project
from api_server.web.errors import forbidden, invalid

#: What the service makes of a request that fires a trigger, itself.
PAYLOAD = "TRIGGER_PAYLOAD"
REFUSAL = "Insufficient permissions to set pipeline variables"
_TRIGGERED = frozenset({"trigger", "pipeline"})
_JUDGED_BEFORE = frozenset({"parent_pipeline", "schedule"})


def check_may_give(project: Project, variables: Sequence[object]) -> None:
    """To be called before variables are kept for a job or a schedule of the project. Raises 403."""
    if variables and not project.takes_variables:
        raise forbidden()


def check_keys(keys: Iterable[str]) -> None:
    """Raises 400 for the first that no shell would take for one."""
    for key in keys:
        if found := rules.problems(rules.Values(key=key, value="")):
            raise invalid(found)


def check_may_begin_with(subject: Subject, source: str, variables: Sequence[Variable]) -> None:
    """Of each new pipeline, whatever starts it. Raises `ConfigError`, also for keys that no shell would take for one.
    Children have those of their own project's file, which everybody may run, and schedules what they were given when
    that was allowed."""
    if source in _JUDGED_BEFORE:
        return
    given = variables if source not in _TRIGGERED else [one for one in variables if one.key != PAYLOAD]
    if given and not subject.takes_variables:
        raise ConfigError(REFUSAL)
    for one in variables:
        for name, texts in rules.problems(rules.Values(key=one.key, value="")).items():
            raise ConfigError(*(f"Variables {name} {text}" for text in texts))
