"""The check of a Deployment whose number of pods the servers set."""

from __future__ import annotations

from serving.cli.health.result import CheckResult, report_failure, report_ok, report_warning
from serving.config import ServeConfig
from serving.errors import InvalidArgument, PermissionDenied, ServingError

_CHECK = "server scaling"


def check_server_scaling(settings: ServeConfig) -> CheckResult:
    """Whether the scale can be read and set from here, and what the server that does the work made of it."""
    from serving.gateway.control.server_scaling.kubernetes_deployment import (  # noqa: PLC0415  start-up time
        KubernetesDeployment,
        parse_deployment_name,
    )

    try:
        name = parse_deployment_name(settings.scaled_deployment)
        scale = KubernetesDeployment(name, settings.kubernetes_credentials).check_rights()
    except InvalidArgument as error:
        return report_failure(_CHECK, error.message, "Correct --scaled-deployment.")
    except PermissionDenied as error:
        return report_failure(
            _CHECK,
            error.message,
            "Give the service account a Role with get and patch on deployments/scale (docs/kubernetes.md).",
        )
    except ServingError as error:
        return report_failure(_CHECK, error.message, "See docs/kubernetes.md, Set by the leader.")
    seen = f"The scale of the Deployment {name}, {scale.pods} pods, can be read and set from here"
    return _report_last_decision(settings, seen)


def _report_last_decision(settings: ServeConfig, seen: str) -> CheckResult:
    from serving.gateway.state.shared.membership import read_servers  # noqa: PLC0415

    try:
        servers = read_servers(settings.state)
    except ServingError as error:
        return report_warning(
            _CHECK,
            f"{seen}; what servers made of it cannot be read: {error.message}",
            "See the check of the state database.",
        )
    decided = [(one.age, one.record.name, one.record.scaling) for one in servers if one.record.scaling]
    if not decided:
        return report_ok(_CHECK, f"{seen}; no server decides on it now.")
    age, name, report = min(decided, key=lambda one: one[0])
    told = f"{seen}. {name} decided {age:.0f} s ago: {report.describe()}"
    if report.error:
        return report_warning(_CHECK, told, "The number stays as it is until that is mended.")
    return report_ok(_CHECK, told)
