"""Access: tokens, and who has which role on what."""

from __future__ import annotations

import datetime
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from serving.errors import (
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ServingError,
    http_status,
)
from serving.gateway.access.access_control import AccessControl
from serving.gateway.access.policy import ADMIN, normalize_principal
from serving.gateway.access.policy_bindings import add_member, remove_member
from serving.gateway.access.roles import ROLES
from serving.gateway.access.tokens import TokenRecord, mint_token, parse_lifetime
from serving.gateway.audit.log_entry import OK_STATUS, AuditedCall, status_from_error
from serving.gateway.console.forms import EMPTY_FORM, Form
from serving.gateway.console.visit import Visit, action, page

_PATH = "/projects/{project}/access"
_SEE_TOKENS, _CHANGE_TOKENS = "pilotlight.server.getIamPolicy", "pilotlight.server.setIamPolicy"
_PROJECT, _SERVER, _MODEL_PREFIX = "project", "server", "models/"
_LIFETIMES = (
    ("1d", "a day"),
    ("7d", "7 days"),
    ("30d", "30 days"),
    ("90d", "90 days"),
    ("365d", "a year"),
    ("", "without end"),
)
_DEFAULT_LIFETIME = "30d"
_MAX_TITLE = 200
_MAX_TOKENS = 500


@dataclass(frozen=True, slots=True)
class PolicyTarget:
    """What a policy is of; `methods` is what ids of its methods begin with, `on` how pages name it.

    `model` is "" where it is of no model.
    """

    on: str
    title: str
    methods: str
    project: str
    model: str = ""

    async def read(self, visit: Visit) -> dict[str, Any]:
        # Models, as in Google's API, take no body here.
        body: dict[str, Any] | None = None if self.model else {}
        policy: dict[str, Any] = await visit.call(
            f"{self.methods}.getIamPolicy", body=body, project=self.project, model=self.model
        )
        return policy

    async def write(self, visit: Visit, policy: dict[str, Any]) -> None:
        await visit.call(
            f"{self.methods}.setIamPolicy", body={"policy": policy}, project=self.project, model=self.model
        )

    def may_write(self, visit: Visit) -> bool:
        return visit.may(f"{self.methods}.setIamPolicy", project=self.project, model=self.model)


@dataclass(frozen=True, slots=True)
class TokenRow:
    """A token as pages show it; times are ISO 8601, "" for none."""

    id: str
    principal: str
    title: str
    state: str
    created: str
    expires: str
    last_use: str


async def show_access(visit: Visit) -> Response:
    return await _render_page(visit, visit.query.get("on", ""))


async def change_members(visit: Visit) -> Response:
    """Give a member a role, or take it; refused if the policy has changed since the page was made."""
    form = await visit.read_form()
    target = _parse_target(visit.project, form["on"])
    visit.require(f"{target.methods}.setIamPolicy", project=target.project, model=target.model)
    change = remove_member if form["change"] == "remove" else add_member
    try:
        policy = change(await target.read(visit), form["member"], form["role"])
        if etag := form["etag"]:
            policy["etag"] = etag
        await target.write(visit, policy)
    except ServingError as error:
        return await _render_page(visit, target.on, error=error, form=form)
    done = "no longer has" if form["change"] == "remove" else "has"
    return visit.redirect(
        f"{_PATH.format(project=visit.project)}?on={target.on}",
        notice=f"{form['member']} {done} the role {form['role']}.",
    )


async def create_token(visit: Visit) -> Response:
    """The secret is in this answer alone."""
    visit.require(_CHANGE_TOKENS)
    access, form = _get_access(visit), await visit.read_form()
    try:
        secret, record = _mint_token(visit, form)
        call = visit.describe_call(
            "pilotlight.tokens.create",
            f"tokens/{record.name}",
            principal=visit.caller.principal,
            request={"principal": record.principal},
        )
        await visit.console.audit.record_intent(call)
        await _put_token(visit, access, record, call)
    except ServingError as error:
        return await _render_page(visit, "", error=error, form=form)
    return await _render_page(visit, "", secret=secret, record=record)


async def revoke_token(visit: Visit) -> Response:
    visit.require(_CHANGE_TOKENS)
    access, token, audit = _get_access(visit), visit.path_params["token"], visit.console.audit
    if all(record.name != token for record in await access.list_tokens()):
        raise NotFound(f"There is no token {token!r}.")
    call = visit.describe_call(
        "pilotlight.tokens.revoke", f"tokens/{token}", principal=visit.caller.principal
    )
    await audit.record_intent(call)
    try:
        record = await access.revoke_token(token)
    except ServingError as error:
        await audit.record_result(call, status_from_error(error))
        raise
    await audit.record_result(call, OK_STATUS)
    return visit.redirect(
        _PATH.format(project=visit.project), notice=f"The token {token} of {record.principal} is revoked."
    )


async def _put_token(visit: Visit, access: AccessControl, record: TokenRecord, call: AuditedCall) -> None:
    try:
        await access.put_token(record)
    except ServingError as error:
        await visit.console.audit.record_result(call, status_from_error(error))
        raise
    await visit.console.audit.record_result(call, OK_STATUS)


def _mint_token(visit: Visit, form: Form) -> tuple[str, TokenRecord]:
    """Raises InvalidArgument, PermissionDenied."""
    principal, lifetime, title = normalize_principal(form["principal"]), form["lifetime"], form["title"]
    if principal == ADMIN.principal and visit.caller != ADMIN:
        # Its rights are not those of a role, and cannot be taken.
        raise PermissionDenied(f"Only {principal} makes tokens for itself.")
    if len(title) > _MAX_TITLE:
        raise InvalidArgument(f"What a token is for takes at most {_MAX_TITLE} characters.", field="title")
    return mint_token(
        principal, time.time(), title=title, seconds=parse_lifetime(lifetime) if lifetime else None
    )


def _get_access(visit: Visit) -> AccessControl:
    """Raises FailedPrecondition while access control is off."""
    if visit.console.access is None:
        raise FailedPrecondition("Access control is off (setting access): there are no tokens.")
    return visit.console.access


def _parse_target(project: str, on: str) -> PolicyTarget:
    """`on` is server, models/NAME, or else the project."""
    if on == _SERVER:
        return PolicyTarget(on, "the whole server", "pilotlight.server", project)
    if model := on.removeprefix(_MODEL_PREFIX) if on.startswith(_MODEL_PREFIX) else "":
        return PolicyTarget(on, f"the model {model}", "projects.models", project, model)
    return PolicyTarget(_PROJECT, f"the project {project}", "pilotlight.projects", project)


async def _render_page(
    visit: Visit,
    on: str,
    *,
    error: ServingError | None = None,
    form: Form = EMPTY_FORM,
    secret: str = "",
    record: TokenRecord | None = None,
) -> Response:
    target = _parse_target(visit.project, on)
    policy = await target.read(visit)
    access = visit.console.access
    return visit.render(
        "access.html",
        status=200 if error is None else http_status(error),
        error=error,
        form=form,
        is_on=access is not None,
        target=target,
        targets=await _list_targets(visit),
        bindings=policy.get("bindings", []),
        etag=policy.get("etag", ""),
        may_change=target.may_write(visit),
        roles=[(role, role) for role in ROLES],
        secret=secret,
        record=record,
        tokens=await _list_tokens(access) if access is not None and visit.may(_SEE_TOKENS) else None,
        most_tokens=_MAX_TOKENS,
        may_change_tokens=visit.may(_CHANGE_TOKENS),
        lifetimes=_LIFETIMES,
        lifetime=form["lifetime"] or _DEFAULT_LIFETIME,
    )


async def _list_targets(visit: Visit) -> Sequence[tuple[str, str]]:
    """What the visitor may choose, with its title."""
    found = [(_PROJECT, f"project {visit.project}")]
    if visit.may("pilotlight.server.getIamPolicy"):
        found.append((_SERVER, "the whole server"))
    if visit.may("projects.models.list", project=visit.project):
        listed = await visit.call("projects.models.list", project=visit.project)
        names = [model["name"].rpartition("/")[2] for model in listed.get("models", [])]
        found += [(f"{_MODEL_PREFIX}{name}", f"model {name}") for name in names]
    return found


async def _list_tokens(access: AccessControl) -> Sequence[TokenRow]:
    """The newest ones; those that are good before those that are not."""
    now = time.time()
    records = sorted(
        await access.list_tokens(), key=lambda one: (bool(one.describe_invalidity(now)), -one.created)
    )
    return [
        TokenRow(
            id=record.name,
            principal=record.principal,
            title=record.title,
            state=record.describe_invalidity(now) or "good",
            created=_format_time(record.created),
            expires=_format_time(record.expires),
            last_use=_format_time(access.get_last_use(record.name)),
        )
        for record in records[:_MAX_TOKENS]
    ]


def _format_time(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


ROUTES = (
    page(_PATH, show_access),
    action(f"{_PATH}/members", change_members),
    action(f"{_PATH}/tokens", create_token),
    action(f"{_PATH}/tokens/{{token}}/revocation", revoke_token),
)
