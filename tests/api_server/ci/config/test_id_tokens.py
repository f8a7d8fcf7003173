"""`id_tokens` in CI files."""

import pytest

from api_server.ci.config.plan import IdToken

from .planning import errors, job, jobs


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[a]", "jobs:test:id_tokens config should be a hash"),
        ("{T: }", "jobs:test:id_tokens:T config should be a hash"),
        ("{T: x}", "jobs:test:id_tokens:T config should be a hash"),
        ("{T: {}}", "jobs:test:id_tokens:T config missing required keys: aud"),
        ("{T: {aud: x, sub: y}}", "jobs:test:id_tokens:T config contains unknown keys: sub"),
        ("{T: {aud: 1}}", "jobs:test:id_tokens:T aud should be an array of strings or a string"),
        ("{T: {aud: {a: b}}}", "jobs:test:id_tokens:T aud should be an array of strings or a string"),
        ("{T: {aud: [a, 1]}}", "jobs:test:id_tokens:T aud should be an array of strings"),
        (
            f"{{T: {{aud: [{', '.join('a' * 21)}]}}}}",
            "jobs:test:id_tokens:T aud has too many entries (maximum 20)",
        ),
        (
            f"{{{', '.join(f'T{number}: {{aud: a}}' for number in range(21))}}}",
            "jobs:test:id_tokens config has too many entries (maximum 20)",
        ),
    ],
)
def test_what_is_wrong_with_them_is_said_in_gitlabs_words(text: str, error: str) -> None:
    assert errors(f"test: {{script: x, id_tokens: {text}}}") == (error,)


def test_an_audience_is_a_text_or_a_list() -> None:
    found = job(
        "test: {script: x, id_tokens: {A: {aud: '$X'}, B: {aud: [a, b]}, C: {aud: [a]}, D: {aud: []}}}"
    )
    assert found.id_tokens == {
        "A": IdToken(aud=("$X",)),
        "B": IdToken(aud=("a", "b"), listed=True),
        "C": IdToken(aud=("a",), listed=True),
        "D": IdToken(aud=(), listed=True),
    }


def test_jobs_have_those_of_default_unless_they_have_their_own() -> None:
    found = jobs("""
        default: {id_tokens: {A: {aud: a}}}
        inheriting: {script: x}
        own: {script: x, id_tokens: {B: {aud: b}}}
        none: {script: x, inherit: {default: false}}
        some: {script: x, inherit: {default: [id_tokens]}}
        others: {script: x, inherit: {default: [image]}}
        extending: {extends: own, script: x, id_tokens: {C: {aud: c}}}
        """)
    assert {name: sorted(one.id_tokens) for name, one in found.items()} == {
        "inheriting": ["A"],
        "own": ["B"],
        "none": [],
        "some": ["A"],
        "others": [],
        "extending": ["B", "C"],
    }


def test_a_job_that_starts_a_pipeline_has_none() -> None:
    assert errors("test: {trigger: {project: a/b}, id_tokens: {A: {aud: a}}}") == (
        "jobs:test config contains unknown keys: id_tokens",
    )
    assert job("default: {id_tokens: {A: {aud: a}}}\ntest: {trigger: {project: a/b}}").id_tokens == {}
