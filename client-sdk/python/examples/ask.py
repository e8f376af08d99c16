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
        print(f"{field.title or field.name}: ", end="", flush=True)
        line = sys.stdin.readline()
        if not line:
            return Cancel()
        if text := line.strip():
            number = field.HasField("integer") or field.HasField("number")
            content[field.name] = int(text) if number else text == "yes" if field.HasField("boolean") else text
    return content


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
