"""Tools in the shapes of model APIs, a model's tool call as a call, and its result in the shape of the answer."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from . import proto as pb
from ._json import Arguments, from_json
from .calls import CallResult
from .errors import InvalidRequest, NotAllowed, NotFound, SidecarError, UpstreamError

Shape = Literal["openai-responses", "openai-chat", "anthropic", "gemini"]
"""Which API a model is asked with."""

TOLD = (InvalidRequest, NotAllowed, NotFound, UpstreamError)
"""Failures that a model is told of, because it can do something about them. Others are the app's business and raised."""


@dataclass(frozen=True)
class ModelCall:
    """A tool call as a model made it."""

    shape: Shape
    id: str
    """The API's id of the call; empty where it has none."""
    name: str
    """The tool's model name."""
    arguments: Arguments
    """As the model gave them: JSON text, or an object."""


@dataclass(frozen=True)
class ModelAnswer:
    """What came of a model's tool call."""

    message: dict[str, Any]
    """For the model: an input item (OpenAI Responses), a message (OpenAI Chat), a content block (Anthropic) or a part
    (Gemini)."""
    result: CallResult | None
    """The result, if there is one."""
    error: SidecarError | None
    """What the model was told of in place of a result."""


def model_tools(tools: Sequence[pb.Tool], shape: Shape) -> list[dict[str, Any]]:
    """Tools as an API wants them. For Gemini they are function declarations."""
    return [_tool(tool, shape) for tool in tools]


def _tool(tool: pb.Tool, shape: Shape) -> dict[str, Any]:
    schema = from_json(tool.input_schema_json) if tool.input_schema_json else {"type": "object", "properties": {}}
    # OpenAI wants `properties` to be there.
    if schema.get("type") == "object":
        schema.setdefault("properties", {})
    known = {"name": tool.model_name, "description": tool.description or tool.title or tool.name}
    if shape == "openai-responses":
        # Strict mode, the default there, takes only a subset of JSON Schema.
        return {"type": "function", **known, "parameters": schema, "strict": False}
    if shape == "openai-chat":
        return {"type": "function", "function": {**known, "parameters": schema}}
    if shape == "anthropic":
        return {**known, "input_schema": schema}
    if shape == "gemini":
        return {**known, "parametersJsonSchema": schema}
    raise ValueError(f"unknown shape `{shape}`: use openai-responses, openai-chat, anthropic or gemini")


def read_model_call(call: Any) -> ModelCall:
    """Understands a tool call of any of the APIs: a mapping, or an object of its SDK that has `model_dump`."""
    if not isinstance(call, Mapping):
        dump = getattr(call, "model_dump", None)
        if dump is None:
            raise TypeError(f"a tool call is a mapping or an object with `model_dump`, not {type(call).__name__}")
        call = dump(exclude_none=True)
    kind = call.get("type")
    if kind == "function_call":
        return ModelCall("openai-responses", call["call_id"], call["name"], call.get("arguments") or None)
    if kind == "function":
        function = call["function"]
        return ModelCall("openai-chat", call["id"], function["name"], function.get("arguments") or None)
    if kind == "tool_use":
        return ModelCall("anthropic", call["id"], call["name"], call.get("input"))
    inner = call.get("functionCall") or call.get("function_call") or call
    if isinstance(inner, Mapping) and "name" in inner and kind is None:
        return ModelCall("gemini", inner.get("id") or "", inner["name"], inner.get("args"))
    raise ValueError(
        "not a tool call of a known shape: OpenAI has type `function_call` or `function`, Anthropic `tool_use`, Gemini"
        " `functionCall` or `name` and `args`"
    )


def answer_result(call: ModelCall, result: CallResult) -> ModelAnswer:
    """A result in the shape of the answer."""
    return ModelAnswer(_answer(call, list(result.raw.content), result, result.is_error), result, None)


def answer_error(call: ModelCall, error: SidecarError) -> ModelAnswer:
    """A failure in the shape of the answer."""
    block = pb.ContentBlock(text=pb.TextContent(text=str(error)))
    return ModelAnswer(_answer(call, [block], None, True), None, error)


def _answer(
    call: ModelCall, content: Sequence[pb.ContentBlock], result: CallResult | None, failed: bool
) -> dict[str, Any]:
    # A server that gives a structured result shall give its text too, but need not.
    structured = result.structured_json if result is not None and not content else None
    if call.shape == "anthropic":
        blocks = [_anthropic(block) for block in content] or [{"type": "text", "text": structured or "(no content)"}]
        return {"type": "tool_result", "tool_use_id": call.id, "content": blocks, "is_error": failed}
    text = structured or "\n".join(map(_text, content)) or "(no content)"
    if failed and call.shape != "gemini":
        text = f"Error: {text}"
    if call.shape == "openai-chat":
        return {"role": "tool", "tool_call_id": call.id, "content": text}
    if call.shape == "openai-responses":
        output: Any = text
        if not failed and any(block.HasField("image") for block in content):
            output = [_openai(block) for block in content]
        return {"type": "function_call_output", "call_id": call.id, "output": output}
    told = result.structured if result is not None and result.structured_json is not None and not failed else text
    response: dict[str, Any] = {"name": call.name, "response": {"error" if failed else "output": told}}
    if call.id:
        response["id"] = call.id
    return {"functionResponse": response}


def _text(block: pb.ContentBlock) -> str:
    """A block as text, for APIs that take nothing else."""
    kind = block.WhichOneof("block")
    if kind == "text":
        return block.text.text
    if kind == "raw_json":
        return block.raw_json
    if kind == "resource_link":
        link = block.resource_link
        return f"[resource {link.uri}: {link.title or link.name}]"
    if kind == "resource":
        inner = block.resource.resource
        return inner.text if inner.HasField("text") else f"[resource {inner.uri}, {inner.mime_type or 'binary'}]"
    media = block.image if kind == "image" else block.audio
    return f"[{kind}, {media.mime_type}, {len(media.data)} bytes]"


def _openai(block: pb.ContentBlock) -> dict[str, Any]:
    if not block.HasField("image"):
        return {"type": "input_text", "text": _text(block)}
    data = base64.b64encode(block.image.data).decode()
    return {"type": "input_image", "image_url": f"data:{block.image.mime_type};base64,{data}"}


def _anthropic(block: pb.ContentBlock) -> dict[str, Any]:
    if not block.HasField("image"):
        return {"type": "text", "text": _text(block) or "(empty)"}
    data = base64.b64encode(block.image.data).decode()
    return {"type": "image", "source": {"type": "base64", "media_type": block.image.mime_type, "data": data}}
