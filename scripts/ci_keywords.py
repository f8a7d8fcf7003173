"""Prints docs/ci-keywords.md, out of the tables of the CI language in api_server/ci/config/keywords.py:

python -m scripts.ci_keywords >docs/ci-keywords.md
"""

from api_server.ci.config.keywords import Keyword, reference

HEAD = """# Keywords of CI files

Each keyword of GitLab's CI files, and what becomes of it here. How files are read is in [the language of CI
files](ci-language.md).

`python -m scripts.ci_keywords` generates this page from the tables by which files are read;
`tests/scripts/test_references.py` checks it. `tests/api_server/ci/config/test_gitlab_keywords.py` compares it with
GitLab's public JSON schema of CI files and feeds each keyword: without one that is not called ignored, a pipeline would
be another one.

| Here | Meaning |
|---|---|
| as GitLab | accepted, and does what it does in GitLab |
| differs | accepted; the note says what it does |
| ignored | accepted and checked, without effect |
| refused | `<keyword> is not supported by this service`, say the lint route and the pipeline; so is all that is in it |

A keyword that GitLab does not have is refused as an unknown key.
"""


def document() -> str:
    """Return the whole page."""
    rows = ["| Keyword | Here | Note |", "|---|---|---|", *map(_row, reference())]
    return "\n".join([HEAD, *rows, ""])


def _row(keyword: Keyword) -> str:
    support = "refused" if keyword.support == "not supported" else keyword.support
    return f"| `{keyword.name}` | {support} | {keyword.note or '-'} |"


if __name__ == "__main__":
    print(document(), end="")
