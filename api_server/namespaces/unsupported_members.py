"""Parameters of members that GitLab knows and this service has no use for (`web/unsupported.py`)."""

from typing import Literal

import attrs

from api_server.web.params import CommaList


@attrs.frozen(kw_only=True)
class OfMemberLists:
    """Filters and forms of lists."""

    show_seat_info: bool | None = None
    with_saml_identity: bool | None = None
    skip_users: CommaList[int] | None = None


@attrs.frozen(kw_only=True)
class OfAllMemberLists(OfMemberLists):
    """Of lists with inherited members."""

    state: Literal["awaiting", "active"] | None = None


@attrs.frozen(kw_only=True)
class OfChangedMembers:
    """Where one is changed. Custom roles are given with invitations."""

    member_role_id: int | None = None


@attrs.frozen(kw_only=True)
class OfNewMembers(OfChangedMembers):
    """Where one is added."""

    invite_source: str | None = None


@attrs.frozen(kw_only=True)
class OfRemovedMembers:
    """Where one is removed. There are no issues."""

    unassign_issuables: bool | None = None
