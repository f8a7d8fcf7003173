"""What a target answers to the LFS batch request of a mirror run; pure."""

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import orjson

from api_server.git.lfs_pointers import Pointer


class NoLfsError(Exception):
    """The target does not speak LFS."""


class LfsError(Exception):
    """The target cannot be brought any objects now; the text is for the user."""


@attrs.frozen
class Action:
    """A request that the target asks for: `header` is to be sent with it."""

    href: str = attrs.field(repr=False)
    header: Mapping[str, str] = attrs.field(repr=False)


@attrs.frozen
class Wanted:
    """An object that the target wants to be brought, and perhaps to be told of afterwards (`verify`).

    `authenticated`: the actions say how, and credentials of ours are not to be added.
    """

    oid: str
    upload: Action
    verify: Action | None
    authenticated: bool


@attrs.frozen
class BatchAnswer:
    """What is to become of the objects that were asked about: `refused` are reasons by oid; `there` needs nothing."""

    there: frozenset[str]
    wanted: tuple[Wanted, ...]
    refused: Mapping[str, str]


def read_answer(body: bytes, asked: Sequence[Pointer]) -> BatchAnswer:
    """The batch answer in `body`, as far as it is about the objects in `asked`.

    Raises `NoLfsError` for what is no such answer, and `LfsError` for one that cannot be followed.
    """
    try:
        sent = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise NoLfsError from None
    if not isinstance(sent, dict) or not isinstance(sent.get("objects"), list):
        raise NoLfsError
    if sent.get("transfer", "basic") != "basic" or sent.get("hash_algo", "sha256") != "sha256":
        raise LfsError("The target wants LFS objects in a way that is not supported.")
    answers = {answer.get("oid"): answer for answer in sent["objects"] if _is_named(answer)}
    refused: dict[str, str] = {}
    wanted: list[Wanted] = []
    there: set[str] = set()
    for pointer in asked:
        match _read_object(pointer.oid, answers.get(pointer.oid)):
            case str() as problem:
                refused[pointer.oid] = problem
            case Wanted() as want:
                wanted.append(want)
            case None:
                there.add(pointer.oid)
    return BatchAnswer(frozenset(there), tuple(wanted), refused)


def message_in(body: bytes) -> str:
    """The reason that an LFS error body gives; empty where it gives none."""
    try:
        sent = orjson.loads(body)
    except orjson.JSONDecodeError:
        return ""
    message = sent.get("message") if isinstance(sent, dict) else None
    return message if isinstance(message, str) else ""


def _is_named(answer: Any) -> bool:
    return isinstance(answer, dict) and isinstance(answer.get("oid"), str)


def _read_object(oid: str, answer: Mapping[str, Any] | None) -> Wanted | str | None:
    if answer is None:
        return "the target said nothing about it"
    if error := answer.get("error"):
        message = error.get("message") if isinstance(error, dict) else None
        return message if isinstance(message, str) and message else "the target refused it"
    actions = answer.get("actions") or {}
    if not isinstance(actions, dict):
        return "the target's answer is not understood"
    if "upload" not in actions:
        return None
    upload, verify = _action(actions["upload"]), _action(actions.get("verify"))
    if upload is None or (verify is None and actions.get("verify")):
        return "the target's answer is not understood"
    return Wanted(oid, upload, verify, answer.get("authenticated") is True)


def _action(sent: Any) -> Action | None:
    if not isinstance(sent, dict) or not isinstance(sent.get("href"), str):
        return None
    header = sent.get("header") or {}
    if not isinstance(header, dict) or not all(isinstance(value, str) for value in header.values()):
        return None
    return Action(sent["href"], header)
