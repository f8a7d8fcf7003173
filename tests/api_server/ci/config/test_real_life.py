"""Configurations as projects really have them, as a whole."""

from .planning import MERGE_REQUEST, TAG, jobs, plan

PYTHON = """
default:
  image: python:3.12
  cache:
    key: {files: [requirements.txt]}
    paths: [.cache/pip]
  before_script:
    - python -m venv venv && . venv/bin/activate

variables:
  PIP_CACHE_DIR: "$CI_PROJECT_DIR/.cache/pip"

workflow:
  rules:
    - if: $CI_PIPELINE_SOURCE == "merge_request_event"
    - if: $CI_COMMIT_TAG
    - if: $CI_COMMIT_BRANCH == $CI_DEFAULT_BRANCH

stages: [lint, test, release]

ruff:
  stage: lint
  needs: []
  script: [pip install ruff, ruff check .]

pytest:
  stage: test
  parallel:
    matrix:
      - PYTHON: ["3.11", "3.12"]
  image: python:$PYTHON
  script:
    - pip install -e '.[test]'
    - pytest --junitxml=report.xml --cov
  coverage: '/^TOTAL.+?(\\d+\\%)$/'
  artifacts:
    when: always
    expire_in: 1 week
    reports:
      junit: report.xml
      coverage_report: {coverage_format: cobertura, path: coverage.xml}

publish:
  stage: release
  rules:
    - if: $CI_COMMIT_TAG =~ /^v\\d+\\.\\d+/
  environment: {name: pypi, url: https://example.org/app}
  script: [python -m build, twine upload dist/*]
"""


def test_a_python_package():
    on_main = plan(PYTHON, files={"requirements.txt": "aiohttp"})
    assert [one.name for one in on_main.jobs] == ["ruff", "pytest: [3.11]", "pytest: [3.12]"]
    assert on_main.jobs[0].cache[0].key != "default"
    assert [one.name for one in plan(PYTHON, predefined=TAG).jobs][-1] == "publish"
    assert len(plan(PYTHON, predefined=MERGE_REQUEST).jobs) == 3
    assert plan(PYTHON, predefined={"CI_COMMIT_BRANCH": "topic", "CI_DEFAULT_BRANCH": "main"}).jobs == ()


CONTAINERS = """
include:
  - local: /ci/templates.yml

.deploy: &deploy
  stage: deploy
  image: {name: example.org/kubectl, entrypoint: [""]}
  script:
    - !reference [.login, script]
    - kubectl set image deployment/app app="$IMAGE"

build:
  extends: [.container, .on-default-branch]
  script:
    - !reference [.login, script]
    - |
      docker build -t "$IMAGE" .
      docker push "$IMAGE"

smoke:
  stage: test
  services: [{name: "$IMAGE", alias: app}]
  script: curl --fail http://app:8080/health
  needs: [{job: build, optional: true}]
  retry: {max: 2, when: [runner_system_failure, stuck_or_timeout_failure]}

staging:
  <<: *deploy
  environment: {name: staging, url: "https://staging.example.org"}
  resource_group: staging

production:
  <<: *deploy
  when: manual
  allow_failure: false
  environment: {name: production, deployment_tier: production}
  only: [main]

rollout:
  stage: deploy
  when: delayed
  start_in: 30 minutes
  script: ./rollout 50

downstream:
  stage: deploy
  variables: {UPSTREAM_REF: $CI_COMMIT_REF_NAME}
  trigger: {project: group/e2e, branch: main, strategy: depend}

docs:
  trigger: {include: docs/.gitlab-ci.yml}
  rules:
    - changes: ["docs/**/*"]
"""
TEMPLATES = """
variables:
  IMAGE: "registry.example.org/$CI_PROJECT_PATH:$CI_COMMIT_SHORT_SHA"
.login:
  script: [docker login]
.container:
  stage: build
  image: docker:27
  services: [docker:27-dind]
.on-default-branch:
  rules: [{if: $CI_COMMIT_BRANCH == $CI_DEFAULT_BRANCH}]
"""


def test_containers_with_templates_deployments_and_other_pipelines():
    found = jobs(CONTAINERS, files={"ci/templates.yml": TEMPLATES}, changed=["docs/deep/index.md"])
    assert list(found) == [
        "build",
        "smoke",
        "docs",
        "staging",
        "production",
        "rollout",
        "downstream",
    ]
    assert found["build"].script[:2] == ("docker login", 'docker build -t "$IMAGE" .\ndocker push "$IMAGE"\n')
    assert [need.job for need in found["smoke"].needs] == ["build"]
    assert (found["production"].when, found["production"].allow_failure) == ("manual", False)
    assert (found["rollout"].when, found["rollout"].start_in) == ("delayed", 1800)
    assert found["staging"].script == ("docker login", 'kubectl set image deployment/app app="$IMAGE"')
    assert (found["docs"].kind, found["docs"].trigger.include) == ("bridge", ("docs/.gitlab-ci.yml",))
    assert found["downstream"].trigger.depend is True


def test_a_branch_without_the_image_still_runs_what_needs_it_optionally():
    topic = {"CI_COMMIT_BRANCH": "topic", "CI_COMMIT_REF_NAME": "topic", "CI_DEFAULT_BRANCH": "main"}
    found = jobs(CONTAINERS, predefined=topic, files={"ci/templates.yml": TEMPLATES}, changed=[])
    assert list(found) == ["smoke", "staging", "rollout", "downstream"]
    assert found["smoke"].needs == ()
