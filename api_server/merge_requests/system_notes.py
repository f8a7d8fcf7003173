"""Notes that the service writes itself: about new commits, changed titles and targets, and changed assignees
and reviewers.

Like GitLab, it writes no note about merging, closing and reopening.
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from html import escape
from itertools import takewhile
from typing import Any

from api_server.git.commits import SHORT_ID_DIGITS, commit_data, commits_between
from api_server.git.repositories import REPOSITORIES, Repositories
from api_server.merge_requests import note_queries
from api_server.merge_requests.changes import DRAFT, MERGE_REQUEST_LISTENERS, MergeRequestEvent, without_draft
from api_server.merge_requests.note_queries import NewNote, Subject
from api_server.merge_requests.notes import new_discussion_id
from api_server.services import Services
from api_server.state.database import Transaction

#: Numbers of pushed commits that are named, and that are counted.
MAX_NAMED = 10
MAX_COUNTED = 1000


def setup(services: Services) -> None:
    async def listener(transaction: Transaction, event: MergeRequestEvent) -> None:
        if event.action != "update":
            return
        about = await note_queries.find_subject(transaction, event.merge_request_id)
        remaining = services.settings.notes_limit - about.notes
        bodies = [body async for body in _bodies(services[REPOSITORIES], about, event)]
        for body in bodies[: max(0, remaining)]:
            new = NewNote(
                merge_request_id=about.id,
                discussion_id=new_discussion_id(),
                author_id=event.user_id,
                body=body,
                system=True,
            )
            await note_queries.insert(transaction, new)

    services[MERGE_REQUEST_LISTENERS].append(listener)


async def _bodies(repositories: Repositories, about: Subject, event: MergeRequestEvent) -> AsyncIterator[str]:
    changes = event.changes
    if event.old_head is not None and (body := await _pushed(repositories, about, event.old_head)):
        yield body
    if "title" in changes:
        for body in _renamed(*changes["title"]):
            yield body
    if "description" in changes:
        yield "changed the description"
    if "target_branch" in changes:
        old, new = changes["target_branch"]
        yield f"changed target branch from `{old}` to `{new}`"
    if "assignees" in changes and (body := _people(*changes["assignees"], "assigned to", "unassigned")):
        yield body
    if "reviewers" in changes and (
        body := _people(*changes["reviewers"], "requested review from", "removed review request for")
    ):
        yield body


async def _pushed(repositories: Repositories, about: Subject, old_head: str) -> str | None:
    """Return the note about the commits that the source's head has beyond the old one; commits from the
    target get one line."""
    repository = repositories.open(about.project_id)
    new = await commits_between(repository, old_head, about.head_sha, MAX_COUNTED)
    if not new:
        return None
    source_commits = set(await commits_between(repository, about.base_sha, about.head_sha, MAX_COUNTED))
    from_target = [sha for sha in new if sha not in source_commits]
    added = [sha for sha in reversed(new) if sha in source_commits]
    lines = []
    if from_target:
        from_branch = f"from branch <code>{escape(about.target_branch)}</code>"
        lines.append(f"{_span(old_head, from_target[0])} - {_number_of(len(from_target))} {from_branch}")
    if earlier := added[:-MAX_NAMED]:
        lines.append(f"{_span(earlier[0], earlier[-1])} - {_number_of(len(earlier), 'earlier ')}")
    titles = {sha: commit_data(repository, sha)["title"] for sha in added[-MAX_NAMED:]}
    lines += [f"{_short(sha)} - {escape(title)}" for sha, title in titles.items()]
    items = "".join(f"<li>{line}</li>" for line in lines)
    page = f"/{about.full_path}/-/merge_requests/{about.iid}/diffs?diff_id={about.version_id}&start_sha={old_head}"
    return f"added {_number_of(len(new))}\n\n<ul>{items}</ul>\n\n[Compare with previous version]({page})"


def _short(sha: str) -> str:
    return sha[:SHORT_ID_DIGITS]


def _span(first: str, last: str) -> str:
    return f"{_short(first)}...{_short(last)}"


def _number_of(commits: int, kind: str = "") -> str:
    return f"{commits} {kind}commit{'' if commits == 1 else 's'}"


def _renamed(old: str, new: str) -> Iterator[str]:
    """Yield the notes about a change to or from draft, and about another change of the title."""
    was, is_now = DRAFT.match(old), DRAFT.match(new)
    if bool(was) != bool(is_now):
        yield f"marked this merge request as **{'draft' if is_now else 'ready'}**"
    if without_draft(old) != without_draft(new):
        head = _common(old, new)
        tail = _common(old[head:][::-1], new[head:][::-1])
        yield f"changed title from **{_marked(old, head, tail, '-')}** to **{_marked(new, head, tail, '+')}**"


def _common(text: str, other: str) -> int:
    """Return the number of characters with which both begin."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(text, other, strict=False)))


def _marked(title: str, head: int, tail: int, mark: str) -> str:
    """Return the title with the part marked that lies between the common beginning and the common end."""
    end = len(title) - tail
    differs = f"{{{mark}{title[head:end]}{mark}}}" if head < end else ""
    return title[:head] + differs + title[end:]


def _people(before: Sequence[Any], after: Sequence[Any], added: str, removed: str) -> str:
    """Return the text about users who have been added and removed; users are `{"username": ...}`."""
    old, new = ([f"@{user['username']}" for user in users] for users in (before, after))
    changes = (
        (added, [user for user in new if user not in old]),
        (removed, [user for user in old if user not in new]),
    )
    return " and ".join(f"{verb} {_sentence(users)}" for verb, users in changes if users)


def _sentence(users: Sequence[str]) -> str:
    *others, last = users
    return f"{', '.join(others)}{',' if len(others) > 1 else ''} and {last}" if others else last
