"""All permissions, and those of each role.

Source: section 9.1 of the AI Platform contract, which follows Google's IAM reference. The contract says of
the basic roles that an editor equals an admin and a viewer equals a viewer; here a viewer may also predict
online. Only the owner changes the policies of projects and of the server itself. Logs, which AI Platform
kept elsewhere, show what others sent and who they are: no role that everybody may be given reads them.
"""

from __future__ import annotations

from collections.abc import Mapping


def _build_permissions(resource: str, verbs: str) -> frozenset[str]:
    """Return `ml.RESOURCE.VERB` for each verb."""
    return frozenset(f"ml.{resource}.{verb}" for verb in verbs.split())


_JOB_OWNER = _build_permissions("jobs", "create get list cancel update getIamPolicy setIamPolicy")
_PREDICT = _build_permissions("models", "predict") | _build_permissions("versions", "predict")
_VERSION_READ = _build_permissions("versions", "get list")
_LOG_READ = frozenset({"logging.logEntries.list"})
_MODEL_USER = _build_permissions("models", "get") | _PREDICT | _VERSION_READ
_MODEL_OWNER = (
    _MODEL_USER
    | _build_permissions("models", "create list update delete getIamPolicy setIamPolicy")
    | _build_permissions("versions", "create update delete")
    | _LOG_READ
)
_OPERATION_READ = _build_permissions("operations", "get list")
_OPERATION_OWNER = _OPERATION_READ | _build_permissions("operations", "cancel")
_PROJECT_READ = (
    _build_permissions("locations", "get list")
    | _build_permissions("projects", "getConfig")
    | {"resourcemanager.projects.get"}
)
_STUDY_READ = _build_permissions("studies", "get list getIamPolicy") | _build_permissions(
    "trials", "get list"
)
_STUDY_OWNER = (
    _STUDY_READ
    | _build_permissions("studies", "create delete setIamPolicy")
    | _build_permissions("trials", "create update delete")
)

_VIEWER = (
    _build_permissions("jobs", "get list")
    | _build_permissions("models", "get list")
    | _VERSION_READ
    | _OPERATION_READ
    | _PROJECT_READ
    | _STUDY_READ
)
_DEVELOPER = (
    _VIEWER
    | _build_permissions("jobs", "create getIamPolicy")
    | _build_permissions("models", "create getIamPolicy")
    | _PREDICT
    | _LOG_READ
    | _STUDY_OWNER
)
_ADMIN = _JOB_OWNER | _MODEL_OWNER | _OPERATION_OWNER | _PROJECT_READ | _STUDY_OWNER
_POLICY_READ = frozenset({"resourcemanager.projects.getIamPolicy"})
_POLICY_WRITE = frozenset({"resourcemanager.projects.setIamPolicy"})

MODEL_OWNER, JOB_OWNER, OPERATION_OWNER = (
    "roles/ml.modelOwner",
    "roles/ml.jobOwner",
    "roles/ml.operationOwner",
)

ROLES: Mapping[str, frozenset[str]] = {
    "roles/ml.admin": _ADMIN,
    "roles/ml.developer": _DEVELOPER,
    "roles/ml.viewer": _VIEWER,
    MODEL_OWNER: _MODEL_OWNER,
    "roles/ml.modelUser": _MODEL_USER,
    JOB_OWNER: _JOB_OWNER,
    OPERATION_OWNER: _OPERATION_OWNER,
    "roles/owner": _ADMIN | _POLICY_READ | _POLICY_WRITE,
    "roles/editor": _ADMIN | _POLICY_READ,
    "roles/viewer": _VIEWER | _PREDICT,
}
# The only roles that callers without a token can have.
PUBLIC_ROLES = frozenset({"roles/ml.viewer", "roles/ml.modelUser", "roles/viewer"})
PERMISSIONS = ROLES["roles/owner"]
