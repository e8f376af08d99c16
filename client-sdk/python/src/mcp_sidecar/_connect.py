"""Finds the daemon's socket and opens the channel."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Mapping
from pathlib import Path

import grpc.aio

from .errors import ConnectFailed

SOCKET_ENV = "MCP_SIDECAR_SOCKET"
"""The environment variable that names the socket."""

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


async def find(paths: list[Path], timeout: float) -> Path:
    """The first path behind which somebody listens, within a bound."""
    clock = asyncio.get_running_loop().time
    end, delay = clock() + timeout, FIRST_DELAY
    while True:
        tried: dict[str, str] = {}
        refused = 0
        for path in paths:
            # A listener whose backlog is full makes `connect` wait, so the wait has an end.
            left = max(end - clock(), FIRST_DELAY)
            try:
                _, writer = await asyncio.wait_for(asyncio.open_unix_connection(path), left)
            except PermissionError as error:
                refused += 1
                tried[str(path)] = error.strerror or str(error)
            except (OSError, asyncio.TimeoutError) as error:
                tried[str(path)] = getattr(error, "strerror", None) or str(error) or "timed out"
            else:
                writer.close()
                return path
        if refused == len(paths) or clock() + delay > end:
            raise ConnectFailed(tried)
        await asyncio.sleep(delay)
        delay = min(delay * 2, MAX_DELAY)


def open_channel(path: Path) -> grpc.aio.Channel:
    """A channel that opens the socket whenever it has no connection."""
    return grpc.aio.insecure_channel(f"unix:{path.absolute()}", options=channel_options())


def jittered(bound: float) -> float:
    """Between half of the bound and the bound, so that many apps do not come back at the same instant."""
    return bound * random.uniform(0.5, 1.0)
