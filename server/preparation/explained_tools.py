"""Tools for models whose chat template does not know them: explained in the system message, in Hermes notation."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from server.tool_parsers.hermes import CLOSE, OPEN

_EXPLANATION = """\
You can call functions. They are described here, one JSON object a line:
{tools}
To call a function, write a block like this one, and nothing after your last block:
{open}
{{"name": "FUNCTION", "arguments": {{"PARAMETER": "VALUE"}}}}
{close}
What the function returns will be given to you in the next message. If no function is needed, answer in words."""


def explain_tools(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The same conversation with tools, calls and results as text of system, assistant and user messages."""
    told = [_as_text(message) for message in messages]
    if tools:
        lines = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
        explanation = _EXPLANATION.format(tools=lines, open=OPEN, close=CLOSE)
        if told and told[0]["role"] == "system":
            told[0] = told[0] | {"content": f"{told[0]['content']}\n\n{explanation}"}
        else:
            told.insert(0, {"role": "system", "content": explanation})
    joined: list[dict[str, Any]] = []
    for message, original in zip(told[len(told) - len(messages) :], messages, strict=True):
        # Templates that insist on alternating roles get the results of parallel calls in one message.
        follows = original["role"] == "tool" and joined and joined[-1].get("results")
        if follows:
            joined[-1]["content"] += "\n" + message["content"]
        else:
            joined.append(message | {"results": original["role"] == "tool"})
    opening = told[: len(told) - len(messages)]
    return opening + [{key: value for key, value in message.items() if key != "results"} for message in joined]


def _as_text(message: Mapping[str, Any]) -> dict[str, Any]:
    fields = {key: value for key, value in message.items() if key not in ("tool_calls", "tool_call_id")}
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
    blocks = [
        f"{OPEN}\n{json.dumps(call['function'], ensure_ascii=False)}\n{CLOSE}" for call in message.get("tool_calls", ())
    ]
    return fields | {"content": "\n".join(filter(None, [fields["content"], *blocks]))}
