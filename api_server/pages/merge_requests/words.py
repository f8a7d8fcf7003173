"""Why a merge request cannot be merged, told to people."""

from typing import Final

#: By `detailed_merge_status`: what is so, and what to do.
OBSTACLES: Final = {
    "not_open": "It is not open.",
    "commits_status": "Its source branch has no commits that the target has not, or one of the branches is gone."
    " Push commits to the source branch.",
    "draft_status": "It is a draft. Take the word Draft off its title when it is ready.",
    "discussions_not_resolved": "A discussion of it has not been resolved, as the project demands.",
    "status_checks_must_pass": "An external status check has not passed, as the project demands. See the checks below.",
    "conflict": "Its changes conflict with the target branch. Merge the target into the source branch, or rebase it,"
    " resolve the conflicts and push.",
    "unchecked": "Whether it can be merged is being found out. Load the page again in a moment.",
    "need_rebase": "The target branch has moved on, and this project merges by fast-forward. Rebase the source branch.",
    "ci_still_running": "The pipeline of its last commit has not finished, and the project demands that it succeeds.",
    "ci_must_pass": "The pipeline of its last commit has not succeeded, or there is none, and the project demands that"
    " it succeeds.",
}


def obstacle(status: str) -> str:
    """A sentence or two; "" for what can be merged."""
    if status == "mergeable":
        return ""
    return OBSTACLES.get(status, f"The service says: {status.replace('_', ' ')}.")
