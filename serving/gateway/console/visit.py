"""One request of a page: who makes it, and what the page may call and answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import quote

import orjson
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from serving.errors import PermissionDenied, ServingError, Unauthenticated
from serving.gateway.api.in_process import ApiCall
from serving.gateway.api.request_io import json_response
from serving.gateway.audit.log_entry import AuditedCall, AuditLogType, status_from_error
from serving.gateway.console import api_calls, forms
from serving.gateway.console.error_page import describe_error
from serving.gateway.console.forms import Form
from serving.gateway.console.navigation import NAVIGATION, OVERVIEW, NavigationItem
from serving.gateway.console.projects import (
    Elsewhere,
    ProjectSwitch,
    choose_project,
    find_filled_projects,
    list_projects,
    parse_project,
)
from serving.gateway.console.rendering import (
    ROOT,
    SharedPart,
    SharedPartResponse,
    TemplateResponse,
    build_url,
)
from serving.gateway.console.services import ConsoleServices
from serving.gateway.console.sessions import Session, derive_anti_forgery_token
from serving.gateway.methods import METHODS
from serving.gateway.request_context import UNKNOWN_CALLER, Caller
from serving.protocols import Reply

NOTICE_COOKIE = "pilotlight-notice"
# A live part with this status is fetched no more.
DONE_STATUS = 286
# Errors that are about the visitor, not about what a form says: they have pages of their own.
REFUSED_TO_VISITOR = (PermissionDenied, Unauthenticated)
_MAX_NOTICE = 500
# More are not listed on every page.
_MAX_LISTED_PROJECTS = 100
# Who may call one of them sees something of a project.
_PROJECT_METHODS = ("projects.models.list", "projects.jobs.list", "projects.operations.list")
_OUTER_HEADERS = (b"user-agent", b"x-forwarded-for", b"traceparent")


class Visit:
    """A request of `visitor`, whose id is in the cookie; `caller` is as whom the API knows it.

    `notice` is what the page before has to say. `path_params` and `query` are the parameters of the address.
    """

    def __init__(
        self,
        console: ConsoleServices,
        request: Request,
        visitor: str,
        *,
        session: Session | None = None,
        caller: Caller = UNKNOWN_CALLER,
        notice: str = "",
    ) -> None:
        self.console = console
        self.request = request
        self.visitor = visitor
        self.caller = caller
        self.notice = notice
        self.session = session
        self._form: Form | None = None

    @property
    def path_params(self) -> Mapping[str, str]:
        parameters: Mapping[str, str] = self.request.path_params
        return parameters

    @property
    def query(self) -> Mapping[str, str]:
        return self.request.query_params

    @property
    def project(self) -> str:
        """The project in force: that of the page, else one that holds something."""
        return self.named_project or choose_project(
            self.projects,
            find_filled_projects(self.console.read_state()),
            self.console.config.default_project,
        )

    @property
    def named_project(self) -> str:
        """The project that the address names; "" if it names none."""
        return self.path_params.get("project") or parse_project(self.query.get("project", ""))

    @cached_property
    def projects(self) -> Sequence[str]:
        """Those of which the visitor may see something, sorted."""
        known = list_projects(self.console.read_state(), self.console.config.default_project)
        return [project for project in known if self._may_see_project(project)]

    def _may_see_project(self, project: str) -> bool:
        if any(self.may(method, project=project) for method in _PROJECT_METHODS):
            return True
        return self.may_on_a_model("projects.models.get", project)

    @property
    def path_with_query(self) -> str:
        """The page with its query, below the console."""
        return self.request.url.path.removeprefix(ROOT) + (
            f"?{self.request.url.query}" if self.request.url.query else ""
        )

    async def call(
        self,
        method: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        **parameters: str,
    ) -> Any:
        """Call a method of the API as the visitor, and return its JSON. Raises the error that it answers."""
        return api_calls.read_reply(
            await self.call_raw(method, query=query, body=body, headers=None, **parameters)
        )

    async def call_raw(
        self,
        method: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        headers: Mapping[bytes, bytes] | None = None,
        **parameters: str,
    ) -> Reply:
        """The reply to a call as it is; a `body` of bytes is sent unchanged."""
        content = body if isinstance(body, bytes) else b"" if body is None else orjson.dumps(body)
        sent = [(name, value) for name, value in self.request.scope["headers"] if name in _OUTER_HEADERS]
        sent += (headers or {}).items()
        if self.session is not None:
            sent.append((b"authorization", b"Bearer " + self.session.token.encode()))
        if content:
            sent.append((b"content-type", b"application/json"))
        call = ApiCall(
            METHODS[method].verb, api_calls.build_target(method, parameters, query or {}), sent, content
        )
        return await self.console.api.call(self.request.scope, self.request.receive, call)

    def may(self, method: str, **parameters: str) -> bool:
        """Whether the visitor may call a method of the API; pages offer nothing else."""
        return self.may_on_resource(method, METHODS[method].resource.format_map(parameters))

    def may_on_resource(self, method: str, resource: str) -> bool:
        """Whether the visitor may call a method of the API on a resource and all that is below it."""
        access, permission = self.console.access, METHODS[method].permission
        if access is None or not permission:
            return True
        return bool(access.filter_permissions(self.caller, resource, [permission]))

    def may_on_a_model(self, method: str, project: str) -> bool:
        """Whether the visitor may call a method of the API on any one model of a project."""
        return any(
            self.may(method, project=project, model=name.model)
            for name in self.console.read_state().model_order.list_children(project)
        )

    def find_elsewhere(self, method: str, count: Callable[[str], int], page: str) -> Sequence[Elsewhere]:
        """What other projects hold of what the project in force has none of.

        Of those in which the visitor may call `method`; `page` is the path of its page, with `{project}`.
        """
        others = (one for one in self.projects if one != self.project and self.may(method, project=one))
        found = (Elsewhere(one, count(one), page.format(project=one)) for one in others)
        return [one for one in found if one.count]

    def require(self, method: str, **parameters: str) -> None:
        """Raise PermissionDenied, which the audit log has, unless the visitor may call a method."""
        if self.may(method, **parameters):
            return
        called = METHODS[method]
        resource = called.resource.format_map(parameters)
        error = PermissionDenied(
            f"Permission '{called.permission}' denied on resource '{resource}' (or it may not exist)."
        )
        described = self.describe_call(method, resource, principal=self.caller.principal)
        self.console.audit.record_denied(described, status_from_error(error))
        raise error

    def describe_call(
        self, method: str, resource: str, *, principal: str, request: Mapping[str, Any] | None = None
    ) -> AuditedCall:
        """What the audit log has of something that is no method of the API."""
        client, headers = self.request.client, self.request.headers
        return AuditedCall(
            id=self.console.audit.new_id(),
            log=AuditLogType.ACTIVITY,
            method=method,
            resource=resource,
            principal=principal,
            caller_ip="" if client is None else client.host,
            user_agent=headers.get("user-agent", ""),
            request=request,
        )

    async def read_form(self) -> Form:
        """May be called again. Raises InvalidArgument."""
        if self._form is None:
            self._form = await forms.read_form(self.request)
        return self._form

    def render(self, template: str, *, status: int = 200, **values: Any) -> Response:
        """A whole page. It is rendered after the page's function has returned, in a thread."""
        return TemplateResponse(template, {**self._layout_values(), **values}, status)

    def render_partial(self, template: str, *, done: bool = False, **values: Any) -> Response:
        """A part of a page; one that is `done` is not fetched again."""
        values = {"anti_forgery_token": derive_anti_forgery_token(self.visitor), **values}
        return TemplateResponse(template, values, DONE_STATUS if done else 200)

    def render_shared(self, part: SharedPart) -> Response:
        """A part that is rendered once for all who see the same."""
        return SharedPartResponse(part)

    def render_error(self, error: ServingError, status: int) -> Response:
        values = describe_error(self, error, self._form)
        sign_in_first = isinstance(error, Unauthenticated)
        return self.render("error.html", status=status, sign_in_first=sign_in_first, **values)

    def redirect(self, path: str, *, notice: str = "") -> Response:
        """Lead to another page, on which `notice` is shown once."""
        response = RedirectResponse(build_url(path), 303)
        if notice:
            response.set_cookie(
                NOTICE_COOKIE,
                quote(notice[:_MAX_NOTICE]),
                max_age=60,
                path=ROOT,
                httponly=True,
                samesite="strict",
            )
        return response

    def json(self, body: Any) -> Response:
        return json_response(body)

    def _layout_values(self) -> dict[str, Any]:
        project, here = self.project, self.request.url.path.removeprefix(ROOT)
        carried = self.named_project if len(self.projects) > 1 else ""
        return {
            "navigation": [
                (
                    item.title,
                    item.build_path(project if item.is_of_project else carried),
                    item.contains(here),
                    item.is_of_project,
                )
                for item in NAVIGATION
                if self._is_offered(item, project)
            ],
            "project": project,
            "switch": self._build_switch(here),
            "principal": self.caller.principal,
            "signed_in": self.session is not None,
            "watches_server": self.console.access is None or self.session is not None,
            "write_trouble": self.console.write_check.read_trouble(),
            "notice": self.notice,
            "anti_forgery_token": derive_anti_forgery_token(self.visitor),
        }

    def _build_switch(self, here: str) -> ProjectSwitch | None:
        """None for a visitor who sees no project."""
        if not self.projects:
            return None
        page = next((item for item in NAVIGATION if item.contains(here)), OVERVIEW)
        listed = self.projects[:_MAX_LISTED_PROJECTS]
        return ProjectSwitch(
            self.project,
            {
                one: (page if self._is_offered(page, one) else OVERVIEW).build_path(one)
                for one in listed
                if len(self.projects) > 1
            },
            OVERVIEW.path if len(self.projects) > 1 else "",
            len(self.projects) - len(listed),
        )

    def _is_offered(self, item: NavigationItem, project: str) -> bool:
        if not item.method or self.may(item.method, project=project):
            return True
        return bool(item.model_method) and self.may_on_a_model(item.model_method, project)


PageFunction = Callable[[Visit], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class PageRoute:
    """A path below the console and the function that answers it; `is_public`: also before signing in."""

    verb: str
    path: str
    answer: PageFunction
    is_public: bool = False


def page(path: str, answer: PageFunction, *, is_public: bool = False) -> PageRoute:
    return PageRoute("GET", path, answer, is_public)


def action(path: str, answer: PageFunction, *, is_public: bool = False) -> PageRoute:
    """A change: the form must carry the visitor's anti-forgery token."""
    return PageRoute("POST", path, answer, is_public)
