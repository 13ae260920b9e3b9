"""getIamPolicy, setIamPolicy and testIamPermissions: of models and jobs as in the discovery document, of
projects and of the server itself in the same form.
"""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from serving.errors import InvalidArgument, field_error
from serving.gateway.access.access_control import AccessControl
from serving.gateway.access.policy import Policy, check_permissions_exist, check_policy_version
from serving.gateway.api.request_io import Endpoint, json_response, read_resource, resource_response
from serving.gateway.catalog import Catalog, policies
from serving.gateway.methods import METHODS
from serving.gateway.request_context import get_caller
from serving.resources import Resource, to_camel_case


class SetIamPolicyRequest(Resource, frozen=True):
    """`update_mask` names the fields that are set."""

    policy: Policy | None = None
    update_mask: str = ""


class TestIamPermissionsRequest(Resource, frozen=True):
    """The permissions that a caller asks about."""

    permissions: tuple[str, ...] = ()


class GetPolicyOptions(Resource, frozen=True):
    """The format of the policy."""

    requested_policy_version: int = 0


class GetIamPolicyRequest(Resource, frozen=True):
    """The body where a policy is requested by POST."""

    options: GetPolicyOptions = GetPolicyOptions()


class PoliciesApi:
    """The methods on policies; `access` is None while access control is off."""

    def __init__(self, catalog: Catalog, access: AccessControl | None) -> None:
        self._catalog = catalog
        self._access = access

    def build_endpoints(self) -> dict[str, Endpoint]:
        """The endpoints of every resource that has a policy, by method."""
        found: dict[str, Endpoint] = {}
        for name, method in METHODS.items():
            match name.rpartition(".")[2]:
                case "getIamPolicy":
                    found[name] = self._build_get(method.resource)
                case "setIamPolicy":
                    found[name] = self._build_set(method.resource)
                case "testIamPermissions":
                    found[name] = self._build_test(method.resource)
        return found

    def _build_get(self, template: str) -> Endpoint:
        async def get_policy(request: Request) -> Response:
            check_policy_version(await _read_requested_version(request), "options.requested_policy_version")
            return resource_response(
                policies.get_policy(self._catalog.state, _resource_name(template, request))
            )

        return get_policy

    def _build_set(self, template: str) -> Endpoint:
        async def set_policy(request: Request) -> Response:
            sent = await read_resource(request, SetIamPolicyRequest)
            if sent.policy is None:
                raise field_error(InvalidArgument, "policy", "Say which policy to set.")
            mask = [to_camel_case(path.strip()) for path in sent.update_mask.split(",") if path.strip()]
            name = _resource_name(template, request)
            if mask:
                return resource_response(
                    await self._catalog.change(policies.set_policy, name, sent.policy, mask)
                )
            return resource_response(await self._catalog.change(policies.set_policy, name, sent.policy))

        return set_policy

    def _build_test(self, template: str) -> Endpoint:
        async def test_permissions(request: Request) -> Response:
            wanted = (await read_resource(request, TestIamPermissionsRequest)).permissions
            check_permissions_exist(wanted)
            held = self._filter_permissions(request, _resource_name(template, request), wanted)
            return json_response({"permissions": held} if held else {})

        return test_permissions

    def _filter_permissions(self, request: Request, name: str, wanted: Sequence[str]) -> Sequence[str]:
        if not policies.resource_exists(self._catalog.state, name):
            return ()
        if self._access is None:
            return wanted
        return self._access.filter_permissions(get_caller(request.scope), name, wanted)


async def _read_requested_version(request: Request) -> int:
    if request.method == "POST":
        return (await read_resource(request, GetIamPolicyRequest)).options.requested_policy_version
    text = request.query_params.get("options.requestedPolicyVersion", "0")
    return int(text) if text.isdecimal() else -1


def _resource_name(template: str, request: Request) -> str:
    return template.format_map(request.path_params)
