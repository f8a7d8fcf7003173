"""From a configuration to the plan of one pipeline: workflow rules, each job's rules, variables, order."""

import time
from collections.abc import Mapping
from typing import Any

from attrs import evolve

from api_server.ci.config import checks, rules
from api_server.ci.config.checks import MAX_NAME, flatten
from api_server.ci.config.configuration import Configuration, inherits, read
from api_server.ci.config.context import Context
from api_server.ci.config.errors import CiConfigError
from api_server.ci.config.jobs import build_job, variables_of
from api_server.ci.config.needs import needs_of, resolve_needs
from api_server.ci.config.parallel import Instance, instances
from api_server.ci.config.plan import AutoCancel, Need, Plan, PlannedJob, size
from api_server.ci.config.variables import Variable, expand, overlay
from api_server.ci.config.yaml_text import dump

MAX_JOBS = 1000
MAX_TRIGGERS = 100
#: Maximum number of variables of all jobs together, counting each job's own.
MAX_VARIABLES = 50_000
#: For one job, which is read and stored as a whole whenever its state changes.
MAX_JOB_VARIABLES = 1000
MAX_JOB_BYTES = 8 * 1024 * 1024
#: Maximum bytes of all jobs in their stored form.
MAX_JOBS_BYTES = 32 * 1024 * 1024
#: Maximum processor time for the jobs of one file, each of which expands all variables.
MAX_SECONDS = 10.0
NO_JOBS = (
    "Pipeline will not run for the selected trigger. "
    "The rules configuration prevented any jobs from being added to the pipeline."
)
FILTERED = "Pipeline filtered out by workflow rules."


def plan_pipeline(text: str, context: Context) -> Plan:
    """Return the jobs that the configuration `text` gives a pipeline in `context`. Raise CiConfigError if it
    is refused.

    It has no side effects, but calls the callbacks of `context.repository`. It takes milliseconds for usual
    files, but for the largest accepted ones so long that a server should call it outside its event loop.
    """
    return plan(read(text, context), context)


def plan(configuration: Configuration, context: Context) -> Plan:
    """Return the plan like `plan_pipeline`, for a configuration that has been read."""
    variables = variables_of(configuration.merged.get("variables"))
    workflow = configuration.merged.get("workflow") or {}
    auto_cancel = dict(workflow.get("auto_cancel") or {})
    if workflow.get("rules") is not None:
        rule = rules.first_match(_flat(workflow["rules"]), context.values(variables), context)
        if rule is None or rule.get("when") == "never":
            return Plan(stages=configuration.stages, reason=FILTERED)
        variables = tuple(overlay(variables, variables_of(rule.get("variables"))))
        auto_cancel |= rule.get("auto_cancel") or {}
    planner = _Planner(configuration, context, variables, default_refs=workflow.get("rules") is None)
    jobs = resolve_needs(*planner.jobs())
    if all(job.stage in {".pre", ".post"} for job in jobs):
        return Plan(stages=configuration.stages, reason=NO_JOBS)
    name = workflow.get("name")
    return Plan(
        stages=configuration.stages,
        jobs=tuple(sorted(jobs, key=lambda job: job.stage_index)),
        auto_cancel=AutoCancel(**auto_cancel),
        name=expand(name, context.public.values(variables)).strip()[:MAX_NAME] or None if name else None,
    )


def every_job(configuration: Configuration, context: Context) -> list[PlannedJob]:
    """Return all jobs of the file in the order of their stages, also those that rules would exclude, however
    many there are. Raise CiConfigError."""
    variables = variables_of(configuration.merged.get("variables"))
    planner = _Planner(configuration, context, variables, by_rules=False)
    return sorted(resolve_needs(*planner.jobs()), key=lambda job: job.stage_index)


def _needs(
    plan: PlannedJob, rule: Mapping[str, Any], instance: Instance, of_job: Any
) -> tuple[Need, ...] | None:
    """Return the jobs that the job waits for: those of its rule, or else its own (`of_job`).

    A bridge that mirrors a pipeline starts with its stage, as in GitLab.
    """
    if plan.upstream is not None:
        return None
    return needs_of(instance.written_out(rule["needs"]) if "needs" in rule else of_job)


def child_configuration(files: tuple[Any, ...]) -> str:
    """Return the configuration of the child pipeline that `Trigger.include` asks for."""
    return dump({"include": files})


def _flat(value: Any) -> list[Mapping[str, Any]]:
    return flatten(value) or []


class _Planner:
    def __init__(
        self,
        configuration: Configuration,
        context: Context,
        variables: tuple[Variable, ...],
        *,
        by_rules: bool = True,
        default_refs: bool = False,
    ) -> None:
        self._configuration = configuration
        self._stages = {stage: index for index, stage in enumerate(configuration.stages)}
        self._context = context
        self._public = context.public
        self._variables = variables
        self._variables_left = MAX_VARIABLES
        self._bytes_left = MAX_JOBS_BYTES
        self._until = time.thread_time() + MAX_SECONDS
        #: Whether rules exclude jobs, and the number of the others is limited.
        self._by_rules = by_rules
        #: Whether a job without `rules`, `only` and `except` runs only for branches and tags.
        self._default_refs = default_refs

    def jobs(self) -> tuple[dict[str, PlannedJob], dict[str, list[str]]]:
        """Return the jobs of this pipeline by name, and the names that each job of the file stands for:
        several with `parallel`. Of two jobs with the same name the later one counts, whatever its rules
        say."""
        families: dict[str, list[str]] = {}
        sources: dict[str, tuple[dict[str, Any], Instance]] = {}
        for family, job in self._configuration.jobs.items():
            several = instances(family, job.get("parallel"))
            families[family] = [instance.name for instance in several]
            sources.update((instance.name, (job, instance)) for instance in several)
        jobs: dict[str, PlannedJob] = {}
        triggers = 0
        for name, (job, instance) in sources.items():
            planned_job = self._plan_job(job, instance)
            if planned_job is None:
                continue
            jobs[name] = planned_job
            if not self._by_rules:
                continue
            triggers += planned_job.trigger is not None
            if len(jobs) > MAX_JOBS:
                raise CiConfigError(f"The number of jobs exceeds the limit of {MAX_JOBS}")
            if triggers > MAX_TRIGGERS:
                raise CiConfigError(f"The number of trigger jobs exceeds the limit of {MAX_TRIGGERS}")
        return jobs, families

    def _plan_job(self, job: Mapping[str, Any], instance: Instance) -> PlannedJob | None:
        """Return the job, or None if its rules exclude it from this pipeline."""
        if time.thread_time() > self._until:
            raise CiConfigError(f"The jobs take more than {MAX_SECONDS:.0f} seconds to plan")
        inherited = inherits(job, "variables", [variable.key for variable in self._variables])
        variables = tuple(
            overlay(
                (variable for variable in self._variables if variable.key in inherited),
                variables_of(job.get("variables")),
                instance.variables,
            )
        )
        if len(variables) > MAX_JOB_VARIABLES:
            raise CiConfigError(f"{instance.name} job: there are more than {MAX_JOB_VARIABLES} variables")
        self._variables_left -= len(variables)
        if self._variables_left < 0:
            raise CiConfigError(f"The jobs have more than {MAX_VARIABLES} variables in all")
        values = self._context.values_in_job(instance.name, job["stage"], variables)
        rule = self._rule(job, values)
        if rule is None:
            return None
        job = {**job, "needs": instance.written_out(job.get("needs"))}
        if rule.get("variables"):
            variables = tuple(overlay(variables, variables_of(rule["variables"])))
        if rule.get("variables") or self._public is not self._context:
            values = self._public.values_in_job(instance.name, job["stage"], variables)
        plan = build_job(instance.name, job, variables, values, self._context)
        if (bytes_used := size(plan)) > MAX_JOB_BYTES:
            raise CiConfigError(f"{instance.name} job: it is more than {MAX_JOB_BYTES} bytes")
        self._bytes_left -= bytes_used
        if self._bytes_left < 0:
            raise CiConfigError(f"The jobs are more than {MAX_JOBS_BYTES} bytes in all")
        return evolve(
            plan,
            stage_index=self._stages[job["stage"]],
            node_index=instance.index,
            node_total=instance.total,
            needs=_needs(plan, rule, instance, job["needs"]),
            dependencies=None if job.get("dependencies") is None else tuple(job["dependencies"]),
            when=rule["when"],
            start_in=checks.parse_duration(rule["start_in"]) if rule["when"] == "delayed" else None,
            allow_failure=rule.get("allow_failure", plan.allow_failure),
            allow_failure_exit_codes=() if "allow_failure" in rule else plan.allow_failure_exit_codes,
            interruptible=rule.get("interruptible", plan.interruptible),
        )

    def _rule(self, job: Mapping[str, Any], values: Mapping[str, str]) -> dict[str, Any] | None:
        """Return the rule that includes the job in the pipeline, always with `when`, or None if the job is
        excluded."""
        rule: dict[str, Any] = {"when": job.get("when", "on_success"), "start_in": job.get("start_in")}
        if not self._by_rules:
            return rule
        if "rules" in job:
            match = rules.first_match(_flat(job["rules"]), values, self._context)
            if match is None:
                return None
            rule |= {key: value for key, value in match.items() if value is not None}
        elif self._by_refs(job) and not rules.allowed_by_refs(job, values, self._context):
            return None
        return None if rule["when"] == "never" else rule

    def _by_refs(self, job: Mapping[str, Any]) -> bool:
        return self._default_refs or "only" in job or "except" in job
