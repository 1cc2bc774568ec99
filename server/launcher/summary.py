"""What an operator sees once everything is up. Pure."""

import json
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

from server.launcher.own_server import base_url
from server.settings import KEYS_VARIABLE, ServerFields
from workers.shared.config import EngineConfig
from workers.shared.memory import Need
from workers.shared.messages import ControllerStatus

_GIB = 1 << 30
_QUESTION = "Hello! Who are you?"


def summary(
    name: str,
    config: EngineConfig,
    needs: Iterable[Need],
    controller: ControllerStatus | None,
    options: ServerFields,
) -> list[str]:
    """What is served, with what, and where it can be seen; `controller` as of now, if it is known."""
    base = base_url(options)
    devices = [config.device(stage) for stage in range(config.stages)]
    shown = devices[0] if len(set(devices)) == 1 else ", ".join(devices)
    layers = "+".join(map(str, config.split))
    held = list(needs)
    weights = sum(need.weight_bytes for need in held)
    kv = sum(need.kv_bytes(config.max_model_len) for need in held)
    rows = [
        ("pipeline", f"{config.stages} stage{'s' if config.stages > 1 else ''} of {layers} layers on {shown}"),
        ("memory", f"{weights / _GIB:.2f} GiB weights, {kv / _GIB:.2f} GiB keys and values"),
        ("drafter", _drafting(config, controller)),
    ]
    if options.dashboard:
        rows.append(("see it", f"{base}/dashboard"))
    lines = [f"serving {name} at {base}/v1", *(f"  {title:<9} {text}" for title, text in rows)]
    if config.rehearsal:
        lines.append("this is a rehearsal: the text means nothing")
    if config.emulate:
        lines.append(f"emulated: {config.emulate}; speeds are those of a rehearsal")
    return lines


def _drafting(config: EngineConfig, controller: ControllerStatus | None) -> str:
    text = str(config.drafter.name)
    if config.drafter.cascade:
        text += f" of {', '.join(Path(model).name for model in config.drafter.cascade)}"
    if config.drafter.num_speculative_tokens:
        text += f", draft-then-verify with {config.drafter.num_speculative_tokens} drafts"
    elif config.frame_width > 1:
        text += f", tokens a frame: {config.tokens_per_frame}"
    if config.breadth > 1:
        text += f", drafts a position: {config.tree_width}"
    if controller is not None and not controller.calibrated:
        return f"{text}; what it gains is found out in use"
    if controller is None or not controller.predicted.get("none"):
        return text
    best = max(controller.predicted, key=lambda choice: controller.predicted[choice])
    rate, plain = controller.predicted[best], controller.predicted["none"]
    if best == "none":
        return f"{text}; about {rate:.1f} tokens a second expected, best without drafts"
    return f"{text}; about {rate:.1f} tokens a second expected, {rate / plain:.2f} times plain decoding"


def example(name: str, options: ServerFields) -> str:
    """A command line to try the server with."""
    body = {"model": name, "messages": [{"role": "user", "content": _QUESTION}], "max_tokens": 64}
    words: Sequence[str] = [
        *(["--insecure"] if options.scheme == "https" else []),
        *([f'-H "Authorization: Bearer ${KEYS_VARIABLE}"'] if options.api_keys else []),
        "-H 'Content-Type: application/json'",
    ]
    return f"curl {base_url(options)}/v1/chat/completions {' '.join(words)} -d {shlex.quote(json.dumps(body))}"
