"""What can go wrong, with the daemon's reason codes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import grpc

from ._generated.rpc_status_pb2 import BadRequest, ErrorInfo, RetryInfo, RpcStatus


class Code(IntEnum):
    """The status codes of gRPC."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


@dataclass(frozen=True)
class FieldViolation:
    """A field that is not acceptable."""

    field: str
    """Its path in the request."""
    description: str
    """What is wrong with it, in a sentence that follows the path."""


class SidecarError(Exception):
    """A request failed. The subclasses are the failures that programs tell apart most; `reason` tells all of them."""

    code: Code
    """The gRPC code."""
    reason: str
    """The daemon's reason code, for example `SERVER_NOT_FOUND`. Empty if the status came without one, which is so where the
    daemon could not be reached. Codes are added over time, never renamed."""
    message: str
    """What is wrong, for people."""
    metadata: Mapping[str, str]
    """Facts for programs, for example `jsonrpc_code` or `auth_url`."""
    field_violations: Sequence[FieldViolation]
    """Which fields of the request are wrong."""
    retry_delay: float | None
    """When another attempt makes sense, in seconds."""

    def __init__(
        self,
        code: Code,
        message: str,
        *,
        reason: str = "",
        metadata: Mapping[str, str] | None = None,
        field_violations: Sequence[FieldViolation] = (),
        retry_delay: float | None = None,
    ) -> None:
        self.code, self.reason, self.message = code, reason, message
        self.metadata = dict(metadata or {})
        self.field_violations = tuple(field_violations)
        self.retry_delay = retry_delay
        where = f" in `{self.field_violations[0].field}`" if self.field_violations else ""
        super().__init__(f"{reason or code.name}{where}: {message}")

    @property
    def is_retryable(self) -> bool:
        """Whether the same request may be sent again with a chance to succeed and without the risk that it is carried out
        twice."""
        if self.code is Code.UNAVAILABLE:
            # Without a reason it is not from the daemon: the connection was lost, and the request may have arrived.
            return self.reason not in ("", "OUTCOME_UNKNOWN")
        if self.code is Code.RESOURCE_EXHAUSTED:
            return self.retry_delay is not None or self.reason == "TOO_MANY_CALLS"
        return False


class InvalidRequest(SidecarError):
    """A field, URL, JSON text or argument is not acceptable; see `field_violations`."""


class NotFound(SidecarError):
    """There is no such server, tool, call, question, sign-in or namespace."""


class NotAllowed(SidecarError):
    """This program may not do that, or nobody agreed to it (`CALL_NOT_APPROVED`, `TOOL_NOT_ALLOWED`)."""


class SignInRequired(SidecarError):
    """The MCP server wants the user to sign in; see `Client.sign_in`."""

    @property
    def auth_url(self) -> str:
        """Where the user goes on; empty if no sign-in has begun."""
        return self.metadata.get("auth_url", "")


class AlreadyResolved(SidecarError):
    """The question, call or sign-in has ended already."""


class UpstreamError(SidecarError):
    """The MCP server answered with a JSON-RPC error."""

    @property
    def jsonrpc_code(self) -> int:
        """Its code."""
        return int(self.metadata.get("jsonrpc_code", "0"))

    @property
    def data_json(self) -> str:
        """Its `data`, unchanged; empty if there is none."""
        return self.metadata.get("data_json", "")


class Unavailable(SidecarError):
    """The daemon or the MCP server cannot be reached now."""


class OutcomeUnknown(Unavailable):
    """The call was sent and no answer came back: it may have been made."""


class DeadlineExceeded(SidecarError):
    """The time that was given is over."""


class Cancelled(SidecarError):
    """The call was cancelled."""


class ResumeTokenExpired(SidecarError):
    """The position of a resume token is no longer kept."""


class ConnectFailed(Unavailable):
    """No daemon answers at any of the paths; `tried` says why, path by path."""

    tried: Mapping[str, str]

    def __init__(self, tried: Mapping[str, str]) -> None:
        self.tried = dict(tried)
        listing = ", ".join(f"`{path}` ({why})" for path, why in tried.items())
        super().__init__(Code.UNAVAILABLE, f"no mcp-sidecar daemon answers; tried {listing}")


_BY_REASON: Mapping[str, type[SidecarError]] = {
    "SIGN_IN_REQUIRED": SignInRequired,
    "ALREADY_RESOLVED": AlreadyResolved,
    "UPSTREAM_ERROR": UpstreamError,
    "OUTCOME_UNKNOWN": OutcomeUnknown,
    "RESUME_TOKEN_EXPIRED": ResumeTokenExpired,
}
_BY_CODE: Mapping[Code, type[SidecarError]] = {
    Code.INVALID_ARGUMENT: InvalidRequest,
    Code.NOT_FOUND: NotFound,
    Code.PERMISSION_DENIED: NotAllowed,
    Code.UNAVAILABLE: Unavailable,
    Code.DEADLINE_EXCEEDED: DeadlineExceeded,
    Code.CANCELLED: Cancelled,
}


def make_error(
    code: int,
    message: str,
    reason: str = "",
    metadata: Mapping[str, str] | None = None,
    field_violations: Sequence[FieldViolation] = (),
    retry_delay: float | None = None,
) -> SidecarError:
    """The error of a code and a reason, as the subclass that fits best."""
    known = Code(code) if code in Code.__members__.values() else Code.UNKNOWN
    kind = _BY_REASON.get(reason) or _BY_CODE.get(known, SidecarError)
    return kind(
        known, message, reason=reason, metadata=metadata, field_violations=field_violations, retry_delay=retry_delay
    )


def from_rpc_error(error: grpc.RpcError) -> SidecarError:
    """Decodes the status of a failed RPC of grpcio, synchronous or not; for users of generated stubs."""
    # Neither kind of RpcError declares these; both have them.
    failed: Any = error
    code = int(failed.code().value[0])
    message = str(failed.details() or "")
    for key, value in failed.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            return _with_details(code, message, value)
    return make_error(code, message)


def _with_details(code: int, message: str, encoded: bytes) -> SidecarError:
    info, retry_delay = ErrorInfo(), None
    violations: list[FieldViolation] = []
    for detail in RpcStatus.FromString(encoded).details:
        kind = detail.type_url.rpartition("/")[2]
        if kind == "google.rpc.ErrorInfo":
            info = ErrorInfo.FromString(detail.value)
        elif kind == "google.rpc.RetryInfo":
            retry_delay = RetryInfo.FromString(detail.value).retry_delay.ToTimedelta().total_seconds()
        elif kind == "google.rpc.BadRequest":
            named = BadRequest.FromString(detail.value).field_violations
            violations += [FieldViolation(each.field, each.description) for each in named]
    return make_error(code, message, info.reason, info.metadata, violations, retry_delay)
