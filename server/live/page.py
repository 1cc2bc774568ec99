"""The pages, as they are sent: whole, with a policy that lets nothing in from elsewhere."""

import base64
import hashlib
import re
from dataclasses import dataclass
from importlib.resources import files

_INLINE = re.compile(r"<(script|style)>(.*?)</\1>", re.DOTALL)


@dataclass(frozen=True)
class Page:
    """HTML and the headers that go with it."""

    body: bytes
    headers: dict[str, str]

    @classmethod
    def load(cls, name: str) -> "Page":
        """The file `name` beside this one."""
        text = (files(__package__) / name).read_text(encoding="utf-8")
        return cls(text.encode(), {"Content-Security-Policy": policy(text), **_HEADERS})


_HEADERS = {
    "Cache-Control": "no-cache",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


def policy(text: str) -> str:
    """A content security policy that allows the scripts and styles in `text`, by their digests, and this server."""
    allowed: dict[str, list[str]] = {"script": [], "style": []}
    for kind, content in _INLINE.findall(text):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        allowed[kind].append(f"'sha256-{digest}'")
    sources = "; ".join(" ".join([f"{kind}-src", *(digests or ["'none'"])]) for kind, digests in allowed.items())
    return (
        f"default-src 'none'; {sources}; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
