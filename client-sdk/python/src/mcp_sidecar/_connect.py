"""Finds the daemon's socket, or takes its address and a token, and opens the channel."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import grpc.aio

from .errors import ConnectFailed

SOCKET_ENV = "MCP_SIDECAR_SOCKET"
"""The environment variable that names the socket."""

ADDRESS_ENV = "MCP_SIDECAR_ADDRESS"
"""The environment variable that names the daemon's address, such as `127.0.0.1:7443`, where its socket cannot be reached."""

TOKEN_ENV = "MCP_SIDECAR_TOKEN"
"""The environment variable with the token for the address."""

TOKEN_FILE_ENV = "MCP_SIDECAR_TOKEN_FILE"
"""The environment variable that names a file with the token."""

MAX_MESSAGE_BYTES = 72 * 1024 * 1024
"""The largest message in either direction: the daemon's own limit (`limits.grpc_message_bytes`)."""

FIRST_DELAY, MAX_DELAY = 0.02, 0.5


def channel_options() -> list[tuple[str, str | int]]:
    """What a channel of grpcio to the daemon needs, also with generated stubs.

    gRPC's C core would send the path of the socket as `:authority`, which is not a valid one and is refused.
    """
    return [
        ("grpc.default_authority", "localhost"),
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        # Back after a restart of the daemon as fast as it is.
        ("grpc.initial_reconnect_backoff_ms", 50),
        ("grpc.min_reconnect_backoff_ms", 50),
        ("grpc.max_reconnect_backoff_ms", 1000),
        # Channels of one process to one socket would share a connection otherwise, and the daemon may tell apps apart by it.
        ("grpc.use_local_subchannel_pool", 1),
    ]


def socket_candidates(environment: Mapping[str, str] | None = None) -> list[Path]:
    """Where the daemon's socket may be: `$MCP_SIDECAR_SOCKET` alone if it is set; else
    `$XDG_RUNTIME_DIR/mcp-sidecar/app.sock` and `~/.local/state/mcp-sidecar/app.sock` (a daemon of this user), then
    `/run/mcp-sidecar/app.sock` (the host's)."""
    env = os.environ if environment is None else environment
    if named := env.get(SOCKET_ENV):
        return [Path(named)]
    state = env.get("XDG_STATE_HOME") or (env["HOME"] + "/.local/state" if env.get("HOME") else "")
    directories = [env.get("XDG_RUNTIME_DIR", ""), state, "/run"]
    return [Path(directory) / "mcp-sidecar/app.sock" for directory in directories if directory]


class Bearer:
    """A token of the daemon, for whoever reaches it over TCP. It is not printed."""

    def __init__(self, token: str) -> None:
        token = token.rstrip("\r\n")
        if not token or not all("!" <= character <= "~" for character in token):
            raise ValueError("the token is none; `mcp-sidecar tokens create` makes one")
        self.metadata = _Hidden([("authorization", f"Bearer {token}")])
        """What every request brings."""


class _Hidden(tuple[tuple[str, str], ...]):
    def __repr__(self) -> str:
        return "***"


def find_token(token: str | None, token_file: str | os.PathLike[str] | None) -> Bearer:
    """The token that is given, or the one of the environment. Raises `ValueError` if there is none."""
    if token is not None:
        return Bearer(token)
    if token_file is not None:
        return Bearer(Path(token_file).read_text(encoding="utf-8"))
    if named := os.environ.get(TOKEN_ENV):
        return Bearer(named)
    if named := os.environ.get(TOKEN_FILE_ENV):
        return Bearer(Path(named).read_text(encoding="utf-8"))
    raise ValueError(
        f"over TCP the daemon wants a token: give one, or set {TOKEN_ENV} or {TOKEN_FILE_ENV}; "
        "`mcp-sidecar tokens create` makes one"
    )


def find_address(environment: Mapping[str, str] | None = None) -> str | None:
    """The address of the environment; none if that names a socket, which needs no token."""
    env = os.environ if environment is None else environment
    return None if env.get(SOCKET_ENV) else env.get(ADDRESS_ENV) or None


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or "/" in host:
        raise ValueError(f"`{address}` is no address of a daemon; write host and port, such as `127.0.0.1:7443`")
    return host.removeprefix("[").removesuffix("]"), int(port)


async def _open(place: Path | str) -> None:
    if isinstance(place, Path):
        _, writer = await asyncio.open_unix_connection(place)
    else:
        _, writer = await asyncio.open_connection(*_split(place))
    writer.close()


Place = TypeVar("Place", Path, str)


async def find(paths: Sequence[Place], timeout: float) -> Place:
    """The first path, or address, behind which somebody listens, within a bound."""
    clock = asyncio.get_running_loop().time
    end, delay = clock() + timeout, FIRST_DELAY
    while True:
        tried: dict[str, str] = {}
        refused = 0
        for path in paths:
            # A listener whose backlog is full makes `connect` wait, so the wait has an end.
            left = max(end - clock(), FIRST_DELAY)
            try:
                await asyncio.wait_for(_open(path), left)
            except PermissionError as error:
                refused += 1
                tried[str(path)] = error.strerror or str(error)
            except (OSError, asyncio.TimeoutError) as error:
                tried[str(path)] = getattr(error, "strerror", None) or str(error) or "timed out"
            else:
                return path
        if refused == len(paths) or clock() + delay > end:
            raise ConnectFailed(tried)
        await asyncio.sleep(delay)
        delay = min(delay * 2, MAX_DELAY)


def open_channel(path: Path) -> grpc.aio.Channel:
    """A channel that opens the socket whenever it has no connection."""
    return grpc.aio.insecure_channel(f"unix:{path.absolute()}", options=channel_options())


def open_tcp_channel(address: str) -> grpc.aio.Channel:
    """A channel to an address. Never through a proxy: the token is for the daemon."""
    options = [option for option in channel_options() if option[0] != "grpc.default_authority"]
    return grpc.aio.insecure_channel(address, options=[*options, ("grpc.enable_http_proxy", 0)])


def jittered(bound: float) -> float:
    """Between half of the bound and the bound, so that many apps do not come back at the same instant."""
    return bound * random.uniform(0.5, 1.0)
