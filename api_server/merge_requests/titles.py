"""Titles of merge requests: what makes one a draft, and what stands for a title that nobody has given."""

import asyncio
import re
from collections.abc import Sequence

from api_server.git.commits import commit_data, commits_between
from api_server.git.repositories import Repository

#: As `is_draft` of state/merge_request_functions.sql.
DRAFT = re.compile(r"(\s*(draft:|\[draft\]|\(draft\))\s*)+", re.IGNORECASE)
#: Of the commits of a new merge request so many are looked at.
_MOST_COMMITS = 100


def without_draft(title: str) -> str:
    """Return the title without what makes it a draft."""
    draft = DRAFT.match(title)
    return title[draft.end() :] if draft else title


def with_draft(title: str, *, draft: bool) -> str:
    """Return the title of a draft, or of what is none."""
    ready = without_draft(title)
    return f"Draft: {ready}" if draft else ready


async def title_and_description(
    repository: Repository, branch: str, head: str, target: str
) -> tuple[str, str]:
    """Return what a new merge request from a branch is called, as GitLab proposes it: by its only commit, else by its
    oldest one whose message has a text, else by the branch."""
    shas = await commits_between(repository, target, head, _MOST_COMMITS)
    # In a thread: messages are as large as a push may bring them.
    return await asyncio.to_thread(_proposed, repository, branch, shas)


def _proposed(repository: Repository, branch: str, shas: Sequence[str]) -> tuple[str, str]:
    commits = [commit_data(repository, sha) for sha in reversed(shas)]
    texts = [
        (commit["title"], body)
        for commit in commits
        if len(commit["parent_ids"]) < 2 and (body := commit["message"].strip().partition("\n")[2].strip())
    ]
    if len(commits) == 1:
        return commits[0]["title"], texts[0][1] if texts else ""
    return texts[0] if texts else (branch.replace("-", " ").replace("_", " ").capitalize(), "")
