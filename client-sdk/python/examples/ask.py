"""A command line app that calls a tool and answers what its server asks: ask.py SERVER TOOL [ARGUMENTS]

Synchronous: the functions that answer run in threads and may block.
"""

import sys

from mcp_sidecar import Answer, Cancel, Client, Decline, Handlers, SidecarError, SignInRequired, proto


def form(question: proto.Elicitation) -> Answer:
    """Asks for each field on the terminal. An empty line leaves it out, the end of the input cancels."""
    print(f"{question.server_name} asks: {question.message}", flush=True)
    content: dict[str, object] = {}
    for field in question.fields:
        while True:
            print(f"{field.title or field.name}: ", end="", flush=True)
            line = sys.stdin.readline()
            if not line:
                return Cancel()
            try:
                if text := line.strip():
                    content[field.name] = value(field, text)
                break
            except ValueError as error:
                print(error, flush=True)
    return content


def value(field: proto.FormField, text: str) -> object:
    """What was typed, as the field wants it."""
    if field.HasField("integer"):
        return int(text)
    if field.HasField("number"):
        return float(text)
    if field.HasField("boolean"):
        return text.lower() in ("y", "yes", "true")
    if field.HasField("choice") and field.choice.multiple:
        return text.split()
    return text


def url(question: proto.Elicitation) -> Answer:
    """Shows the address. Nobody should open one with warnings without a thought."""
    if question.url_warnings:
        return Decline()
    print(f"{question.message}: open {question.url} (at {question.url_host})", flush=True)
    return True


def approval(question: proto.Elicitation) -> Answer:
    """Asks whether a call may be made."""
    print(f"May `{question.tool_name}` be called with {question.arguments_json}? [yes] ", end="", flush=True)
    return sys.stdin.readline().strip() in ("", "yes")


def main() -> int:
    """Makes the call."""
    server, tool, *arguments = sys.argv[1:]
    with Client.connect() as client, client.answer_questions(Handlers(form=form, url=url, approval=approval)):
        for attempt in range(2):
            try:
                result = client.call_tool(server, tool, arguments[0] if arguments else None)
            except SignInRequired:
                if attempt:
                    raise
                client.sign_in(server)
                continue
            print(result.text)
            return int(result.is_error)
    return 1


try:
    sys.exit(main())
except SidecarError as error:
    sys.exit(str(error))
