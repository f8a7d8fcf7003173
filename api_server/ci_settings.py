"""What an operator sets about pipelines and jobs: how many there may be, how long they are waited for."""

from typing import ClassVar

import typed_settings
from typed_settings import option

from api_server.repository_settings import RepositorySettings
from common.settings import count, size, whole_seconds


@typed_settings.settings(frozen=True, kw_only=True)
class CiSettings(RepositorySettings):
    """Pipelines, what makes them by itself, runners, commit statuses, reports of tests."""

    reloaded: ClassVar[frozenset[str]] = RepositorySettings.reloaded | {
        "archive_builds_older_than",
        "runner_timeout",
        "runner_poll_timeout",
        "artifacts_expire_in",
        "pipeline_rate_limit",
        "pipeline_hierarchy_size",
        "child_pipeline_depth",
        "triggers_limit",
        "schedules_limit",
        "instance_variables_limit",
        "commit_statuses_limit",
        "test_cases_limit",
        "test_report_limit",
    }

    archive_builds_older_than: int = option(
        default=0, metadata=whole_seconds(0), help="seconds after which jobs are archived; 0 is never"
    )
    runner_timeout: int = option(
        default=3600,
        metadata=whole_seconds(),
        help="seconds of silence after which a runner's job fails as stuck",
    )
    hand_out_timeout: int = option(
        default=60,
        metadata=whole_seconds(),
        help="seconds in which a runner has to be heard of after it got a job, which else goes to another, once",
    )
    runner_poll_timeout: int = option(
        default=30,
        metadata=whole_seconds(0),
        help="seconds that a runner's request for a job waits for one; 0 is not at all",
    )
    artifacts_expire_in: int = option(
        default=30 * 86400,
        metadata=whole_seconds(0),
        help="seconds until artifacts expire whose job says nothing; 0 is never",
    )
    pipeline_rate_limit: int = option(
        default=25,
        metadata=count(0),
        help="pipelines a minute of one user for one commit of a project; 0 is off",
    )
    git_push_pipeline_limit: int = option(
        default=4,
        metadata=count(0),
        help="branches and tags of one push that get a pipeline, the first ones; 0 is all",
    )
    pipeline_hierarchy_size: int = option(
        default=1000,
        metadata=count(),
        help="pipelines that one pipeline may have started, directly or not, itself included",
    )
    child_pipeline_depth: int = option(
        default=3,
        metadata=count(),
        help="pipelines of one project above one another: parent, child, grandchild",
    )
    triggers_limit: int = option(
        default=25_000, metadata=count(0), help="pipeline triggers of one project; 0 is no limit"
    )
    schedules_limit: int = option(
        default=10, metadata=count(0), help="pipeline schedules of one project; 0 is no limit"
    )
    instance_variables_limit: int = option(
        default=25, metadata=count(0), help="variables of the instance for CI/CD; 0 is no limit"
    )
    commit_statuses_limit: int = option(
        default=5000,
        metadata=count(0),
        help="jobs of a pipeline, its statuses included, beyond which no other system adds one; 0 is no limit",
    )
    test_cases_limit: int = option(
        default=100_000, metadata=count(), help="test cases of a pipeline's reports that are read"
    )
    test_report_limit: int = option(
        default=64 * 2**20,
        metadata=size(),
        help="bytes of a pipeline's test reports, unpacked, that are read",
    )
