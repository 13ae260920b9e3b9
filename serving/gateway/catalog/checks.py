"""Checks of requests; each error says what is wrong and what to do."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable

from serving.container_engine import make_run_config
from serving.errors import (
    Aborted,
    FailedPrecondition,
    InvalidArgument,
    ResourceExhausted,
    ServingError,
    field_error,
)
from serving.frameworks import list_selectable
from serving.gateway.state.records import VersionRecord
from serving.logs.sinks.writer_options import SCHEMES, check_address
from serving.names import VersionName
from serving.resources import (
    AutoScaling,
    ContainerSpec,
    ManualScaling,
    RequestLoggingConfig,
    RouteMap,
    Version,
    VersionState,
)

UNSPECIFIED_FRAMEWORK = "FRAMEWORK_UNSPECIFIED"
NUMERIC_VERSION = re.compile(r"\d+\.\d+(\.\d+)?")
_MAX_ADDRESS_LENGTH = 1024
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ROUTE = re.compile(r"/[!-~]*")
_PATH_PART = r"[a-z0-9]+(?:[._-]+[a-z0-9]+)*"
# [REGISTRY[:PORT]/]PATH[:TAG][@DIGEST]
_IMAGE = re.compile(
    rf"(?:(?:[A-Za-z0-9][A-Za-z0-9.-]*|\[[0-9A-Fa-f:]+\])(?::\d{{1,5}})?/)?{_PATH_PART}(?:/{_PATH_PART})*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@[A-Za-z0-9_+.-]+:[0-9A-Fa-f]{32,128})?"
)
_MAX_IMAGE_LENGTH = 512
# For podman these are files of this machine.
_IMAGE_FILES = ("dir:", "oci:", "oci-archive:", "docker-archive:", "sif:")
_MAX_PORT = 65535
_URL_SAFE = str.maketrans("-_", "+/")
_LABEL_KEY = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_LABEL_VALUE = re.compile(r"[a-z0-9_-]{0,63}")


def check_quota(setting: str, limit: int, current: int, what: str) -> None:
    """A project that has `current` of `what` may have one more, if `limit` allows it; 0: any number."""
    if limit and current >= limit:
        raise ResourceExhausted(
            f"The project has {current} {what} already (setting {setting} = {limit}). Delete some."
        )


def check_version(version: Version, name: VersionName) -> None:
    """Check a version to be created, as far as that needs no look at its files."""
    if version.container is not None:
        _check_container(version, version.container, name)
    elif not version.deployment_uri and not version.prediction_class:
        raise field_error(
            InvalidArgument,
            "version.deployment_uri",
            "A model directory must be given: gs://BUCKET/PATH or a path.",
        )
    known = [framework.name for framework in list_selectable()]
    if version.framework and version.framework not in (UNSPECIFIED_FRAMEWORK, *known):
        raise field_error(
            InvalidArgument,
            "version.framework",
            f"Unknown framework {version.framework!r}; known: {', '.join(known)}.",
        )
    if version.prediction_class and not version.package_uris:
        raise field_error(
            InvalidArgument,
            "version.package_uris",
            "A custom prediction routine needs the packages its class is in.",
        )
    for field, value in (
        ("runtime_version", version.runtime_version),
        ("python_version", version.python_version),
    ):
        if value and not NUMERIC_VERSION.fullmatch(value):
            raise field_error(InvalidArgument, f"version.{field}", f"{value!r} is not a version like 2.11.")
    check_labels(version.labels)
    check_scaling(version)


def _check_container(version: Version, container: ContainerSpec, name: VersionName) -> None:
    """Source: sections 2.6 and 7 of the AI Platform contract."""
    for field in ("runtime_version", "package_uris", "framework", "python_version", "prediction_class"):
        if getattr(version, field) not in ("", (), UNSPECIFIED_FRAMEWORK):
            raise field_error(InvalidArgument, f"version.{field}", "Leave it out for a custom container.")
    check_image_name(container.image, "version.container.image")
    for variable in container.env:
        if not _VARIABLE.fullmatch(variable.name) or variable.name.startswith("AIP_"):
            raise field_error(
                InvalidArgument,
                "version.container.env",
                f"{variable.name!r} is no name of a variable: it has letters, digits and '_', and does not "
                "start with a digit or AIP_.",
            )
    texts = (*container.command, *container.args, *(variable.value for variable in container.env))
    if any("\0" in text for text in texts):
        raise field_error(InvalidArgument, "version.container", "Its texts cannot hold a NUL character.")
    for port in container.ports:
        if not 0 < port.container_port <= _MAX_PORT:
            raise field_error(
                InvalidArgument,
                "version.container.ports",
                f"{port.container_port} is not a port from 1 to 65535.",
            )
    for field, route in (
        ("predict", (version.routes or RouteMap()).predict),
        ("health", (version.routes or RouteMap()).health),
    ):
        if route and not _ROUTE.fullmatch(route):
            raise field_error(
                InvalidArgument, f"version.routes.{field}", f"{route!r} must be a path that begins with '/'."
            )
    make_run_config(version, name, engine="", image="")  # raises for references that become too long


def check_image_name(image: str, field: str) -> None:
    if len(image) > _MAX_IMAGE_LENGTH or not _IMAGE.fullmatch(image) or image.startswith(_IMAGE_FILES):
        raise field_error(
            InvalidArgument,
            field,
            "Name the image as [REGISTRY/]PATH[:TAG][@DIGEST], as in registry.example.com/server:1.",
        )


def check_scaling(version: Version) -> None:
    """Check that the bounds are consistent."""
    if version.auto_scaling is not None and version.manual_scaling is not None:
        raise field_error(
            InvalidArgument, "version.manual_scaling", "Give either autoScaling or manualScaling, not both."
        )
    scaling = version.auto_scaling or AutoScaling()
    manual = version.manual_scaling or ManualScaling()
    if min(scaling.min_nodes, scaling.max_nodes, manual.nodes) < 0:
        raise field_error(InvalidArgument, "version.auto_scaling", "Numbers of nodes cannot be negative.")
    if scaling.max_nodes and scaling.min_nodes > scaling.max_nodes:
        raise field_error(InvalidArgument, "version.auto_scaling", "minNodes cannot be over maxNodes.")


def check_labels(labels: dict[str, str]) -> None:
    if len(labels) > 64:
        raise field_error(InvalidArgument, "labels", "At most 64 labels can be given.")
    for key, value in labels.items():
        if not _LABEL_KEY.fullmatch(key) or not _LABEL_VALUE.fullmatch(value):
            raise field_error(
                InvalidArgument,
                "labels",
                f"Invalid label {key!r}: {value!r}. Keys and values have lower-case letters, digits, '_' and "
                "'-', at most 63; a key starts with a letter.",
            )


def check_request_logging(config: RequestLoggingConfig | None) -> None:
    if config is None:
        return
    if not 0 <= config.sampling_percentage <= 1:
        raise field_error(
            InvalidArgument,
            "version.request_logging_config.sampling_percentage",
            f"It is a fraction from 0 to 1; {config.sampling_percentage:g} is not.",
        )
    if not config.bigquery_table_name:
        raise field_error(
            InvalidArgument,
            "version.request_logging_config.bigquery_table_name",
            "Say where to log: project.dataset.table, gs://BUCKET/PREFIX or a folder.",
        )
    if len(config.bigquery_table_name) > _MAX_ADDRESS_LENGTH:
        raise field_error(
            InvalidArgument,
            "version.request_logging_config.bigquery_table_name",
            f"It is longer than {_MAX_ADDRESS_LENGTH} characters.",
        )
    scheme, separator, _ = config.bigquery_table_name.partition("://")
    if separator and scheme not in SCHEMES:
        raise field_error(
            InvalidArgument,
            "version.request_logging_config.bigquery_table_name",
            f"Cannot log to {scheme}://; give project.dataset.table, gs://BUCKET/PREFIX or a folder.",
        )
    try:
        check_address(config.bigquery_table_name)
    except InvalidArgument as error:
        raise field_error(
            InvalidArgument, "version.request_logging_config.bigquery_table_name", error.message
        ) from error


def etags_match(given: str, current: str) -> bool:
    """Whether two etags are the same bytes; some clients send them in the other alphabet of base64."""
    return given == current or ((found := _decode_etag(given)) is not None and found == _decode_etag(current))


def _decode_etag(etag: str) -> bytes | None:
    """Decode an etag in either alphabet, padded or not; None for what is no base64."""
    text = etag.rstrip("=").translate(_URL_SAFE)
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except ValueError:
        return None


def check_etag(given: str, current: str) -> None:
    """Reject a change of something that somebody else has changed meanwhile."""
    if given and not etags_match(given, current):
        raise Aborted(
            "The etag does not match: somebody changed the resource since it was read. Read it again."
        )


def check_not_busy(record: VersionRecord, verb: str) -> None:
    """Reject changes of a version that an operation works on."""
    state = record.version.state
    if state in (VersionState.CREATING, VersionState.DELETING):
        raise field_error(
            FailedPrecondition,
            "name",
            f"The version is in state {state} and cannot be {verb} now. Wait for its operation.",
        )


def check_can_be_default(record: VersionRecord) -> str:
    """Return the id of a version that may be the default one. Raises FailedPrecondition."""
    if record.version.state is not VersionState.READY:
        raise field_error(
            FailedPrecondition,
            "name",
            f"Only a READY version can be the default; {record.name.version} is {record.version.state}.",
        )
    return record.name.version


def update_mask_error(path: str, allowed: Iterable[str]) -> ServingError:
    return field_error(
        InvalidArgument, "update_mask", f"{path!r} cannot be updated; what can: {', '.join(allowed)}."
    )
