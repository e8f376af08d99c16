"""Python client of mcp-sidecar, the daemon that holds every MCP connection of a host.

`Client` is for synchronous programs, `AsyncClient` for asyncio; both have the same methods. The messages of the contract are
in `mcp_sidecar.proto`, and `rpc` names every request for `Client.invoke`.
"""

from . import _rpc as rpc
from . import proto as proto
from ._connect import (
    ADDRESS_ENV,
    MAX_MESSAGE_BYTES,
    SOCKET_ENV,
    TOKEN_ENV,
    TOKEN_FILE_ENV,
    channel_options,
    socket_candidates,
)
from ._json import Arguments
from ._rpc import Rpc
from ._version import VERSION as __version__
from .calls import CallEvent, CallInfo, CallOptions, CallResult, CallStream
from .client import AsyncClient, Listing, SignInFailed, http_server, show_url, stdio_server
from .errors import (
    AlreadyResolved,
    Cancelled,
    Code,
    ConnectFailed,
    DeadlineExceeded,
    FieldViolation,
    InvalidRequest,
    NotAllowed,
    NotFound,
    OutcomeUnknown,
    ResumeTokenExpired,
    SidecarError,
    SignInRequired,
    Unavailable,
    UpstreamError,
    from_rpc_error,
)
from .models import ModelAnswer, ModelCall, Shape, model_tools, read_model_call
from .questions import Accept, Answer, Answerer, Cancel, Decline, Handlers
from .sync import CallIterator, Client, UpdateIterator
from .updates import Bookmark, Deleted, Reset, ResetCause, SnapshotEnd, Update, Updates

__all__ = [
    "ADDRESS_ENV",
    "Accept",
    "AlreadyResolved",
    "Answer",
    "Answerer",
    "Arguments",
    "AsyncClient",
    "Bookmark",
    "CallEvent",
    "CallInfo",
    "CallIterator",
    "CallOptions",
    "CallResult",
    "CallStream",
    "Cancel",
    "Cancelled",
    "Client",
    "Code",
    "ConnectFailed",
    "DeadlineExceeded",
    "Decline",
    "Deleted",
    "FieldViolation",
    "Handlers",
    "InvalidRequest",
    "Listing",
    "MAX_MESSAGE_BYTES",
    "ModelAnswer",
    "ModelCall",
    "NotAllowed",
    "NotFound",
    "OutcomeUnknown",
    "Reset",
    "ResetCause",
    "ResumeTokenExpired",
    "Rpc",
    "SOCKET_ENV",
    "Shape",
    "SidecarError",
    "SignInFailed",
    "SignInRequired",
    "SnapshotEnd",
    "TOKEN_ENV",
    "TOKEN_FILE_ENV",
    "Unavailable",
    "Update",
    "UpdateIterator",
    "Updates",
    "UpstreamError",
    "__version__",
    "channel_options",
    "from_rpc_error",
    "http_server",
    "model_tools",
    "proto",
    "read_model_call",
    "rpc",
    "show_url",
    "socket_candidates",
    "stdio_server",
]
