"""The ASGI application below /console/: sessions, safety and errors around the functions of the pages."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable
from urllib.parse import quote, unquote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route, Router

from serving.errors import (
    Internal,
    NotFound,
    PermissionDenied,
    ServingError,
    Unauthenticated,
    find_shortage,
    http_status,
    method_not_allowed,
)
from serving.gateway.api.request_io import Endpoint
from serving.gateway.console.forms import ANTI_FORGERY_FIELD
from serving.gateway.console.pages import (
    access,
    audit,
    deploy,
    doctor,
    jobs,
    models,
    operations,
    overview,
    prediction_jobs,
    settings,
    training_jobs,
    trials,
    version_details,
    versions,
)
from serving.gateway.console.rendering import ROOT, PageRenderer, SharedPartResponse, TemplateResponse
from serving.gateway.console.services import ConsoleServices
from serving.gateway.console.sessions import (
    SESSION_SECONDS,
    is_anti_forgery_token,
    is_visitor,
    new_visitor,
)
from serving.gateway.console.sign_in import SIGN_IN_PATH, SignInPages
from serving.gateway.console.static_files import StaticFiles
from serving.gateway.console.visit import NOTICE_COOKIE, PageRoute, Visit
from serving.gateway.request_context import UNKNOWN_CALLER, Caller
from serving.http_headers import Receive, Scope, Send
from serving.transport.cross_origin import parse_authority

logger = logging.getLogger(__name__)

PAGES = (
    overview,
    models,
    versions,
    version_details,
    jobs,
    prediction_jobs,
    training_jobs,
    deploy,
    operations,
    trials,
    access,
    audit,
    doctor,
    settings,
)

# Scripts of the console name themselves when they fetch a part of a page.
_PART_HEADER = "x-console-part"
_HEADERS = {
    # Nothing but this server's files and answers, no script or style in the page itself, no page around it.
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class ConsoleApp:
    def __init__(self, services: ConsoleServices) -> None:
        self._services = services
        self._static = StaticFiles()
        self._renderer = PageRenderer(self._static.prefix)
        self._sessions = services.sessions
        routes = [route for module in PAGES for route in module.ROUTES]
        sign_in = SignInPages(self._sessions, services.access, services.audit)
        self._router = Router(
            [
                Route(f"{ROOT}/static/{{digest}}/{{name}}", self._answer_static),
                *self._build_routes([*routes, *sign_in.build_routes()]),
                Route(f"{ROOT}/{{rest:path}}", self._answer_unknown_path),
            ]
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._router(scope, receive, send)

    def _build_routes(self, routes: Iterable[PageRoute]) -> list[Route]:
        return [
            Route(ROOT + route.path, self._make_endpoint(route), methods=[route.verb]) for route in routes
        ]

    def _make_endpoint(self, route: PageRoute) -> Endpoint:
        async def answer(request: Request) -> Response:
            visit = await self._open_visit(request)
            try:
                response = await self._answer_page(route, visit)
            except Unauthenticated as error:
                response = await self._answer_unauthenticated(visit, error)
            except ServingError as error:
                response = visit.render_error(error, http_status(error))
            except Exception as error:
                logger.exception("the page %s cannot be shown", request.url.path)
                shortage = find_shortage(error) or Internal("Internal error encountered; the log has more.")
                response = visit.render_error(shortage, http_status(shortage))
            return await self._finish(visit, response)

        return answer

    async def _answer_page(self, route: PageRoute, visit: Visit) -> Response:
        """Raises Unauthenticated, PermissionDenied, and what the page raises."""
        if not route.is_public and self._services.access is not None:
            visit.caller = self._authenticate(visit)
        if route.verb != "GET":
            await _check_anti_forgery_token(visit)
        return await route.answer(visit)

    async def _open_visit(self, request: Request) -> Visit:
        cookie = request.cookies.get(_cookie_name(request), "")
        visitor = cookie if is_visitor(cookie) else new_visitor()
        notice = unquote(request.cookies.get(NOTICE_COOKIE, ""))
        # Without access control there are none, and with a new id neither.
        has_session = self._services.access is not None and visitor == cookie
        session = await self._sessions.find(visitor) if has_session else None
        return Visit(self._services, request, visitor, session=session, notice=notice)

    def _authenticate(self, visit: Visit) -> Caller:
        """Raises Unauthenticated without a session, or if its token is no longer valid."""
        access, session = self._services.access, visit.session
        if access is None:
            return UNKNOWN_CALLER
        if session is None:
            raise Unauthenticated("Sign in to see this page.")
        return access.resolve_caller(b"Bearer " + session.token.encode())

    async def _answer_unauthenticated(self, visit: Visit, error: Unauthenticated) -> Response:
        """A form that was sent after the end of a session is shown, so that what was typed is not lost."""
        if _PART_HEADER in visit.request.headers:
            return Response(error.message, 401, media_type="text/plain")
        if visit.request.method == "GET":
            return visit.redirect(f"{SIGN_IN_PATH}?next={quote(visit.path_with_query, safe='')}")
        try:
            await visit.read_form()
        except ServingError:
            return visit.redirect(SIGN_IN_PATH)
        return visit.render_error(error, http_status(error))

    async def _finish(self, visit: Visit, response: Response) -> Response:
        """Render the page, and add the cookie and the headers that every page has."""
        request = visit.request
        if isinstance(response, TemplateResponse | SharedPartResponse):
            await self._renderer.render_response(response)
            if visit.notice and _PART_HEADER not in request.headers:
                response.delete_cookie(NOTICE_COOKIE, path=ROOT)
            _leave_out_known_body(request, response)
        for name, value in _HEADERS.items():
            response.headers.setdefault(name, value)
        if request.cookies.get(_cookie_name(request)) != visit.visitor:
            response.set_cookie(
                _cookie_name(request),
                visit.visitor,
                max_age=int(SESSION_SECONDS),
                path=ROOT,
                secure=_is_secure(request),
                httponly=True,
                samesite="strict",
            )
        return response

    async def _answer_static(self, request: Request) -> Response:
        try:
            return self._static.respond(request.path_params["name"])
        except NotFound as error:
            return Response(error.message, 404, media_type="text/plain", headers=_HEADERS)

    async def _answer_unknown_path(self, request: Request) -> Response:
        visit = await self._open_visit(request)
        with contextlib.suppress(Unauthenticated):
            visit.caller = self._authenticate(visit)
        known = [
            route for route in self._router.routes[:-1] if route.matches(request.scope)[0] is not Match.NONE
        ]
        error: ServingError = NotFound(f"The console has no page {request.url.path}.")
        if known:
            verbs = ", ".join(sorted({verb for route in known for verb in getattr(route, "methods", ())}))
            error = method_not_allowed(request.method, request.url.path, verbs)
        return await self._finish(visit, visit.render_error(error, http_status(error)))


async def _check_anti_forgery_token(visit: Visit) -> None:
    """Raises PermissionDenied for a form that was not made by a page of this visitor."""
    form = await visit.read_form()
    if not is_anti_forgery_token(visit.visitor, form[ANTI_FORGERY_FIELD]):
        raise PermissionDenied(
            "Nothing was changed: the form does not belong to your session, which may have ended. Load the "
            "page again and repeat what you did."
        )


def _leave_out_known_body(request: Request, response: Response) -> None:
    """A page that shows this part already gets none of it again; one that is done has another status."""
    if response.status_code == 200 and request.headers.get("if-none-match") == response.headers["etag"]:
        response.status_code = 304
        response.body = b""
        del response.headers["content-length"], response.headers["content-type"]


def _cookie_name(request: Request) -> str:
    """Cookies know no ports, so that of each server on a machine has its port in its name."""
    authority = parse_authority(request.headers.get("host", "").encode("latin-1"))
    return f"pilotlight-{authority.port or 0}" if authority is not None else "pilotlight"


def _is_secure(request: Request) -> bool:
    return request.url.scheme == "https" or request.headers.get("x-forwarded-proto") == "https"
