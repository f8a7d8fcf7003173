"""What an operator sets about what is said of commits, what jobs are given, and what they report."""

from typing import ClassVar

import typed_settings
from typed_settings import option

from api_server.repository_settings import RepositorySettings
from common.setting_forms import count, size


@typed_settings.settings(frozen=True, kw_only=True)
class JobSettings(RepositorySettings):
    """Commit statuses, variables of the instance, reports of tests."""

    reloaded: ClassVar[frozenset[str]] = RepositorySettings.reloaded | {
        "instance_variables_limit",
        "commit_statuses_limit",
        "test_cases_limit",
        "test_report_limit",
    }

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
