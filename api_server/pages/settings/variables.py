"""Handlers of the forms of variables in the CI/CD settings of a project or a group."""

from typing import Any

import attrs
from aiohttp import web

from api_server.ci.variables import handlers
from api_server.namespaces.resources import Group, Project
from api_server.pages import page
from api_server.pages.routes import Pages
from api_server.pages.sessions import Form, Visitor
from api_server.pages.settings import frame
from api_server.pages.settings.ci_cd import MAINTAINER, OF_GROUP, OF_PROJECT, OWNER, show_ci_settings
from api_server.web.routes import ask

pages = Pages()

#: Variables of the same name differ in their environment scopes, which may contain slashes.
_ONE = "variables/{key}/{scope:.+}"


@attrs.frozen(kw_only=True)
class OneVariable:
    key: str
    scope: str

    @property
    def named(self) -> dict[str, Any]:
        """The parameters that name the variable in the API."""
        return {"key": self.key, "filter": {"environment_scope": self.scope}}


@pages.post(f"{OF_PROJECT}/variables", access=MAINTAINER, form_page=show_ci_settings)
@pages.post(f"{OF_GROUP}/variables", access=OWNER, form_page=show_ci_settings)
async def create_variable(
    request: web.Request, visitor: Visitor, form: Form, resource: Project | Group
) -> web.Response:
    sent = _sent(form) | {"value": form.get("secret_value", ""), **_visibility(form)}
    await ask(request, handlers.create_variable, resource, key=form.get("key", ""), **sent)
    return _back(request, visitor, resource, "The variable is made.")


@pages.post(f"{OF_PROJECT}/{_ONE}/update", access=MAINTAINER, form_page=show_ci_settings)
@pages.post(f"{OF_GROUP}/{_ONE}/update", access=OWNER, form_page=show_ci_settings)
async def update_variable(
    request: web.Request, visitor: Visitor, params: OneVariable, form: Form, resource: Project | Group
) -> web.Response:
    """Change a variable. If the form has no value, the stored one stays, unless it was shown and has been emptied."""
    value = form.get("secret_value", "")
    sent = _sent(form) | {"masked": form.get("masked", "false")}
    if value or form.get("value_shown"):
        sent["value"] = value
    await ask(request, handlers.update_variable, resource, **params.named, **sent)
    return _back(request, visitor, resource, "The variable is changed.")


@pages.post(f"{OF_PROJECT}/{_ONE}/delete", access=MAINTAINER)
@pages.post(f"{OF_GROUP}/{_ONE}/delete", access=OWNER)
async def delete_variable(
    request: web.Request, visitor: Visitor, params: OneVariable, resource: Project | Group
) -> web.Response:
    await ask(request, handlers.delete_variable, resource, **params.named)
    return _back(request, visitor, resource, "The variable is deleted.")


def _sent(form: Form) -> dict[str, Any]:
    """Return the parameters that creating and changing a variable share. References in a raw value are not expanded."""
    return {
        "variable_type": form.get("variable_type"),
        "environment_scope": form.get("environment_scope") or "*",
        "protected": form.get("protected", "false"),
        "raw": "false" if form.get("expanded") == "true" else "true",
        "description": form.get("description", ""),
    }


def _visibility(form: Form) -> dict[str, bool]:
    visibility = form.get("visibility", "visible")
    return {"masked": visibility == "masked", "masked_and_hidden": visibility == "hidden"}


def _back(request: web.Request, visitor: Visitor, resource: Project | Group, text: str) -> web.Response:
    return page.see_other(request, visitor, f"{frame.home(resource)}/-/settings/ci_cd#variables", text)
