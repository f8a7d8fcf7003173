"""Who is meant by `email` and `user_id` of an invitation, and the words for what went wrong with each."""

import re
from collections.abc import Mapping, Sequence

import attrs

from api_server.namespaces.members import sentence
from api_server.outbound.mail import is_address
from api_server.web.errors import ApiError, bad_parameters, bad_request

MOST_RECIPIENTS = 100
_LABEL = r"[^\W_](?:(?:[^\W_]|-){0,61}[^\W_])?"
#: What GitLab invites: at most 64 characters before the @, at least two names behind it. Accounts may have less.
_INVITABLE = re.compile(rf"[^@]{{1,64}}@{_LABEL}(?:\.{_LABEL})+")

TAKEN = "Invite email has already been taken"
TOO_MANY_LETTERS = "Too many invitations sent in the last hour. Try again later."
TOO_MANY_TO_ADDRESS = "Invite email has been mailed too often in the last hour. Try again later."
MEMBER_ALREADY = "User already exists in source"
NOT_FOUND = "User not found"


class RefusedAsAWhole(ApiError):
    """Nobody is invited, and the answer is 201 all the same: `status` error, a message, and a `reason`."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(201, {"status": "error", "message": message, "reason": reason})


@attrs.frozen
class Recipients:
    """Addresses as they were typed, and ids of users; each once."""

    emails: Sequence[str]
    user_ids: Sequence[int]


def read(emails: Sequence[str] | None, user_ids: Sequence[str] | None) -> Recipients:
    """What was sent, which may be padded with blanks. Raises 400, and RefusedAsAWhole."""
    sent = [*(emails or []), *(user_ids or [])]
    if not any(text.strip() for text in sent):
        if len(emails or []) > 1 or len(user_ids or []) > 1:  # commas and nothing else
            raise RefusedAsAWhole("Invites cannot be blank", "blank_invites_error")
        raise bad_request("Must provide either email or user_id as a parameter")
    ids = _distinct(user_ids)
    if not all(_is_id(text) for text in ids):
        raise bad_parameters("user_id is invalid")
    found = Recipients(_distinct(emails), [int(text) for text in ids])
    if not all(is_address(text) and _INVITABLE.fullmatch(text) for text in found.emails):
        raise bad_parameters("email contains an invalid email address")
    if len(found.emails) + len(found.user_ids) > MOST_RECIPIENTS:
        raise RefusedAsAWhole(
            f"Too many users specified (limit is {MOST_RECIPIENTS})", "too_many_invites_error"
        )
    return found


def _distinct(texts: Sequence[str] | None) -> list[str]:
    return list(dict.fromkeys(text.strip() for text in texts or [] if text.strip()))


def _is_id(text: str) -> bool:
    return len(text) < 20 and text.isascii() and text.isdecimal() and int(text) < 2**63


def text_of(refusal: ApiError) -> str:
    """The words for a membership that was refused."""
    message = refusal.body.get("message")
    if refusal.status == 409:
        return MEMBER_ALREADY
    return sentence(message) if isinstance(message, Mapping) else "not authorized to create member"
