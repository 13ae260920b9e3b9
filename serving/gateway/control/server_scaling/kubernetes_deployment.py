"""The number of pods of a Deployment of Kubernetes, by its scale subresource.

A pod has the address of the API server in its environment, and a folder with a token and the authority of the
server's certificate. It needs the rights `get` and `patch` on `deployments/scale` of that Deployment alone.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from serving.errors import (
    Aborted,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ServingError,
    Unauthenticated,
    Unavailable,
)

if TYPE_CHECKING:  # importing it takes a second and a half of processor time
    from kubernetes.client import AppsV1Api

# Seconds to connect, and between two pieces of an answer.
_TIMEOUTS = (2.0, 3.0)
_LONGEST_TEXT = 500
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_LONGEST_NAME = 253


class DeploymentName(NamedTuple):
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class DeploymentScale(NamedTuple):
    """How many pods there are to be, in which version of the Deployment."""

    pods: int
    version: str


def parse_deployment_name(text: str) -> DeploymentName:
    """Raises InvalidArgument."""
    namespace, _, name = text.partition("/")
    if not all(len(part) <= _LONGEST_NAME and _NAME.fullmatch(part) for part in (namespace, name)):
        raise InvalidArgument(
            f"scaled_deployment must be NAMESPACE/NAME of a Deployment of Kubernetes; it is {text!r}."
        )
    return DeploymentName(namespace, name)


class KubernetesDeployment:
    """`credentials` is the folder with `token` and `ca.crt`, which is read again as tokens expire.

    Calls block for some seconds at most, and belong on one thread of their own: the first one imports the
    client. They raise Aborted if somebody else has changed the Deployment meanwhile, and other ServingErrors
    that say what is missing.
    """

    def __init__(self, name: DeploymentName, credentials: Path) -> None:
        """Raises FailedPrecondition if the client is not installed."""
        if importlib.util.find_spec("kubernetes") is None:
            raise FailedPrecondition(
                "Scaling a Deployment (setting scaled_deployment) needs the client of Kubernetes, which is "
                "not installed: pip install 'pilotlight[kubernetes]'."
            )
        self.name = name
        self._credentials = credentials
        self._api: AppsV1Api | None = None

    def read_scale(self) -> DeploymentScale:
        return self._call("get", "read_namespaced_deployment_scale")

    def set_pods(self, pods: int, seen: DeploymentScale) -> DeploymentScale:
        """Nothing is changed if the Deployment is another one than was `seen`."""
        body = {"metadata": {"resourceVersion": seen.version}, "spec": {"replicas": pods}}
        return self._call("patch", "patch_namespaced_deployment_scale", body=body, field_manager="pilotlight")

    def check_rights(self) -> DeploymentScale:
        """Read the scale, and try to set it to what it is, which changes nothing."""
        seen = self.read_scale()
        body = {"metadata": {"resourceVersion": seen.version}, "spec": {"replicas": seen.pods}}
        return self._call("patch", "patch_namespaced_deployment_scale", body=body, dry_run="All")

    def _call(self, verb: str, method: str, **arguments: Any) -> DeploymentScale:
        from kubernetes.client import ApiException  # noqa: PLC0415  see above
        from urllib3.exceptions import HTTPError  # noqa: PLC0415

        api = self._connect()
        try:
            answer = getattr(api, method)(
                self.name.name, self.name.namespace, _request_timeout=_TIMEOUTS, **arguments
            )
            return DeploymentScale(answer.spec.replicas or 0, answer.metadata.resource_version)
        except ApiException as error:
            if not error.status:  # of TLS
                raise self._explain_silence(error.reason) from error
            raise self._explain_refusal(verb, error) from error
        except (HTTPError, OSError) as error:
            raise self._explain_silence(error) from error
        except (ValueError, AttributeError) as error:
            raise Unavailable(f"Kubernetes has answered what is no scale of {self.name}: {error}.") from error

    def _connect(self) -> AppsV1Api:
        from kubernetes.client import ApiClient, AppsV1Api, Configuration  # noqa: PLC0415  see above
        from kubernetes.config import ConfigException  # noqa: PLC0415
        from kubernetes.config.incluster_config import InClusterConfigLoader  # noqa: PLC0415

        if self._api is None:
            configuration = Configuration()
            # The next round tries again.
            configuration.retries = False
            token, authority = self._credentials / "token", self._credentials / "ca.crt"
            try:
                InClusterConfigLoader(str(token), str(authority)).load_and_set(configuration)
            except (ConfigException, OSError) as error:
                raise FailedPrecondition(
                    "This server has no access to Kubernetes, which a pod has by the variables "
                    "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT and by token and ca.crt in "
                    f"{self._credentials} (setting kubernetes_credentials): {error}"
                ) from error
            self._api = AppsV1Api(ApiClient(configuration))
        return self._api

    def _explain_silence(self, reason: object) -> Unavailable:
        """The next call reads the credentials anew: the authority may be another one now."""
        host = self._api.api_client.configuration.host if self._api is not None else ""
        self._api = None
        return Unavailable(f"The API server of Kubernetes, {host}, does not answer: {_cut(reason)}.")

    def _explain_refusal(self, verb: str, error: Any) -> ServingError:
        text = f"Kubernetes says: {_cut(error.body or error.reason)}"
        match error.status:
            case 401:
                return Unauthenticated(f"Kubernetes does not accept the token in {self._credentials}. {text}")
            case 403:
                return PermissionDenied(
                    f"This server may not {verb} the scale of the Deployment {self.name}: the Role of its "
                    f"service account needs the verb {verb} on deployments/scale. {text}"
                )
            case 404:
                return NotFound(f"There is no Deployment {self.name} (setting scaled_deployment). {text}")
            case 409:
                return Aborted(f"The Deployment {self.name} was changed by somebody else. {text}")
        return Unavailable(f"Kubernetes has refused to {verb} the scale of {self.name}. {text}")


def _cut(text: object) -> str:
    return " ".join(str(text).split())[:_LONGEST_TEXT]
