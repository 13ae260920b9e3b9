"""Settings: each is defined once, here, with its default, its meaning and its bounds.

Precedence: the command line, the environment (`PILOTLIGHT_` + the name in capitals), the file of `--config`,
for a node the settings of its container platform, the default. Nothing else reads the environment.
"""

from __future__ import annotations

import dataclasses
import inspect
import ipaddress
import math
import os
import re
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from serving import container_platform
from serving.container_platform import PlatformSettings
from serving.errors import InvalidArgument
from serving.frameworks import join_environments, list_selectable

PREFIX = "PILOTLIGHT_"
OFF = "off"
MIB = 1 << 20

T = TypeVar("T")

_NUMBER = re.compile(r"\d+(\.\d+)?")
_ROUTE = re.compile(r"/[^\s?#{}]*")
_MOST_PORT = 65535
_MOST_DAYS = 36500
# That know each other: each computes with the rows of all.
MOST_SERVERS = 128

# Environment of frameworks, set before they are imported: one thread per library unless a node raises it
# (more are slower for small models, and thread pools must not exist before a fork), and quiet logs.
FRAMEWORK_ENVIRONMENT = {
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    **join_environments(),
}
# Added to it in processes that are forked: otherwise pyarrow, if pandas imports it, starts a thread.
FORK_ENVIRONMENT = {"JE_ARROW_MALLOC_CONF": "background_thread:false"}


def setting(
    default: Any,
    text: str,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    unit: str = "",
    choices: tuple[str, ...] = (),
    or_seconds: bool = False,
    or_port: bool = False,
    route: bool = False,
    is_secret: bool = False,
) -> Any:
    """One setting: its default, its meaning in one sentence, and the values allowed.

    `or_seconds` and `or_port` allow a number or a port besides the choices. `route`: the path of a URL, or
    nothing. `is_secret`: it may hold a secret, so that its value is shown nowhere.
    """
    metadata = {
        "help": text,
        "minimum": minimum,
        "maximum": maximum,
        "unit": unit,
        "choices": choices,
        "or_seconds": or_seconds,
        "or_port": or_port,
        "route": route,
        "is_secret": is_secret,
    }
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    """Limits of requests, in the gateway and in its nodes."""

    request_timeout: float = setting(
        60.0, "Seconds a request may take, waiting included.", minimum=0.001, unit="seconds"
    )
    max_body_bytes: int = setting(32 * MIB, "Largest request body, in bytes.", minimum=1, unit="bytes")
    max_answer_bytes: int = setting(
        64 * MIB, "Largest answer to a prediction, in bytes.", minimum=1, unit="bytes"
    )
    queue_requests: int = setting(4096, "Requests that may wait per version.", minimum=1, unit="requests")
    queue_bytes: int = setting(
        256 * MIB, "Bytes of bodies that may wait or be in nodes, in all.", minimum=1, unit="bytes"
    )
    max_json_depth: int = setting(
        100,
        "How deep lists and objects of a request body may be nested, the outermost counted.",
        minimum=2,
        unit="levels",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictSettings(RequestLimits):
    """How a node computes and encodes predictions; the gateway passes them on to its nodes."""

    merge_requests: str = setting(
        "auto",
        "Compute concurrent requests in one call: auto (where that is proven to change no answer), on, off.",
        choices=("auto", "on", "off"),
    )
    acceleration: str = setting(
        "proven",
        "Use a faster computation of a model where it was proven to give the same answers: proven, off.",
        choices=("proven", "off"),
    )
    call_timeout: str = setting(
        "auto",
        "Seconds that one call of a model may take; a node whose call takes longer is killed and replaced, "
        "and a standalone node ends: auto (request_timeout, because nobody waits longer), off, or a number.",
        choices=("auto", OFF),
        or_seconds=True,
    )
    merge_rows: int = setting(64, "Highest number of rows in one merged call.", minimum=1, unit="rows")
    legacy_model_errors: bool = setting(
        False, 'Answer model errors as AI Platform did: status 200 with {"error": "TEXT"}.'
    )
    single_output: str = setting(
        "auto",
        "How a SavedModel's only output is answered in AI Platform's protocol: bare, as an object with its "
        "name, or auto (bare for versions that were created with a machineType n1-...).",
        choices=("auto", "bare", "object"),
    )
    long_decimals: bool = setting(
        False,
        "Write float32 numbers of predictions as AI Platform did: 0.10000000149011612 where 0.1 will do.",
    )
    threads: int = setting(1, "Compute threads of a node.", minimum=1, unit="threads")

    @property
    def call_seconds(self) -> float:
        """`call_timeout` as a number of seconds."""
        match self.call_timeout:
            case "auto":
                return self.request_timeout
            case "off":
                return math.inf
            case seconds:
                return float(seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings(PredictSettings):
    """Settings of a server that clients connect to; the connections of nodes have no such limits."""

    header_timeout: float = setting(
        10.0,
        "Seconds from the first byte of a request until its headers must be complete.",
        minimum=1,
        unit="seconds",
    )
    body_timeout: float = setting(
        30.0,
        "Length in seconds of the window in which a request body must arrive at min_bytes_per_second or "
        "faster, on average.",
        minimum=1,
        unit="seconds",
    )
    answer_timeout: float = setting(
        60.0,
        "Length in seconds of the window in which a client must read a response at min_bytes_per_second or "
        "faster, and at least a tenth of it.",
        minimum=1,
        unit="seconds",
    )
    min_bytes_per_second: int = setting(
        1024,
        "Lowest rate at which clients send bodies and read answers; 0: any progress is enough.",
        minimum=0,
        unit="bytes per second",
    )
    keep_alive_timeout: float = setting(
        75.0, "Seconds after which a connection without a request is closed.", minimum=1, unit="seconds"
    )
    max_header_bytes: int = setting(
        64 << 10, "Largest head of a request, in bytes.", minimum=1024, unit="bytes"
    )
    max_connections: int = setting(
        10_000,
        "Connections that may be open; at most four fifths of the files that the process may open.",
        minimum=1,
        unit="connections",
    )
    allowed_hosts: str = setting(
        "",
        "Hosts that a server without access control may be called by, comma separated, besides loopback "
        "ones and the address it listens on: NAME, *.DOMAIN, or * for any.",
    )
    allowed_origins: str = setting(
        "",
        "Origins of web pages that may call such a server and read its answers, comma separated: "
        "https://app.example.com.",
    )
    arriving_bytes: int = setting(
        256 * MIB,
        "Memory for requests that are incomplete, queued behind others on a connection, or for the API, in "
        "bytes; beyond it the oldest is rejected.",
        minimum=1,
        unit="bytes",
    )
    unsent_bytes: int = setting(
        256 * MIB,
        "Bytes of answers that wait for clients to read them, in all; beyond it the connection that reads "
        "slowest is closed.",
        minimum=1,
        unit="bytes",
    )
    stop_timeout: float = setting(
        60.0,
        "Seconds after which a server that is stopping ends, whatever hangs; requests in flight have "
        "request_timeout before that.",
        minimum=1,
        unit="seconds",
    )
    grpc_port: str = setting(
        OFF,
        "Port for gRPC, on the same host: off, or a number; 0 picks a free one.",
        choices=(OFF,),
        or_port=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig(ServerSettings):
    """`pilotlight node`: one process that serves one model directory."""

    model_dir: str = setting("", "The model directory: gs://bucket/path, file:///path or a path.")
    framework: str = setting(
        "",
        "The model's framework; detected from the files when left out.",
        choices=("", *(framework.option for framework in list_selectable())),
    )
    prediction_class: str = setting("", "A custom prediction routine's class: module.Class.")
    prediction_method: str = setting(
        "",
        "The method of an estimator to call, as predict_proba; predict when left out.",
    )
    package_uris: str = setting("", "Archives of user code to install, comma separated.")
    interpreter: str = setting(
        "",
        "Another Python that computes the model with its own libraries: a path, or an environment's folder.",
    )
    host: str = setting("127.0.0.1", "Address to listen on.")
    port: int = setting(8080, "Port to listen on; 0 picks a free one.", minimum=0, maximum=_MOST_PORT)
    uds: str = setting("", "Unix socket to listen on, instead of host and port.")
    predict_route: str = setting(
        "", "An additional path that takes predictions, as in Vertex AI's containers.", route=True
    )
    health_route: str = setting(
        "", "An additional path that answers 200 while the node is ready to predict, else 503.", route=True
    )
    prepared_dir: str = setting(
        "", "Where pilotlight prepare has written; .pilotlight in the model's folder when left out."
    )
    cache_dir: Path = setting(Path("~/.cache/pilotlight"), "Where model files fetched from gs:// are kept.")
    cache_bytes: int = setting(20 << 30, "Size of that cache, in bytes.", minimum=0, unit="bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeConfig(ServerSettings):
    """`pilotlight serve`: the gateway, its nodes and all state."""

    host: str = setting("127.0.0.1", "Address to listen on.")
    port: int = setting(8080, "Port to listen on; 0 picks a free one.", minimum=0, maximum=_MOST_PORT)
    state_dir: Path = setting(
        Path("~/.local/share/pilotlight"),
        "The folder with everything that the server keeps: state, tokens, logs, caches, files of versions.",
    )
    state: str = setting(
        "",
        "Database that has the state, for one or several servers: postgresql://USER@HOST/DATABASE. The state "
        "folder still has logs, caches and files of versions. When left out, the state is in state.db there.",
        is_secret=True,
    )
    peer_host: str = setting(
        "127.0.0.1",
        "Address at which other servers of the same database reach this one; beyond this machine it takes "
        "peer_cert, peer_key and peer_ca.",
    )
    peer_port: str = setting(
        "0",
        "Port at which they do: a number, 0 for a free one, or off: this server then answers all that it is "
        "asked, and no other asks it.",
        choices=(OFF,),
        or_port=True,
    )
    peer_ca: str = setting(
        "", "PEM file with the authority whose certificates only the servers of this database have."
    )
    peer_cert: str = setting("", "PEM file with the certificate chain that this server shows to the others.")
    peer_key: str = setting("", "PEM file with the key of that certificate.")
    shared_versions_uri: str = setting(
        "",
        "Folder or gs:// bucket for the files of versions, with several servers on one database (setting "
        "state): what one has fetched and installed, the others fetch from there. When left out, their state "
        "folders must be on one file system.",
    )
    shared_versions_bytes: int = setting(
        100 << 30,
        "How much of these files this server keeps, in bytes; those that were not used for longest are "
        "removed, and fetched again when they are needed.",
        minimum=0,
        unit="bytes",
    )
    prefetch_bytes: int = setting(
        4 << 30,
        "How much of these files this server may have, in bytes, when it fetches more ahead of their first "
        "requests, of versions that are placed on it; 0 fetches none ahead.",
        minimum=0,
        unit="bytes",
    )
    default_project: str = setting(
        "local",
        "Project of models that are named without one, in TensorFlow Serving's and Triton's protocols.",
    )
    server_name: str = setting(
        "pilotlight",
        "What the server is called in the Open Inference Protocol; some of Triton's clients look for triton.",
    )
    stop_delay: float = setting(
        0.0,
        "Seconds for which a server that is asked to stop goes on answering, with 503 at /readyz, so that "
        "load balancers send their requests elsewhere; then requests in flight are finished.",
        minimum=0,
        unit="seconds",
    )
    access: str = setting(
        "auto",
        "Whether callers need a token and a role: auto (on unless host is a loopback address), on, off.",
        choices=("auto", "on", "off"),
    )
    insecure: bool = setting(
        False, "Allow access off on an address that others can reach: they can run code on this machine."
    )
    console: bool = setting(True, "Serve the console, pages for browsers, at /console/.")
    tls_cert: str = setting("", "PEM file with the certificate chain to answer HTTPS with.")
    tls_key: str = setting("", "PEM file with the key of that certificate.")
    cache_bytes: int = setting(
        20 << 30,
        "Size of the cache of fetched model files and built packages, in bytes; versions have copies.",
        minimum=0,
        unit="bytes",
    )
    scaled_deployment: str = setting(
        "",
        "Deployment of Kubernetes whose pods are the servers of this database: NAMESPACE/NAME. The server "
        "that does the work sets the number of its pods. Needs the extra kubernetes and the right to do so.",
    )
    kubernetes_credentials: Path = setting(
        Path("/var/run/secrets/kubernetes.io/serviceaccount"),
        "Folder with the token of the account that has this right, and ca.crt of the API server.",
    )
    min_servers: int = setting(
        1, "Lowest number of servers that are wanted.", minimum=1, maximum=MOST_SERVERS, unit="servers"
    )
    max_servers: int = setting(
        10, "Highest number of servers that are wanted.", minimum=1, maximum=MOST_SERVERS, unit="servers"
    )
    server_target_load: float = setting(
        0.75,
        "The share of its memory and processors that each server should use: as many servers are wanted as "
        "their loads add up to, divided by it.",
        minimum=0.1,
        maximum=1,
        unit="share of a server",
    )
    server_scale_down_delay: float = setting(
        300.0,
        "Seconds for which fewer servers must be enough before one less is wanted.",
        minimum=0,
        unit="seconds",
    )
    idle_timeout: float = setting(
        300.0,
        "Seconds without a request after which all nodes of a version are stopped.",
        minimum=0.1,
        unit="seconds",
    )
    max_nodes: int = setting(
        0,
        "Highest number of nodes of a version that sets no maxNodes; 0: the number of cores.",
        minimum=0,
        unit="nodes",
    )
    target_concurrency: float = setting(
        16.0,
        "Requests at a time, running and waiting, that call for one more node.",
        minimum=0.01,
        unit="requests",
    )
    node_concurrency: int = setting(
        128, "Highest number of requests in one node at a time.", minimum=1, unit="requests"
    )
    stable_window: float = setting(
        60.0, "Seconds over which the load is averaged.", minimum=0.1, unit="seconds"
    )
    panic_window: float = setting(
        6.0,
        "Seconds over which it is averaged to detect a burst; no node is stopped during one.",
        minimum=0.1,
        unit="seconds",
    )
    scale_down_delay: float = setting(
        60.0,
        "Seconds for which fewer nodes must be enough before some are stopped.",
        minimum=0,
        unit="seconds",
    )
    tick: float = setting(
        1.0,
        "Seconds between two scaling decisions; a request that finds no node causes one at once.",
        minimum=0.05,
        unit="seconds",
    )
    node_starts: int = setting(
        0,
        "Nodes that start at the same time; more wait. 0: twice as many as there are cores.",
        minimum=0,
        unit="nodes",
    )
    start_timeout: float = setting(
        300.0, "Seconds a node may take from its start to ready.", minimum=0.1, unit="seconds"
    )
    pilots: str = setting(
        "auto",
        "Processes that have imported a framework, from which nodes and training jobs are forked: auto "
        "(while a version needs them, and ten minutes after a training job), off, or how many seconds one "
        "stays after its last node or job.",
        choices=("auto", "off"),
        or_seconds=True,
    )
    memory_bytes: int = setting(
        0,
        "Bytes of memory that nodes may take in all; 0: what the machine, or the cgroup, has.",
        minimum=0,
        unit="bytes",
    )
    deployments: int = setting(
        2, "Versions that are created at the same time; more wait.", minimum=1, unit="versions"
    )
    build_timeout: float = setting(
        600.0,
        "Seconds that each run of pip may take that builds or installs a version's packages; a preparation "
        "that gives no sign of life for so long is ended too.",
        minimum=1,
        unit="seconds",
    )
    jobs: int = setting(2, "Batch predictions that run at the same time; more wait.", minimum=1, unit="jobs")
    queue_jobs: int = setting(1000, "Jobs that may run and wait in all.", minimum=1, unit="jobs")
    training_seats: int = setting(
        0,
        "Replicas of training jobs that run at the same time, over all jobs; 0: four for each core.",
        minimum=0,
        unit="replicas",
    )
    training_memory_bytes: int = setting(
        0,
        "Bytes of memory that all training jobs may take together; a job that names no limit has a share by "
        "its number of replicas. 0: no limit.",
        minimum=0,
        unit="bytes",
    )
    training_log_bytes: int = setting(
        64 * MIB,
        "Bytes of the log of one training job; beyond it the middle is dropped, never the ends.",
        minimum=4 * MIB,
        unit="bytes",
    )
    gpus: str = setting(
        "auto",
        "GPUs that training jobs may use, as CUDA_VISIBLE_DEVICES names them, comma separated: 0,1; auto: "
        "all of this machine; off: none.",
    )
    job_retention_days: int = setting(
        90,
        "Days that jobs are kept for after their end, with their logs; 0: for ever.",
        minimum=0,
        maximum=_MOST_DAYS,
        unit="days",
    )
    job_retention_count: int = setting(
        10_000,
        "Jobs that are kept after their end, the last ones to end; 0: any number.",
        minimum=0,
        unit="jobs",
    )
    operation_retention_days: int = setting(
        30,
        "Days that operations are kept for after they are done; 0: for ever.",
        minimum=0,
        maximum=_MOST_DAYS,
        unit="days",
    )
    operation_retention_count: int = setting(
        10_000,
        "Operations that are kept after they are done, the last ones; 0: any number.",
        minimum=0,
        unit="operations",
    )
    project_requests_per_second: float = setting(
        0.0, "Predictions per second of one project; 0: no limit.", minimum=0, unit="requests per second"
    )
    version_requests_per_second: float = setting(
        0.0, "Predictions per second of one version; 0: no limit.", minimum=0, unit="requests per second"
    )
    project_concurrency: int = setting(
        0,
        "Predictions of one project at a time, waiting and running; 0: no limit.",
        minimum=0,
        unit="requests",
    )
    version_concurrency: int = setting(
        0,
        "Predictions of one version at a time, waiting and running; 0: no limit.",
        minimum=0,
        unit="requests",
    )
    api_requests_per_minute: float = setting(
        0.0,
        "Calls per minute of the API of one project, predictions left out; 0: no limit.",
        minimum=0,
        unit="calls per minute",
    )
    jobs_per_minute: float = setting(
        0.0,
        "Jobs that one project may submit per minute; 0: no limit.",
        minimum=0,
        unit="jobs per minute",
    )
    max_models_per_project: int = setting(
        1000, "Models of one project; 0: no limit.", minimum=0, unit="models"
    )
    max_versions_per_project: int = setting(
        2000, "Versions of one project, of all its models; 0: no limit.", minimum=0, unit="versions"
    )
    max_studies_per_project: int = setting(
        1000, "Studies of one project; 0: no limit.", minimum=0, unit="studies"
    )
    event_readers: int = setting(
        100, "Clients that may follow the events (GET /events) at a time.", minimum=0, unit="clients"
    )
    batch_runner: str = setting(
        "FnApiRunner", "The Beam runner of batch predictions that name none: FlinkRunner, DataflowRunner, ..."
    )
    batch_options: str = setting(
        "",
        "Beam options for that runner, as on a command line: '--flink_master=HOST:8081 --parallelism=4'.",
        is_secret=True,
    )
    trusted_sources: str = setting(
        "",
        "Where models and packages may come from, comma separated: gs://BUCKET/FOLDER, /FOLDER, "
        "docker://REGISTRY/PATH for images of containers; anywhere when left out. Loading one runs its code.",
    )
    local_folders: str = setting(
        "",
        "Folders of this machine that callers may name for models, files of jobs and request logs, comma "
        "separated; anywhere the server may, its state folder excepted, when left out.",
    )
    runtime: tuple[str, ...] = setting(
        (),
        "Which interpreter computes versions with a runtimeVersion: 1.15=/opt/py37/bin/python; once for "
        "each, or comma separated. `pilotlight runtimes` keeps more of them.",
    )
    container_engine: str = setting(
        "",
        "Program that runs the containers of versions and training jobs: docker, podman or a path; such "
        "versions and jobs are refused when left out.",
    )
    container_concurrency: int = setting(
        8,
        "Requests that a container is asked at a time by its node; 1 for programs that cannot take more. No "
        "more than node_concurrency.",
        minimum=1,
        unit="requests",
    )
    node_environment: str = setting(
        "",
        "Variables of the server's environment that the code of models may see, comma separated, besides "
        "harmless ones like PATH and LANG.",
    )
    node_memory_bytes: int = setting(
        0,
        "Bytes of memory that one node may take; one that takes more is killed. 0: no limit.",
        minimum=0,
        unit="bytes",
    )
    node_open_files: int = setting(
        0,
        "Files and connections that one node may have open; 0: as many as the server.",
        minimum=0,
        unit="files",
    )
    node_nice: int = setting(
        0,
        "Added to the nice value of nodes, so that the server goes first where processors are busy: 0 to 19.",
        minimum=0,
        maximum=19,
        unit="steps of nice",
    )
    otel_endpoint: str = setting(
        "", "Where OpenTelemetry traces go, as OTLP over HTTP: http://HOST:4318; none are made when left out."
    )
    otel_sample: float = setting(
        0.01,
        "Share of requests that are traced, where the caller has not decided: 0 to 1.",
        minimum=0,
        maximum=1,
        unit="share of requests",
    )
    audit_data_access: str = setting(
        "off",
        "What the audit log has besides changes: off (nothing), read (get and list), predict, all.",
        choices=("off", "read", "predict", "all"),
    )
    audit_retention_days: int = setting(
        0, "Days that the files of the audit log are kept for; 0: for ever.", minimum=0, unit="days"
    )
    log_queue_bytes: int = setting(
        64 * MIB,
        "Bytes of log records that may wait in memory for the disk; more are dropped and counted.",
        minimum=1,
        unit="bytes",
    )
    log_spill_bytes: int = setting(
        1 << 30,
        "Bytes of log records that may wait on disk for each place they go to; more are dropped and counted.",
        minimum=1,
        unit="bytes",
    )
    log_rotate_bytes: int = setting(
        16 * MIB, "Size after which a log begins another file or object, in bytes.", minimum=1, unit="bytes"
    )
    log_rotate_seconds: float = setting(
        300.0, "Seconds after which a log begins another file or object.", minimum=0.1, unit="seconds"
    )
    log_bigquery: str = setting(
        "auto",
        "Request logs for tables: auto (to BigQuery, where its library and credentials are; else to files), "
        "off (to files).",
        choices=("auto", "off"),
    )
    log_stdout: bool = setting(
        False, "Print access logs and what nodes print as JSON lines on standard output too."
    )
    log_format: str = setting(
        "text", "The server's own log lines: text or json, as Cloud Logging has it.", choices=("text", "json")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """Settings of the client commands."""

    server: str = setting("http://127.0.0.1:8080", "Address of the Pilotlight server.")
    project: str = setting("local", "Project that resource names are under; any well-formed one exists.")
    token: str = setting(
        "", "Token to show to a server with access control; better in the environment.", is_secret=True
    )
    ca_cert: str = setting(
        "", "PEM file with the certificate authority of the server, if the system lacks it."
    )


def load_config(kind: type[T], given: Mapping[str, Any], file: Path | None = None) -> T:
    """The settings of a program: `given` (from flags) over environment over file over defaults.

    Raises InvalidArgument naming the setting, its source and the allowed values.
    """
    return load_sourced_settings(kind, given, file).values


@dataclass(frozen=True, slots=True)
class LoadedSettings(Generic[T]):
    """Settings, and where those came from that are no defaults: a flag, a variable, a file with its key."""

    values: T
    sources: Mapping[str, str]


def load_sourced_settings(
    kind: type[T], given: Mapping[str, Any], file: Path | None = None
) -> LoadedSettings[T]:
    """As `load_config`, with the sources."""
    chosen = _collect_chosen(kind, given, file)
    sources = {name: source for name, (source, _) in chosen.items()}
    return LoadedSettings(_build_checked(kind, chosen), sources)


def to_environment(settings: Any) -> dict[str, str]:
    """The variables that give another program the same settings."""
    return {
        PREFIX + field.name.upper(): ",".join(value) if isinstance(value, tuple) else str(value)
        for field in dataclasses.fields(settings)
        if (value := getattr(settings, field.name)) != field.default
    }


def load_node_config(
    given: Mapping[str, Any], file: Path | None = None
) -> tuple[NodeConfig, PlatformSettings]:
    """The settings of a standalone node, and those that its container platform made.

    Precedence as in `load_config`; the platform's settings override defaults only.
    """
    chosen = _collect_chosen(NodeConfig, given, file)
    contract = container_platform.read_platform_settings(os.environ, chosen)
    return _build_checked(NodeConfig, {**contract.settings, **chosen}), contract


def _collect_chosen(
    kind: type[Any], given: Mapping[str, Any], file: Path | None
) -> dict[str, tuple[str, Any]]:
    """The settings that are set explicitly, each with its source."""
    return {
        **{name: (f"{file}: {name}", value) for name, value in _read_file(kind, file).items()},
        **{name: (PREFIX + name.upper(), value) for name, value in _read_environment(kind).items()},
        **{name: (flag_of_setting(name), value) for name, value in given.items() if value is not None},
    }


def _build_checked(kind: type[T], values: Mapping[str, tuple[str, Any]]) -> T:
    hints = typing.get_type_hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    return kind(
        **{
            name: _parse_setting(fields[name], hints[name], value, source)
            for name, (source, value) in values.items()
        }
    )


@dataclass(frozen=True, slots=True)
class SettingSection:
    """Settings of a class that belong together, from `first` to where the next section of the class begins.

    `programs` are those that have them.
    """

    title: str
    programs: str
    kind: type[Any]
    first: str


SETTING_SECTIONS = (
    SettingSection("Requests", "`serve` and `node`", RequestLimits, "request_timeout"),
    SettingSection("Predictions", "`serve` and `node`", PredictSettings, "merge_requests"),
    SettingSection("Connections", "`serve` and `node`", ServerSettings, "header_timeout"),
    SettingSection("Address, state and access", "`serve`", ServeConfig, "host"),
    SettingSection("Number of servers", "`serve`", ServeConfig, "scaled_deployment"),
    SettingSection("Nodes", "`serve`", ServeConfig, "idle_timeout"),
    SettingSection("Versions, jobs and operations", "`serve`", ServeConfig, "deployments"),
    SettingSection("Limits of projects and versions", "`serve`", ServeConfig, "project_requests_per_second"),
    SettingSection("Batch prediction", "`serve`", ServeConfig, "batch_runner"),
    SettingSection("The code of models", "`serve`", ServeConfig, "trusted_sources"),
    SettingSection("Traces, logs and audit", "`serve`", ServeConfig, "otel_endpoint"),
    SettingSection("A standalone node", "`node`", NodeConfig, "model_dir"),
    SettingSection("The client commands", "", ClientConfig, "server"),
)


def list_section_fields(section: SettingSection) -> Sequence[dataclasses.Field[Any]]:
    """The settings of a section, in the order in which its class defines them."""
    own = list(inspect.get_annotations(section.kind))
    begins = sorted(own.index(other.first) for other in SETTING_SECTIONS if other.kind is section.kind)
    start = own.index(section.first)
    end = next((begin for begin in begins if begin > start), len(own))
    fields = {field.name: field for field in dataclasses.fields(section.kind)}
    return [fields[name] for name in own[start:end]]


def flag_of_setting(name: str) -> str:
    return "--" + name.replace("_", "-")


def is_repeatable(hint: Any) -> bool:
    """Whether the flag of a setting of this type may be given several times."""
    return typing.get_origin(hint) is tuple


def is_loopback(host: str) -> bool:
    """Whether an address to listen on is reachable from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _read_environment(kind: type[Any]) -> dict[str, str]:
    names = (field.name for field in dataclasses.fields(kind))
    return {name: os.environ[PREFIX + name.upper()] for name in names if PREFIX + name.upper() in os.environ}


def _read_file(kind: type[Any], file: Path | None) -> dict[str, Any]:
    if file is None:
        return {}
    import yaml  # noqa: PLC0415  only when a file is given: start-up time

    try:
        content = yaml.safe_load(file.read_text()) or {}
    except (OSError, yaml.YAMLError) as error:
        raise InvalidArgument(f"Cannot read the config file {file}: {error}") from error
    if not isinstance(content, dict):
        raise InvalidArgument(f"The config file {file} must hold a mapping of settings.")
    content = {str(name).replace("-", "_"): value for name, value in content.items()}
    known = {field.name for field in dataclasses.fields(kind)}
    if unknown := sorted(content.keys() - known):
        raise InvalidArgument(f"{file}: unknown settings {unknown}; known: {sorted(known)}")
    return content


def _parse_setting(field: dataclasses.Field[Any], hint: Any, value: Any, source: str) -> Any:
    converted = _convert_value(hint, _restore_choice(value, field.metadata["choices"]), source)
    if isinstance(converted, float) and not math.isfinite(converted):
        raise InvalidArgument(f"{source} must be a finite number; it is {converted}.")
    minimum, choices = field.metadata["minimum"], field.metadata["choices"]
    if minimum is not None and converted < minimum:
        raise InvalidArgument(f"{source} must be at least {minimum}; it is {converted}.")
    maximum = field.metadata["maximum"]
    if maximum is not None and converted > maximum:
        raise InvalidArgument(f"{source} must be at most {maximum}; it is {converted}.")
    if field.metadata["route"] and converted and not _ROUTE.fullmatch(converted):
        raise InvalidArgument(f"{source} must be a path that begins with /; it is {converted!r}.")
    if choices and converted not in choices and not _is_allowed_besides_choices(field, converted):
        allowed = ", ".join(choice for choice in choices if choice)
        allowed += "".join(
            f" or {what}" for besides, what in _BESIDES_CHOICES.items() if field.metadata[besides]
        )
        raise InvalidArgument(f"{source} must be one of {allowed}; it is {converted!r}.")
    return converted


def _restore_choice(value: Any, choices: Sequence[str]) -> Any:
    """`on` and `off` where YAML has made true and false of them, also on the way through a variable."""
    word = {"true": "on", "false": OFF}.get(str(value).lower())
    return word if word in choices else value


# Values that may be allowed besides the choices.
_BESIDES_CHOICES = {"or_seconds": "a number", "or_port": "a port"}


def _is_allowed_besides_choices(field: dataclasses.Field[Any], value: str) -> bool:
    if field.metadata["or_port"]:
        return value.isdecimal() and int(value) <= _MOST_PORT
    return bool(field.metadata["or_seconds"] and _NUMBER.fullmatch(value))


def _convert_value(hint: Any, value: Any, source: str) -> Any:
    if is_repeatable(hint):
        return _split_list(value, source)
    if isinstance(hint, types.UnionType):
        hint = typing.get_args(hint)[0]
    try:
        if hint is bool and isinstance(value, str):
            return {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}[
                value.lower()
            ]
        return hint(value)
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidArgument(f"{source} must be a {hint.__name__}; it is {value!r}.") from error


def _split_list(value: Any, source: str) -> tuple[str, ...]:
    """The texts of a list, or of a comma separated text."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        raise InvalidArgument(f"{source} must be a text or a list of texts; it is {value!r}.")
    return tuple(part for text in texts for part in map(str.strip, text.split(",")) if part)


def environment_without_settings() -> dict[str, str]:
    """The environment for child processes: the server's own without its settings."""
    return {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}


def set_framework_environment() -> None:
    """Apply FRAMEWORK_ENVIRONMENT. Call it before a framework is imported."""
    for name, value in FRAMEWORK_ENVIRONMENT.items():
        os.environ.setdefault(name, value)


def is_framework_environment_set() -> bool:
    """Whether this process's environment limits frameworks to one thread; see `set_framework_environment`."""
    return all(
        os.environ.get(name) == value
        for name, value in FRAMEWORK_ENVIRONMENT.items()
        if name.endswith("_NUM_THREADS")
    )


def set_grpc_environment() -> None:
    """Switch gRPC's fork support and logging off. Call it before gRPC is imported.

    Under uvloop its fork support can crash child processes.
    """
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
