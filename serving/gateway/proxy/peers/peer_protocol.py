"""What servers say to each other: frames as between gateway and node, after a handshake.

Both sides of a new connection prove that they know the secret of their database, and neither tells it: the
client sends a nonce (HELLO), the server answers with its proof and a nonce of its own (CHALLENGE), the client
with its proof (PROOF), and the server accepts it. A proof names the server that the client means, and
where: who takes a dead server's port cannot hand the proofs on to a living one, and be let in there. All that
stands outside of the handshake is a request of a peer, so nothing that a client of the API sends can be taken
for one.

The row of a server says which versions of this it speaks (`ProtocolVersions`). The client takes the newest
one of both (`choose_version`), and names it in HELLO. Servers without one in common pass nothing on to each
other. Within a version fields may be added at the end of what is encoded, with a default; a request that
cannot be read, and a frame of an unknown kind, are declined.

A prediction goes on as it came (`HopHead`). The body of a question (QUESTION) is known to those alone
who ask and answer, see `serving.gateway.jobs.job_questions`.
"""

from __future__ import annotations

import hmac
import ssl
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

import msgspec

from serving.config import ServeConfig, is_loopback
from serving.errors import ERRORS_BY_STATUS, Internal, InvalidArgument, ServingError
from serving.protocols import Dialect
from serving.protocols.paths import PredictionPath
from serving.transport.framing import MAX_PREFIX_BYTES, FrameError


class ProtocolVersions(NamedTuple):
    """The versions of this protocol that a server speaks: all from the oldest to the newest."""

    oldest: int
    newest: int


# The handshake of this version names none. A server whose row does not say what it speaks speaks this.
UNNAMED_VERSION = 1
# Raise the newest with a change that a server of before would take for something else, and the oldest when
# nobody upgrades from below it any more.
OWN_VERSIONS = ProtocolVersions(UNNAMED_VERSION, 2)
VERSION_FIELD = struct.Struct("<H")

# Kinds of frames besides those of `serving.transport.framing`.
HELLO_FRAME, PROOF_FRAME, QUESTION_FRAME = 16, 17, 18
# Frames of the handshake have this number; requests have others.
HANDSHAKE_NUMBER = 0
# Status of answers that are none of HTTP: of the handshake, and of a request that the server leaves to the
# other.
CHALLENGE, ACCEPTED, DECLINED, PONG = 1, 2, 3, 4
# Of the answer to a question: its body is what was asked for, or the error.
ANSWERED, FAILED = 5, 6
NONCE_BYTES = PROOF_BYTES = 32
# The protocol bounds its frames; each side leaves out longer requests and answers than its settings allow.
MOST_FRAME_BYTES = 1 << 40
# The last header line of an answer: how many seconds the server took for it.
ANSWER_SECONDS = b"x-pilotlight-answer-seconds"


def choose_version(own: ProtocolVersions, other: ProtocolVersions) -> int | None:
    """The newest version that both speak, if there is one."""
    newest = min(own.newest, other.newest)
    return newest if newest >= max(own.oldest, other.oldest) else None


class PeerAddress(NamedTuple):
    """Where another server takes requests, as it says itself; `id` is the server's."""

    id: str
    host: str
    port: int


class PeerTarget(NamedTuple):
    """A server to connect to, and the version of the protocol that both speak."""

    address: PeerAddress
    version: int


class HopHead(msgspec.Struct, frozen=True, array_like=True):
    """A request as it came, without its body and its token, and what the first server knows of it.

    `version` is the key of the version that it is for, `principal` who sent it ("" without access control). A
    call over gRPC names its model in its body, which was read already: `address` has the model, version and
    label.
    """

    method: str
    path: str
    headers: Sequence[tuple[bytes, bytes]]
    version: str
    request_id: bytes
    timeout: float
    principal: str = ""
    client: tuple[str, int] | None = None
    dialect: str = ""
    address: tuple[str, str, str, str] | None = None

    @property
    def prediction_path(self) -> PredictionPath | None:
        """Where the request names its model outside of its path; None for HTTP."""
        if self.address is None:
            return None
        verb, model, version, label = self.address
        return PredictionPath(Dialect(self.dialect), verb, model, version=version, label=label)


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(HopHead)
_DIALECTS = frozenset(dialect.value for dialect in Dialect)


def encode_head(head: HopHead) -> bytes | None:
    """None if it is too long to be passed on."""
    encoded = _ENCODER.encode(head)
    return encoded if len(encoded) <= MAX_PREFIX_BYTES else None


def decode_head(encoded: bytes) -> HopHead:
    """Raises msgspec.DecodeError, also for a dialect that only a later version knows."""
    head = _DECODER.decode(encoded)
    has_dialect = bool(head.dialect) or head.address is not None
    if has_dialect and head.dialect not in _DIALECTS:
        raise msgspec.ValidationError(f"unknown dialect {head.dialect!r}")
    return head


class AnsweredError(msgspec.Struct, frozen=True, array_like=True):
    """An error in answer to a question; the fields are those of `ServingError`."""

    status: str
    message: str
    field: str = ""
    retry_after: float | None = None


_ERROR_DECODER = msgspec.msgpack.Decoder(AnsweredError)


def encode_error(error: ServingError) -> bytes:
    return _ENCODER.encode(AnsweredError(error.status, error.message, error.field, error.retry_after))


def decode_error(encoded: bytes) -> ServingError:
    """Raises msgspec.DecodeError."""
    found = _ERROR_DECODER.decode(encoded)
    kind = ERRORS_BY_STATUS.get(found.status, Internal)
    return kind(found.message, field=found.field, retry_after=found.retry_after)


class HandshakeKey(NamedTuple):
    """What proves on a connection to the server at `address` that one knows the secret of the database."""

    secret: bytes
    address: PeerAddress

    def prove(self, role: bytes, nonce: bytes, version: int) -> bytes:
        """The proof of the server or the client of a connection (`role`) for the nonce of the other."""
        named = role if version == UNNAMED_VERSION else b"%b %d" % (role, version)
        proven = b"%b %b %b" % (named, nonce, msgspec.json.encode(self.address))
        return hmac.digest(self.secret, proven, "sha256")

    def is_proof(self, proof: bytes, role: bytes, nonce: bytes, version: int) -> bool:
        return len(nonce) == NONCE_BYTES and hmac.compare_digest(proof, self.prove(role, nonce, version))


def encode_hello(nonce: bytes, version: int) -> bytes:
    return nonce if version == UNNAMED_VERSION else nonce + VERSION_FIELD.pack(version)


def decode_hello(body: bytes) -> tuple[bytes, int]:
    """The nonce, and the version that the connection is to speak. Raises FrameError."""
    nonce, named = body[:NONCE_BYTES], body[NONCE_BYTES:]
    if len(nonce) < NONCE_BYTES or len(named) not in (0, VERSION_FIELD.size):
        raise FrameError
    return nonce, VERSION_FIELD.unpack(named)[0] if named else UNNAMED_VERSION


@dataclass(frozen=True, slots=True)
class PeerTls:
    """How servers encrypt what they say to each other, and know each other's certificates."""

    server: ssl.SSLContext
    client: ssl.SSLContext

    @classmethod
    def from_settings(cls, config: ServeConfig) -> Self | None:
        """None without certificates, which only a loopback address may do without.

        Raises InvalidArgument for settings that cannot be used.
        """
        files = {
            "--peer-ca": config.peer_ca,
            "--peer-cert": config.peer_cert,
            "--peer-key": config.peer_key,
        }
        if not any(files.values()):
            if not is_loopback(config.peer_host):
                raise InvalidArgument(
                    f"Other servers reach this one at {config.peer_host} (setting peer_host), which is no "
                    "loopback address: that takes certificates (--peer-ca, --peer-cert, --peer-key)."
                )
            return None
        if missing := [flag for flag, file in files.items() if not file]:
            raise InvalidArgument(f"Certificates between servers also take {', '.join(missing)}.")
        for flag, file in files.items():
            try:
                Path(file).read_bytes()
            except OSError as error:
                raise InvalidArgument(f"Cannot read {flag} {file}: {error.strerror}.") from error
        try:
            return cls(
                _create_context(ssl.PROTOCOL_TLS_SERVER, config),
                _create_context(ssl.PROTOCOL_TLS_CLIENT, config),
            )
        except (ssl.SSLError, ValueError) as error:
            raise InvalidArgument(
                f"--peer-ca, --peer-cert and --peer-key do not work together: {error}. All must be PEM "
                "files, the key that of the certificate and without a password."
            ) from error


def _create_context(side: int, config: ServeConfig) -> ssl.SSLContext:
    context = ssl.SSLContext(side)
    # Any certificate of this authority is a server's, whatever name it has: addresses of servers come and go.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_verify_locations(config.peer_ca)
    context.load_cert_chain(config.peer_cert, config.peer_key, password=_no_password)
    return context


def _no_password() -> str:
    # Otherwise OpenSSL would prompt for one on the terminal.
    return ""
