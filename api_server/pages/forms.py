"""Forms: a refused form is shown again with its values and a sentence at the field, and a form sent twice acts once.

A template writes `{% call(fields) forms.form(action, "Create") %}` and in it the macros of `forms.html`. A route that
answers such a form names the page that shows it (`Pages.post(..., form_page=...)`). If its handler raises an error,
that page is the answer, with the status of the error.
"""

import asyncio
import hashlib
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import unquote

import attrs
import orjson
from aiohttp import web

from api_server.pages import queries, sessions
from api_server.pages.sessions import Form, Visitor
from api_server.state.database import Database
from api_server.state.secrets import digest
from api_server.web import context
from api_server.web.errors import ApiError, conflict, reason_of, sentences
from api_server.web.request_data import UploadedFile

#: Seconds for which the second of two identical forms waits for the first, and between two checks.
_LONGEST_WAIT = 10.0
_STEP = 0.1

#: The messages about each field, which continue its name ("is too long"). Under "": sentences about the whole form.
Problems = dict[str, list[str]]


#: The names of fields that hold secrets.
_SECRET = re.compile("password|passphrase|token|secret")
#: User name and password in a URL, except for asterisks (the stored ones) and a user name alone (for SSH).
_CREDENTIALS = re.compile(
    r"\A(?!\s*ssh://[^/:@]*@)(\s*(?:[\w+.-]+://)?)(?!\*+:\*+@)(?:[^/?#@:]*:(?!\d*(?:[/?#]|\Z)).*@|[^/?#]*@)",
    re.DOTALL,
)


def shown_again(name: str, value: Any) -> Any:
    """Return the value of the field of that name as it may be shown again, without secrets."""
    if _SECRET.search(name):
        return ""
    is_url = name.endswith("url") and isinstance(value, str)
    return _CREDENTIALS.sub(r"\1", value) if is_url else value


@attrs.frozen
class RefusedForm:
    """A form that was sent to `path` and refused."""

    path: str
    form: Form
    problems: Problems
    #: The status of the page that shows the form again.
    status: int


REFUSED = web.RequestKey("refused_form", RefusedForm)


@attrs.define
class Fields:
    """The values and problems of one form's fields. `refused` is None if the form is shown for the first time."""

    #: A prefix of the fields' ids, for pages with several forms.
    prefix: str
    refused: RefusedForm | None
    _field_names: list[str] = attrs.field(factory=list)

    def id_of(self, name: str) -> str:
        """Return the id of the field's element."""
        return f"{self.prefix}-{name}" if self.prefix else name

    def value(self, name: str, otherwise: Any = "") -> Any:
        """Return the field's sent value without secrets, or `otherwise` if the form was not sent yet."""
        return otherwise if self._is_new(name) else shown_again(name, self._typed(name))

    def _typed(self, name: str) -> Any:
        value: Any = {} if self.refused is None else self.refused.form
        for key in _keys_of(name):
            value = value.get(key, "") if isinstance(value, Mapping) else ""
        return value

    def _is_new(self, name: str) -> bool:
        """Return whether the sent form did not have the field, even if it had others of its group (`inputs[job]`)."""
        *outer, key = _keys_of(name)
        return self.refused is None or (bool(outer) and key not in (self._typed(outer[0]) or {}))

    def hint(self, name: str, hint: str) -> str:
        """Return the sentences below the field. One asks for a file or secret again, which is not shown again."""
        typed = self._typed(name)
        if isinstance(typed, UploadedFile):
            return f"Choose the file again. {hint}".strip()
        displayed = shown_again(name, typed)
        if displayed == typed:
            return hint
        again = "Enter the credentials again: they are" if displayed else "Enter it again: it is"
        return f"{again} not shown. {hint}".strip()

    def is_chosen(self, name: str, value: object, otherwise: bool) -> bool:
        """Return whether a box is checked or an option is selected."""
        if self._is_new(name):
            return otherwise
        typed = self.value(name)
        return str(value) in (typed if isinstance(typed, list) else [typed])

    def problem(self, name: str, label: str) -> str:
        """Return the sentences about the field, and note them as shown: they are not repeated above the form."""
        plain = name.removesuffix("[]")
        self._field_names.append(plain)
        return " ".join(sentences(self._problems.get(plain, []), label))

    def is_first_problem(self, name: str) -> bool:
        """Return whether the field is the first one with a problem, which gets the focus."""
        wrong = [field for field in self._field_names if field in self._problems]
        return wrong[:1] == [name.removesuffix("[]")]

    def other_problems(self) -> list[str]:
        """Return the sentences about the whole form and about fields that it does not show."""
        others = {name: texts for name, texts in self._problems.items() if name not in self._field_names}
        return sentences(others)

    @property
    def has_problem_at_field(self) -> bool:
        return any(name in self._problems for name in self._field_names)

    @property
    def _problems(self) -> Problems:
        return {} if self.refused is None else self.refused.problems


def _keys_of(name: str) -> list[str]:
    """Return the keys under which a form has the field of that name: `inputs` and `job` of `inputs[job]`."""
    return name.removesuffix("[]").removesuffix("]").split("[", 1)


@attrs.frozen
class Choices:
    """The options of a field, for `forms.html`. If there are more than these, others can be typed."""

    choices: list[Any]
    are_all: bool


def fields_of(request: web.Request, action: str, prefix: str) -> Fields:
    """Return the fields of the form that is sent to `action`, a path as written in the page."""
    refused = request.get(REFUSED)
    return Fields(prefix, refused if refused and refused.path == unquote(action.partition("#")[0]) else None)


#: The beginning of errors about parameters: `name is missing`, `variables[0][key] is empty`.
_OF_PARAMETER = re.compile(r"(\w+)(?:\[\S*\])? ((?:is|does|has|must|cannot)\b.*)", re.DOTALL)
#: `name, path are missing, at least one parameter must be provided`: forms ask for the first.
_ONE_OF_SOME = re.compile(r"(\w+)(?:, \w+)+ are missing, .*")
#: Another form of GitLab's: `Failed to save group {:path=>["is invalid"]}`, `400 Bad request - Note {:note=>["..."]}`.
_FAILED_TO_SAVE = re.compile(r'[\w -]+\{:(\w+)=>\["(.*)"\]\}', re.DOTALL)
#: Errors about the inputs of a CI file: "`replicas` input: required value has not been provided, `dry` input: ...".
_OF_INPUT = re.compile(r"`([^`[\]]+)` input: (.*?)(?:, (?=`[^`]+` input: )|\Z)", re.DOTALL)
#: Fields of errors that have another name in forms.
_FIELDS = {
    "base": "",
    "error": "",
    "visibility_level": "visibility",
    "note": "body",
    "value": "secret_value",  # the value of a variable
}


def problems_of(error: ApiError) -> Problems:
    """Return the messages of the API's error, by field."""
    message, text = error.body.get("message"), error.body.get("error")
    if isinstance(message, Mapping):
        problems = {
            str(_FIELDS.get(name, name)): texts if isinstance(texts, list) else [str(texts)]
            for name, texts in message.items()
            if "." not in name  # a field of an inner record: the record itself has an error as well
        }
        return problems | _problems_of_inputs(problems)
    if error.status == 400 and isinstance(text, str):
        return _problems_of_parameters(text)
    if isinstance(message, str) and (failed := _FAILED_TO_SAVE.fullmatch(message)):
        return {_FIELDS.get(failed[1], failed[1]): [failed[2]]}
    reason = reason_of(error)
    if not reason and error.status == 404:
        reason = str(message).removeprefix("404 ").capitalize()  # "404 Branch Not Found"
    return {"": [reason]} if reason else {}


def _problems_of_inputs(problems: Problems) -> Problems:
    """Move sentences about inputs from the form to their fields, if the form has no other sentences."""
    texts = problems.get("", [])
    if not all(isinstance(text, str) and _OF_INPUT.match(text) for text in texts):
        return {}
    by_field: Problems = {"": []} if texts else {}
    for name, sentence in _OF_INPUT.findall(" ".join(texts)):
        by_field.setdefault(f"inputs[{name}]", []).append(sentence[:1].upper() + sentence[1:])
    return by_field


def _problems_of_parameters(text: str) -> Problems:
    problems: Problems = {}
    if (some := _ONE_OF_SOME.fullmatch(text)) is not None:
        return {some[1]: ["is missing"]}
    texts: list[str] = []
    for part in text.split(", "):
        if (match := _OF_PARAMETER.fullmatch(part)) is not None:
            texts = problems.setdefault(_FIELDS.get(match[1], match[1]), [])
            texts.append(match[2])
        elif texts:
            texts[-1] += f", {part}"  # the comma belongs to the sentence
        else:
            texts = problems.setdefault("", [])
            texts.append(part)
    return problems


def too_many_attempts(wait: int) -> ApiError:
    """Return the 429 error. `wait` is in seconds."""
    text = f"Too many attempts. Try again in {wait} seconds."
    return ApiError(429, {"message": text}, {"Retry-After": str(wait)})


async def once(
    request: web.Request,
    visitor: Visitor,
    form: Form,
    answer: Callable[[], Awaitable[web.StreamResponse]],
) -> web.StreamResponse:
    """Return the answer to a form. If the same form is sent again (a double click), return the first one's redirect.

    Raise 409 if the first takes too long. These may be sent again: a refused form, a form whose answer is more than a
    redirect, and one that begins a session, because the browser needs the cookie of the answer that it waits for.
    """
    if not form.get("form_key"):
        return await answer()
    # the claim stays, however the request is judged
    database = context.services(request).shared.database
    name = _name_of(visitor, request.path, form)
    if earlier := await _claim(database, name):
        return web.Response(status=303, headers={"Location": earlier, "Cache-Control": "no-store"})
    location = None
    try:
        response = await answer()
        if not sessions.begins_session(response):
            location = response.headers.get("Location")
        return response
    finally:
        async with database.transaction() as transaction:
            if location is None:
                await queries.release_form(transaction, name)
            else:
                await queries.settle_form(transaction, name, location)


def _name_of(visitor: Visitor, path: str, form: Form) -> bytes:
    """Return a digest that is the same only for identical forms of one browser."""
    fields = orjson.dumps(form, option=orjson.OPT_SORT_KEYS, default=_name_of_file)
    return digest(f"{visitor.cookie} {path} {fields.decode()}")


def _name_of_file(file: Any) -> list[str]:
    if not isinstance(file, UploadedFile):
        raise TypeError(file)
    return [file.name, hashlib.sha256(file.data).hexdigest()]


async def _claim(database: Database, name: bytes) -> str | None:
    """Claim the form. Return None if the caller has to answer it, otherwise the redirect of the one that did."""
    for _ in range(int(_LONGEST_WAIT / _STEP)):
        async with database.transaction() as transaction:
            if await queries.claim_form(transaction, name):
                return None
        earlier = await queries.submitted_form(database, name)
        if earlier is not None and earlier.location is not None:
            return earlier.location
        await asyncio.sleep(_STEP)
    raise conflict(
        "The same form was just submitted and is still being processed. Check whether the change was made."
    )
