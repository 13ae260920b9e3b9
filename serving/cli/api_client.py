"""The HTTP client of the commands, with typed errors."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote, urlsplit

from serving import errors, names
from serving.cli.console import print_debug, print_note
from serving.config import ClientConfig, is_loopback
from serving.errors import DeadlineExceeded, Internal, InvalidArgument, ServingError
from serving.http_headers import JSON, REVISION

if TYPE_CHECKING:
    import ssl

    import httpx

_TIMEOUT = 30.0
# The server bounds a prediction itself (setting request_timeout); this only ends a wait for a lost answer.
_PREDICT_TIMEOUT = 900.0
_CONNECT_TIMEOUT = 5.0
_MAX_SHOWN = 300
_REVISION = REVISION.decode()


class ServerUnreachable(ServingError):
    """No server answers at the address."""

    status = "UNAVAILABLE"


class ApiClient:
    """Calls the server of the settings, and resolves ids to full resource names.

    `region` is the value of `--region`: one machine is every region, so only a new model uses it.
    `log_http` prints each call.
    """

    def __init__(self, config: ClientConfig, region: str = "", *, log_http: bool = False) -> None:
        self._server = config.server.rstrip("/")
        self._project = config.project
        self._token = config.token
        self._log_call = print_note if log_http else print_debug
        self._ca_cert = config.ca_cert
        self.region = region
        self._revision: dict[str, str] = {}  # that of the last answer, for servers that share a database

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # It exists only after the first call.
        if "_http" in self.__dict__:
            self._http.close()

    def resolve_model_name(self, model: str) -> str:
        """The full name of a model, given by its id or its full name."""
        if model.startswith("projects/"):
            return str(names.parse_model_or_version_name(model))
        return str(names.ModelName(self._check_project(), names.check_id(model, "model")))

    def resolve_version_name(self, model: str, version: str) -> str:
        """The full name of a version, given by its id or its full name."""
        if version.startswith("projects/"):
            return str(names.parse_model_or_version_name(version))
        return f"{self.resolve_model_name(model)}/versions/{names.check_id(version, 'version')}"

    def resolve_operation_name(self, operation: str) -> str:
        """The full name of an operation, given by its id or its full name."""
        return (
            operation if operation.startswith("projects/") else f"{self.project_name}/operations/{operation}"
        )

    def resolve_job_name(self, job: str) -> str:
        """The full name of a job, given by its id or its full name."""
        return (
            job
            if job.startswith("projects/")
            else f"{self.project_name}/jobs/{names.check_job_id(job, 'job')}"
        )

    @property
    def project_name(self) -> str:
        """The full name of the project, the parent of models, jobs and operations."""
        return f"projects/{self._check_project()}"

    def resolve_project_name(self, project: str) -> str:
        """The full name of a project, given by its id or its full name."""
        return f"projects/{names.check_project(project.removeprefix('projects/'))}"

    def build_url(self, name: str) -> str:
        """The URL of a resource, by its full name."""
        return f"{self._server}/v1/{name}"

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        query: Mapping[str, Any] | None = None,
        *,
        timeout: float = _TIMEOUT,
    ) -> dict[str, Any]:
        """The server's answer to METHOD /v1/PATH. `body` is sent as JSON; bytes go as they are.

        Raises ServerUnreachable, DeadlineExceeded after `timeout` seconds of silence, or the error in the
        server's answer.
        """
        return self._send_request(method, f"/v1/{path}", body, query or {}, timeout)

    def get_unversioned(self, path: str, query: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The server's answer to GET PATH, outside `/v1`: `/nodes`, `/why/…`. Raises like `call`."""
        return self._send_request("GET", path, None, query or {}, _TIMEOUT)

    def post_unversioned(self, path: str, body: Any) -> dict[str, Any]:
        """The server's answer to POST PATH, outside `/v1`. Raises like `call`."""
        return self._send_request("POST", path, body, {}, _TIMEOUT)

    def predict(
        self, name: str, body: bytes, content_type: str = JSON, *, verb: str = "predict"
    ) -> dict[str, Any]:
        """The answer to a prediction request, which may wait for a node to start."""
        path = f"/v1/{name}:{verb}"
        return self._send_request("POST", path, body, {}, _PREDICT_TIMEOUT, content_type=content_type)

    def list_resources(self, path: str, key: str, query: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """The resources of a list; each page is fetched when it is needed."""
        token = ""
        while True:
            page = self.call("GET", path, query={**query, "pageToken": token})
            yield from page.get(key, [])
            token = page.get("nextPageToken", "")
            if not token:
                return

    def _send_request(
        self,
        method: str,
        path: str,
        body: Any,
        query: Mapping[str, Any],
        timeout: float,
        *,
        content_type: str = JSON,
    ) -> dict[str, Any]:
        import httpx  # noqa: PLC0415  start-up time

        content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        try:
            response = self._http.request(
                method,
                quote(path, safe="/:"),
                params={key: value for key, value in query.items() if value},
                content=content,
                headers={"content-type": content_type, **self._revision},
                timeout=httpx.Timeout(timeout, connect=_CONNECT_TIMEOUT),
            )
        except (httpx.ReadTimeout, httpx.WriteTimeout) as error:
            raise DeadlineExceeded(f"{self._server} did not answer within {timeout:g} s.") from error
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            raise self._invalid_server_error(str(error)) from error
        except httpx.TransportError as error:
            raise self._unreachable_error(error) from error
        self._log_call(
            f"{method} {response.request.url} answered {response.status_code}, {len(response.content)} bytes"
        )
        if _REVISION in response.headers:
            self._revision = {_REVISION: response.headers[_REVISION]}
        return self._decode_response(response)

    @cached_property
    def _http(self) -> httpx.Client:
        import httpx  # noqa: PLC0415  start-up time

        parts = urlsplit(self._server)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise self._invalid_server_error("it must look like http://HOST:PORT")
        return httpx.Client(
            base_url=self._server,
            headers=self._build_headers(),
            # Reading all root certificates takes a quarter of a second.
            verify=parts.scheme == "https" and self._load_ca_cert(),
            # A proxy cannot know what runs on this machine.
            trust_env=not is_loopback(parts.hostname),
        )

    def _build_headers(self) -> dict[str, str]:
        headers: dict[str, str] = {}
        if self._token:
            if not self._token.isprintable() or not self._token.isascii() or " " in self._token:
                raise InvalidArgument("--token (PILOTLIGHT_TOKEN) is no token: expected plt_... in one line.")
            headers["authorization"] = f"Bearer {self._token}"
        return headers

    def _load_ca_cert(self) -> ssl.SSLContext | bool:
        """The certificate authorities to trust: the system's, or the one of the settings."""
        if not self._ca_cert:
            return True
        import ssl  # noqa: PLC0415  start-up time

        try:
            return ssl.create_default_context(cafile=self._ca_cert)
        except OSError as error:  # ssl.SSLError is one
            raise InvalidArgument(f"Cannot use --ca-cert {self._ca_cert}: {error}.") from error

    def _decode_response(self, response: httpx.Response) -> dict[str, Any]:
        try:
            answer = response.json()
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise Internal(
                f"{self._server} answered with status {response.status_code} and something that is not the "
                f"API: {response.text[:_MAX_SHOWN].strip() or 'nothing'}. Is a Pilotlight server there?"
            )
        # A model's error may come with status 200 and a text; contract, section 3.3.
        if "error" in answer:
            raise self._add_token_hint(_parse_error(answer["error"]))
        if response.is_error:
            raise Internal(f"{self._server} answered with status {response.status_code}: {answer}")
        return answer

    def _add_token_hint(self, error: ServingError) -> ServingError:
        if isinstance(error, errors.Unauthenticated):
            return errors.Unauthenticated(f"{error.message} Set PILOTLIGHT_TOKEN, or use --token.")
        return error

    def _check_project(self) -> str:
        return names.check_project(self._project)

    def _invalid_server_error(self, reason: str) -> InvalidArgument:
        return InvalidArgument(f"{self._server!r} is no address of a server: {reason}.")

    def _unreachable_error(self, error: Exception) -> ServerUnreachable:
        reason = str(error).rpartition("] ")[2]  # without [Errno 111]
        return ServerUnreachable(
            f"The server at {self._server} cannot be reached ({reason}). Start one with `pilotlight serve`, "
            "or say where it is with --server or PILOTLIGHT_SERVER."
        )


def parse_rpc_status(status: Mapping[str, Any]) -> ServingError:
    """The error that a failed operation holds as `google.rpc.Status`."""
    code = status.get("code", 0)
    name = next((name for name, number in errors.RPC_CODES.items() if number == code), "")
    return _parse_error({"status": name, "message": status.get("message", f"google.rpc code {code}")})


def create_error(status: str, message: str) -> ServingError:
    """The error with this google.rpc code; Internal for an unknown code."""
    return errors.ERRORS_BY_STATUS.get(status, Internal)(message)


def _parse_error(error: Any) -> ServingError:
    if isinstance(error, dict):
        return create_error(error.get("status", ""), str(error.get("message", error)))
    return Internal(str(error))
