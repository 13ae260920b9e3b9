"""Signing in with a token, and out: only where access control is on."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.responses import Response

from serving.errors import ServingError
from serving.gateway.access.access_control import AccessControl
from serving.gateway.audit.audit_log import AuditLog
from serving.gateway.audit.log_entry import AuditedCall, status_from_error
from serving.gateway.console.sessions import Session, SessionStore, new_visitor
from serving.gateway.console.visit import PageRoute, Visit, action, page
from serving.gateway.methods import SERVER

SIGN_IN_PATH = "/sign-in"


class SignInPages:
    """`access` is None while access control is off: then everybody is let in without a token."""

    def __init__(self, sessions: SessionStore, access: AccessControl | None, audit: AuditLog) -> None:
        self._sessions = sessions
        self._access = access
        self._audit = audit

    def build_routes(self) -> Sequence[PageRoute]:
        return (
            page(SIGN_IN_PATH, self.show_form, is_public=True),
            action(SIGN_IN_PATH, self.sign_in, is_public=True),
            action("/sign-out", self.sign_out, is_public=True),
        )

    async def show_form(self, visit: Visit) -> Response:
        if self._access is None:
            return visit.redirect("/")
        return visit.render("sign_in.html", destination=visit.query.get("next", "/"), error=None)

    async def sign_in(self, visit: Visit) -> Response:
        """Begin a session. The visitor's id changes, so that nobody can have known it before."""
        form = await visit.read_form()
        destination = form["next"] if form["next"].startswith("/") else "/"
        if self._access is None:
            return visit.redirect(destination)
        token = form["token"]
        try:
            # The token may have been made a moment ago.
            await self._access.refresh_tokens()
            caller = self._access.resolve_caller(b"Bearer " + token.encode())
        except ServingError as error:
            self._audit.record_denied(_describe_call(visit, "create"), status_from_error(error))
            return visit.render("sign_in.html", status=401, destination=destination, error=error)
        self._audit.record_data_access(_describe_call(visit, "create", caller.principal))
        await self._sessions.close(visit.visitor)
        visit.visitor = await self._sessions.open(token)
        return visit.redirect(destination)

    async def sign_out(self, visit: Visit) -> Response:
        if self._access is not None and visit.session is not None:
            principal = self._find_principal(self._access, visit.session)
            self._audit.record_data_access(_describe_call(visit, "delete", principal))
        await self._sessions.close(visit.visitor)
        visit.visitor = new_visitor()
        return visit.redirect(SIGN_IN_PATH)

    @staticmethod
    def _find_principal(access: AccessControl, session: Session) -> str:
        """An empty one for a token that is no longer valid."""
        try:
            return access.resolve_caller(b"Bearer " + session.token.encode()).principal
        except ServingError:
            return ""


def _describe_call(visit: Visit, verb: str, principal: str = "") -> AuditedCall:
    return visit.describe_call(f"pilotlight.sessions.{verb}", SERVER, principal=principal)
