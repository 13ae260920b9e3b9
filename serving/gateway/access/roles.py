"""Every permission, and which of them each role holds.

Source: section 9.1 of the AI Platform contract, which follows Google's IAM reference. The contract says of
the basic roles that an editor is as an admin and a viewer as a viewer; a viewer here may predict online
besides. The policies of projects and of the server itself are the owner's to change. Logs, which AI Platform
kept elsewhere, have what others sent and who they are: no role that everybody may be given reads them.
"""

from __future__ import annotations

from collections.abc import Mapping


def _all(kind: str, verbs: str) -> frozenset[str]:
    """`ml.KIND.VERB` for each verb."""
    return frozenset(f"ml.{kind}.{verb}" for verb in verbs.split())


_JOB_OWNER = _all("jobs", "create get list cancel update getIamPolicy setIamPolicy")
_PREDICT = _all("models", "predict") | _all("versions", "predict")
_VERSION_READ = _all("versions", "get list")
_LOG_READ = frozenset({"logging.logEntries.list"})
_MODEL_USER = _all("models", "get") | _PREDICT | _VERSION_READ
_MODEL_OWNER = (
    _MODEL_USER
    | _all("models", "create list update delete getIamPolicy setIamPolicy")
    | _all("versions", "create update delete")
    | _LOG_READ
)
_OPERATION_READ = _all("operations", "get list")
_OPERATION_OWNER = _OPERATION_READ | _all("operations", "cancel")
_PROJECT_READ = (
    _all("locations", "get list") | _all("projects", "getConfig") | {"resourcemanager.projects.get"}
)
_STUDY_READ = _all("studies", "get list getIamPolicy") | _all("trials", "get list")
_STUDY_OWNER = (
    _STUDY_READ | _all("studies", "create delete setIamPolicy") | _all("trials", "create update delete")
)

_VIEWER = (
    _all("jobs", "get list")
    | _all("models", "get list")
    | _VERSION_READ
    | _OPERATION_READ
    | _PROJECT_READ
    | _STUDY_READ
)
_DEVELOPER = (
    _VIEWER
    | _all("jobs", "create getIamPolicy")
    | _all("models", "create getIamPolicy")
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
# All that a caller without a token can be given.
PUBLIC_ROLES = frozenset({"roles/ml.viewer", "roles/ml.modelUser", "roles/viewer"})
PERMISSIONS = ROLES["roles/owner"]
