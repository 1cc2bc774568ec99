"""The model's tokenizer: text to tokens and back, end tokens, and which added tokens count as control tokens."""

import json
import re
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from workers.shared.errors import ConfigError
from workers.shared.model_files.end_tokens import read_end_tokens, token_content
from workers.shared.model_files.json_file import read_optional_json

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE_MARK = "\u2581"  # stands for a space in SentencePiece vocabularies


class ModelTokenizer:
    """`tokenizer.json` of a model folder and what its configuration files say about end tokens.

    Raises `ConfigError` where the folder holds no tokenizer, or a broken one.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / "tokenizer.json"
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            self._full = Tokenizer.from_str(json.dumps(data))
        except OSError as error:
            raise ConfigError(f"{path}: {error}; the model folder must hold a tokenizer.json") from error
        except Exception as error:  # the library raises bare Exception for every fault in the file
            raise ConfigError(f"{path}: {error}") from error
        # Sequences must reach the engine as they are; limits belong to the request, not to the file.
        self._full.no_truncation()
        self._full.no_padding()
        added = self._full.get_added_tokens_decoder()
        # Some vocabularies list runs of white space as added tokens; those control nothing.
        self.control_tokens: dict[str, int] = {
            token.content: number for number, token in added.items() if token.content.strip(_SPACE_MARK + " \t\r\n")
        }
        self._special_ids = frozenset(number for number, token in added.items() if token.special)
        self._control_ids = frozenset(self.control_tokens.values())
        self._data = data
        self._bytes = byte_level_table() if "ByteLevel" in json.dumps(data.get("decoder")) else None
        self.eos_ids = read_end_tokens(folder)
        config = read_optional_json(folder / "tokenizer_config.json")
        self.config: dict[str, Any] = {
            name: token_content(value) if name.endswith("_token") else value for name, value in config.items()
        }

    @cached_property
    def _plain(self) -> Tokenizer:
        """The same tokenizer without its control tokens."""
        kept = [token for token in self._data.get("added_tokens", []) if token["content"] not in self.control_tokens]
        return Tokenizer.from_str(json.dumps(self._data | {"added_tokens": kept, "post_processor": None}))

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Tokens of `text`, in which control tokens are parsed."""
        ids: list[int] = self._full.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def encode_plain(self, text: str) -> list[int]:
        """Tokens of `text`, in which nothing becomes a control token.

        Raises `ValueError` for the rare vocabulary that has the literal as an ordinary token too.
        """
        if not text:
            return []
        ids: list[int] = self._plain.encode(text, add_special_tokens=False).ids
        if not self._control_ids.isdisjoint(ids):
            raise ValueError("contains text that this model's vocabulary cannot tell from a control token")
        return ids

    def split_control(self, text: str) -> list[str | int]:
        """`text` cut at its control tokens: ordinary text as strings, control tokens as ids, in order."""
        encoding = self._full.encode(text, add_special_tokens=False)
        parts: list[str | int] = []
        done = 0
        for token, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            if token in self._control_ids:
                parts += [text[done:start], token]
                done = end
        return [*parts, text[done:]]

    def control_ids(self, ids: Sequence[int]) -> list[int]:
        """The control tokens among `ids`, in order."""
        return [token for token in ids if token in self._control_ids]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids` without special tokens, U+FFFD for bytes that are no character."""
        text: str = self._full.decode(list(ids), skip_special_tokens=True)
        return text

    def decode_all(self, ids: Sequence[int]) -> str:
        """Text of `ids`, special tokens included."""
        text: str = self._full.decode(list(ids), skip_special_tokens=False)
        return text

    def decode_keeping(self, kept: frozenset[int]) -> Callable[[Sequence[int]], str]:
        """`decode`, but with the text of the special tokens `kept`."""
        dropped = self._special_ids - kept

        def decode(ids: Sequence[int]) -> str:
            text: str = self._full.decode([token for token in ids if token not in dropped], skip_special_tokens=False)
            return text

        return decode

    def token_bytes(self, token: int) -> bytes:
        """The bytes one token stands for; empty for an id that the vocabulary does not name."""
        piece = self._full.id_to_token(token)
        if piece is None:
            return b""
        if token in self._control_ids:
            return str(piece).encode()
        byte = _BYTE_TOKEN.fullmatch(piece)
        if byte is not None:
            return bytes([int(byte[1], 16)])
        if self._bytes is not None:
            table = self._bytes
            return b"".join(bytes([table[char]]) if char in table else char.encode() for char in piece)
        return str(piece).replace(_SPACE_MARK, " ").encode()

    def token_text(self, token: int) -> str:
        """How one token is written where it stands alone; bytes that are no character as `\\xNN`."""
        return self.token_bytes(token).decode("utf-8", errors="backslashreplace")


def byte_level_table() -> dict[str, int]:
    """The characters by which byte-level vocabularies write the 256 bytes (GPT-2's rule)."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {chr(byte): byte for byte in shown} | {chr(256 + place): byte for place, byte in enumerate(hidden)}
