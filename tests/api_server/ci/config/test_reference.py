"""The list of all keywords: nothing of GitLab's reference is missing, and it says what the checks do."""

import pytest

from api_server.ci.config.keywords import DIFFERS, reference

from .planning import errors

#: GitLab's keyword reference; of what only there is, the topmost.
GITLAB = """
default include include:local include:project include:ref include:file include:remote include:integrity include:rules
include:template include:component include:inputs stages workflow workflow:auto_cancel
workflow:auto_cancel:on_new_commit workflow:auto_cancel:on_job_failure workflow:name workflow:rules workflow:rules:if
workflow:rules:variables workflow:rules:auto_cancel spec variables variables:value variables:description
variables:options variables:expand after_script allow_failure allow_failure:exit_codes artifacts artifacts:paths
artifacts:exclude artifacts:expire_in artifacts:expose_as artifacts:name artifacts:public artifacts:access
artifacts:reports artifacts:untracked artifacts:when before_script cache cache:paths cache:key cache:key:files
cache:key:prefix cache:untracked cache:unprotect cache:when cache:policy cache:fallback_keys coverage
dast_configuration dependencies environment environment:name environment:url environment:on_stop environment:action
environment:auto_stop_in environment:kubernetes environment:deployment_tier extends hooks
hooks:pre_get_sources_script identity id_tokens image image:name image:entrypoint image:docker image:kubernetes
image:pull_policy inherit inherit:default inherit:variables interruptible manual_confirmation needs needs:artifacts
needs:project needs:pipeline needs:optional needs:parallel needs:parallel:matrix pages publish parallel
parallel:matrix release
release:tag_name release:tag_message release:name release:description release:ref release:milestones
release:released_at release:assets release:assets:links resource_group retry retry:when retry:max retry:exit_codes
rules rules:if rules:changes rules:changes:paths rules:changes:compare_to rules:exists rules:exists:paths
rules:exists:project rules:when rules:allow_failure rules:needs rules:variables rules:interruptible run script secrets
services services:docker services:kubernetes services:pull_policy stage tags timeout trigger trigger:inputs
trigger:include trigger:project trigger:strategy trigger:forward when only only:refs only:variables only:changes
only:kubernetes except except:refs artifacts:reports:accessibility artifacts:reports:annotations
artifacts:reports:api_fuzzing artifacts:reports:browser_performance artifacts:reports:codequality
artifacts:reports:container_scanning artifacts:reports:coverage_fuzzing artifacts:reports:coverage_report
artifacts:reports:cyclonedx artifacts:reports:dast artifacts:reports:dependency_scanning artifacts:reports:dotenv
artifacts:reports:junit artifacts:reports:load_performance artifacts:reports:metrics artifacts:reports:requirements
artifacts:reports:repository_xray artifacts:reports:sast artifacts:reports:secret_detection
artifacts:reports:terraform
"""


def test_every_keyword_of_gitlabs_is_in_the_list_once():
    names = [keyword.name for keyword in reference()]
    assert len(names) == len(set(names))
    assert not set(GITLAB.split()) - set(names)
    assert not set(DIFFERS) - {one.name for one in reference() if one.support == "differs"}


def written(name: str) -> str:
    """A file that uses this keyword, whatever for."""
    first, *_ = parts = name.split(":")
    text = "x"
    for part in reversed(parts):
        listed = part in ("rules", "needs", "services") and text != "x"
        text = f"{{{part}: {f'[{text}]' if listed else text}}}"
    if first in ("workflow", "spec", "include"):
        return f"{text[1:-1]}\na: {{script: x}}"
    return f"a: {{{'' if first == 'trigger' else 'script: x, '}{text[1:-1]}}}"


@pytest.mark.parametrize(
    "name", [keyword.name for keyword in reference() if keyword.support == "not supported"]
)
def test_what_the_list_says_is_not_supported_is_refused_by_its_name(name):
    end = f"{name.rpartition(':')[2]} is not supported by this service"
    assert any(error.endswith(end) for error in errors(written(name))), written(name)
