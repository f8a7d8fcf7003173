"""`include:component` and `include:template`."""

import pytest
from attrs import evolve

from api_server.ci.config.configuration import Configuration, read
from api_server.ci.config.context import Context, OtherProject, RemoteFile, Repository, Version
from api_server.ci.config.errors import CiConfigError
from api_server.ci.config.includes import MAX_COMPONENT_PROJECTS
from api_server.ci.config.pipeline import plan_pipeline

from .planning import BRANCH, context

HOST = "forge.example.org:8443"
#: The files of projects at commits.
PROJECTS = {
    "group/tools": {
        "1.0.0": {
            "templates/lint.yml": "lint: {script: old}",
            "templates/local.yml": "include: [ci/more.yml, {local: 'ci/all/*.yml'}]\nlocal: {script: x}",
            "templates/both.yml": "both: {script: file}",
            "templates/both/template.yml": "both: {script: folder}",
            "templates/folder/template.yml": "folder: {script: x}",
            "templates/folder/other.yml": "other: {script: x}",
            "templates/empty.yml": " ",
            "templates/bad.yml": "x: [",
            "templates/itself.yml": f"include: {{component: {HOST}/group/tools/itself@1.0.0}}",
            "ci/more.yml": "more: {script: x}",
            "ci/all/a.yml": "all: {script: x}",
        },
        "main": {"templates/lint.yml": "lint: {script: new}"},
    },
    "group/sub/deep": {
        "v2": {"templates/nested.yml": f"include: [{{component: {HOST}/group/tools/lint@main}}]"}
    },
}
TEMPLATES = {
    "Jobs/SAST.gitlab-ci.yml": "include: [{local: mine.yml}, {template: Base.gitlab-ci.yml}]\nsast: {script: x}",
    "Base.gitlab-ci.yml": "base: {script: x}",
    "Empty.gitlab-ci.yml": "",
    "Itself.gitlab-ci.yml": "include: {template: Itself.gitlab-ci.yml}",
}


def a_context(**kwargs) -> Context:
    commits = {
        (path, ref): Repository(read=files.get, paths=files.keys, project=path, sha=f"sha of {ref}")
        for path, versions in PROJECTS.items()
        for ref, files in versions.items()
    }

    def project(path: str, public: bool) -> OtherProject | None:
        def version(name: str) -> Version | None:
            found = commits.get((path, name))
            return None if found is None else Version(repository=found)

        return OtherProject(version=version) if path in PROJECTS and not public else None

    predefined = BRANCH | {"CI_SERVER_FQDN": HOST}
    return evolve(
        context(predefined=predefined, **kwargs),
        project=project,
        template=TEMPLATES.get,
        remote={"https://example.org/ci.yml": RemoteFile(content=b"include: {component: x/y/z@1}")},
    )


def taken(text: str, **kwargs) -> Configuration:
    return read(text, a_context(**kwargs))


def names(text: str, **kwargs) -> set[str]:
    return {job.name for job in plan_pipeline(text, a_context(**kwargs)).jobs}


def refusal(text: str, **kwargs) -> str:
    with pytest.raises(CiConfigError) as caught:
        taken(text, **kwargs)
    (error,) = caught.value.errors
    return error


def component(rest: str) -> str:
    return f"include: {{component: '$CI_SERVER_FQDN/{rest}'}}"


def test_a_component_is_a_file_of_its_project_at_a_version():
    found = taken(component("group/tools/lint@1.0.0"))
    assert found.jobs == {"lint": {"stage": "test", "script": "old"}}
    (included,) = found.includes
    assert (included.type, included.location, included.path, included.extra) == (
        "component",
        f"{HOST}/group/tools/lint@1.0.0",
        "templates/lint.yml",
        {},
    )
    assert (included.source.project, included.source.sha) == ("group/tools", "sha of 1.0.0")
    assert taken(component("group/tools/lint@$AT"), given={"AT": "main"}).jobs["lint"]["script"] == "new"


def test_a_component_is_a_file_or_else_the_template_of_a_folder():
    assert names(component("group/tools/folder@1.0.0")) == {"folder"}
    assert taken(component("group/tools/both@1.0.0")).jobs["both"]["script"] == "file"


def test_local_files_of_a_component_are_its_projects_at_that_commit():
    files = {"ci/more.yml": "mine: {script: x}", "ci/all/b.yml": "mine: {script: x}"}
    assert names(component("group/tools/local@1.0.0"), files=files) == {"local", "more", "all"}


def test_components_use_components_and_are_told_apart_by_rules():
    assert names(component("group/sub/deep/nested@v2")) == {"lint"}
    text = f"include: [{{component: {HOST}/group/tools/lint@main, rules: [{{if: $GO}}]}}]\nown: {{script: x}}"
    assert names(text) == {"own"}
    assert names(text, given={"GO": "1"}) == {"own", "lint"}


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("gitlab.com/group/tools/lint@1.0.0", "the component path is not supported"),
        ("forge.example.org/group/tools/lint@1.0.0", "the component path is not supported"),
        (f"{HOST}/group/tools/lint", "the component path is not supported"),
        ("lint", "the component path is not supported"),
        (f"{HOST}/group/tools/lint@", "content not found"),
        (f"{HOST}/group/tools/lint@2", "content not found"),
        (f"{HOST}/group/tools/no@1.0.0", "content not found"),
        (f"{HOST}/group/tools/folder/other@1.0.0", "project does not exist or you don't have sufficient permissions"),
        (f"{HOST}/group/no/lint@1.0.0", "project does not exist or you don't have sufficient permissions"),
        (f"{HOST}/lint@1.0.0", "project does not exist or you don't have sufficient permissions"),
    ],
)  # fmt: skip
def test_a_component_that_is_not_there_is_refused_by_its_address(address, said):
    assert refusal(f"include: {{component: '{address}'}}") == f"Component '{address}' - {said}"


def test_a_component_that_cannot_be_read_is_named():
    at = f"{HOST}/group/tools/%s@1.0.0"
    assert refusal(component("group/tools/empty@1.0.0")) == f"Component '{at % 'empty'}' is empty!"
    assert refusal(component("group/tools/bad@1.0.0")).startswith(
        f"`{at % 'bad'}`: Invalid configuration format"
    )
    assert refusal(component("group/tools/itself@1.0.0")) == (
        f"Component file `{at % 'itself'}` includes itself: {at % 'itself'} -> {at % 'itself'}"
    )


def test_a_host_that_somebody_sets_is_not_this_services():
    text = component("group/tools/lint@1.0.0")
    said = "Component 'gitlab.com/group/tools/lint@1.0.0' - the component path is not supported"
    assert refusal(text, given={"CI_SERVER_FQDN": "gitlab.com"}) == said


def test_components_need_a_project_that_includes_them():
    outside = "Unable to use components outside of a project context"
    assert refusal("include: https://example.org/ci.yml") == f"`https://example.org/ci.yml`: {outside}"
    with pytest.raises(CiConfigError, match=outside):
        read(component("group/tools/lint@1.0.0"), context())


def test_components_are_taken_from_so_many_projects():
    def text(projects: int) -> str:
        entries = (f"{{component: {HOST}/group/p{number}/lint@1.0.0}}" for number in range(projects))
        return f"include: [{', '.join(entries)}]"

    def project(*_) -> OtherProject:
        files = {"templates/lint.yml": "lint: {script: x}"}
        return OtherProject(version=lambda _: Version(repository=Repository(read=files.get)))

    several = evolve(a_context(), project=project)
    assert set(read(text(MAX_COMPONENT_PROJECTS), several).jobs) == {"lint"}
    with pytest.raises(CiConfigError) as caught:
        read(text(MAX_COMPONENT_PROJECTS + 1), several)
    assert caught.value.errors == (f"Components may be taken from up to {MAX_COMPONENT_PROJECTS} projects",)
    one = f"include: [{', '.join([f'{{component: {HOST}/group/p/lint@1.0.0}}'] * 40)}]"
    assert set(read(one, several).jobs) == {"lint"}


def test_a_template_is_the_operators_and_its_local_files_those_of_the_project():
    found = taken("include: {template: $FOLDER/SAST.gitlab-ci.yml}", given={"FOLDER": "Jobs"},
                  files={"mine.yml": "mine: {script: x}"})  # fmt: skip
    assert set(found.jobs) == {"sast", "base", "mine"}
    assert [(included.type, included.location, included.source is None) for included in found.includes] == [
        ("template", "Jobs/SAST.gitlab-ci.yml", True),
        ("local", "mine.yml", False),
        ("template", "Base.gitlab-ci.yml", True),
    ]


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("Jobs/No.gitlab-ci.yml", "Template file `Jobs/No.gitlab-ci.yml` does not exist!"),
        ("Empty.gitlab-ci.yml", "Template file `Empty.gitlab-ci.yml` is empty!"),
        ("Base.yml", "Template file `Base.yml` is not a valid location!"),
        ("Base", "Included file `Base` does not have YAML extension!"),
        (
            "Itself.gitlab-ci.yml",
            "Template file `Itself.gitlab-ci.yml` includes itself: Itself.gitlab-ci.yml -> Itself.gitlab-ci.yml",
        ),
    ],
)
def test_a_template_that_cannot_be_is_refused(template, said):
    assert refusal(f"include: {{template: {template}}}") == said


def test_without_a_folder_of_templates_the_setting_is_named():
    with pytest.raises(CiConfigError) as caught:
        read("include: {template: Base.gitlab-ci.yml}", context())
    assert caught.value.errors == (
        "Template file `Base.gitlab-ci.yml`: this service has no templates, "
        "because its setting ci_templates_dir is not set",
    )


ABOUT = """
spec:
  component: [%s]
  inputs: {stage: {default: test}}
---
about:
  stage: $[[ inputs.stage ]]
  variables:
    NAME: $[[ component.name ]]
    SHA: $[[ component.sha | truncate(0, 3) ]]
    VERSION: v-$[[ component.version ]]
    REFERENCE: $[[ component.reference ]]
  script: x
"""
ALL = "name, sha, version, reference"


def about(text: str, semantic: str | None = "1.2.3", include: str = "at@1.2") -> Configuration:
    files = {
        "templates/at.yml": text,
        "templates/outer.yml": "include: [{local: inner.yml, inputs: {stage: deploy}}]",
        "inner.yml": text,
    }
    found = Version(repository=Repository(read=files.get, sha="a" * 40), semantic=semantic)
    planned = evolve(a_context(), project=lambda *_: OtherProject(version=lambda _: found))
    return read(f"include: {{component: {HOST}/group/tools/{include}}}", planned)


def test_a_component_may_ask_about_itself():
    variables = about(ABOUT % ALL).jobs["about"]["variables"]
    assert variables == {"NAME": "at", "SHA": "aaa", "VERSION": "v-1.2.3", "REFERENCE": "1.2"}
    unknown = about(ABOUT % ALL, semantic=None).jobs["about"]["variables"]
    assert unknown == {"NAME": "at", "SHA": "aaa", "VERSION": "v-", "REFERENCE": "1.2"}


def test_what_a_component_includes_of_its_project_is_told_the_same():
    job = about(ABOUT % ALL, include="outer@1.2").jobs["about"]
    assert (job["stage"], job["variables"]["NAME"]) == ("deploy", "outer")


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ("name, sha, version", "unknown interpolation key: `reference`"),
        ("name, path, ref", "header:spec:component config contains unknown values: path, ref"),
        ("1", "header:spec:component config should be an array of strings"),
    ],
)
def test_only_what_is_declared_is_told(declared, said):
    with pytest.raises(CiConfigError) as caught:
        about(ABOUT % declared)
    assert caught.value.errors == (f"`{HOST}/group/tools/at@1.2`: {said}",)


def test_a_file_that_is_no_component_has_nothing_to_tell():
    with pytest.raises(CiConfigError) as caught:
        read(ABOUT % ALL, a_context())
    assert caught.value.errors == ("unknown interpolation key: `name`",)


def test_a_component_takes_inputs():
    text = "spec: {inputs: {word: }}\n---\nsay: {script: 'echo $[[ inputs.word | posix_escape ]]'}"
    project = OtherProject(version=lambda _: Version(repository=Repository(read=lambda _: text)))
    planned = evolve(a_context(), project=lambda *_: project)
    include = f"include: {{component: {HOST}/g/p/say@1, inputs: %s}}"
    assert read(include % "{word: a b}", planned).jobs["say"]["script"] == "echo a\\ b"
    with pytest.raises(CiConfigError) as caught:
        read(include % "{}", planned)
    assert caught.value.errors == (f"`{HOST}/g/p/say@1`: `word` input: required value has not been provided",)


def test_one_entry_is_of_one_kind():
    for text in ("{component: a/b/c@1, template: x}", "{local: a.yml, component: a/b/c@1}"):
        assert "config is of one kind only" in refusal(f"include: {text}")
    assert refusal("include: {component: 1}") == "include:component config should be a string"
