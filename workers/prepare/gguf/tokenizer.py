"""The tokenizer of a GGUF file, and the tokens that end an answer."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, pre_tokenizers, processors
from transformers import AutoTokenizer, GemmaTokenizer, PreTrainedTokenizerFast
from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

from workers.shared.errors import ConfigError

_PREFIX = "tokenizer."
_CONTROL = 3  # token_type
_BYTE_PAIRS, _SENTENCEPIECE = "gpt2", "llama"
_DIGITS_ALONE = frozenset({"refact", "smollm"})  # transformers knows neither: each digit is a token of its own
# Of architectures whose files transformers does not read as models.
_CLASSES: Mapping[str, Any] = {
    "gemma": GemmaTokenizer,
    "granite": PreTrainedTokenizerFast,
    "olmo2": PreTrainedTokenizerFast,
    "smollm3": PreTrainedTokenizerFast,
}
# The files of these tokenizers are meant to begin every text with the first token unless they say otherwise, and to
# take a word that is in the vocabulary as it is.
_LLAMA_3 = frozenset({"llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"})
_SPLITS = frozenset({*GGUF_PRE_TOKENIZER_SPLITS, *_DIGITS_ALONE, "gpt-2"})
# Older files do not say which token ends a turn; llama.cpp then looks for one with such a name.
_TURN_ENDS = ("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<EOT>", "_<EOT>")
_READ = frozenset({
    "chat_template",
    "ggml.add_bos_token",
    "ggml.add_space_prefix",
    "ggml.bos_token_id",
    "ggml.eom_token_id",
    "ggml.eos_token_id",
    "ggml.eot_token_id",
    "ggml.merges",
    "ggml.model",
    "ggml.padding_token_id",
    "ggml.pre",
    "ggml.scores",
    "ggml.token_type",
    "ggml.tokens",
    "ggml.unknown_token_id",
})  # fmt: skip
# For classifiers, for text with a hole, or for other readers than llama.cpp: nothing that this server does asks for it.
_INFORMATIVE = frozenset({
    "chat_templates",
    "ggml.cls_token_id",
    "ggml.fim_mid_token_id",
    "ggml.fim_pad_token_id",
    "ggml.fim_pre_token_id",
    "ggml.fim_rep_token_id",
    "ggml.fim_sep_token_id",
    "ggml.fim_suf_token_id",
    "ggml.mask_token_id",
    "ggml.middle_token_id",
    "ggml.prefix_token_id",
    "ggml.seperator_token_id",
    "ggml.suffix_token_id",
    "ggml.token_type_count",
    "huggingface.json",
})  # fmt: skip
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "ggml.add_eos_token": (False,),
    "ggml.add_sep_token": (False,),
    "ggml.remove_extra_whitespaces": (False,),
}


def check_tokenizer_keys(keys: Mapping[str, Any]) -> None:
    """Raises `ConfigError` naming a `tokenizer.*` key that would have to be ignored though it changes the tokens."""
    for name, value in keys.items():
        own = name.removeprefix(_PREFIX)
        if own == name or own in _READ or own in _INFORMATIVE or own.startswith("chat_template."):
            continue
        if own not in _NEUTRAL or value not in _NEUTRAL[own]:
            raise ConfigError(f"key {name} is {value!r}: this changes the tokens in a way that is not supported")
    kind = keys.get("tokenizer.ggml.model")
    if kind not in (_BYTE_PAIRS, _SENTENCEPIECE):
        raise ConfigError(f"key tokenizer.ggml.model is {kind!r}: {_BYTE_PAIRS} and {_SENTENCEPIECE} are supported")
    split = keys.get("tokenizer.ggml.pre")
    if kind == _BYTE_PAIRS and split not in _SPLITS:
        known = ", ".join(sorted(_SPLITS))
        raise ConfigError(f"key tokenizer.ggml.pre is {split!r}: text is cut in a way not known here; known: {known}")


def special_tokens(keys: Mapping[str, Any]) -> dict[str, int]:
    """Ids of the first, the last and the padding token, as far as the file names them, by transformers' names."""
    names = {"bos_token": "bos_token_id", "eos_token": "eos_token_id", "pad_token": "padding_token_id"}
    found = {name: keys.get(f"tokenizer.ggml.{key}") for name, key in names.items()}
    return {name: token for name, token in found.items() if token is not None}


def end_tokens(keys: Mapping[str, Any]) -> list[int]:
    """Every token that ends an answer, in order: end of text, of turn, of message; as llama.cpp has it."""
    named = [keys.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    if named[1] is None:
        named.append(_turn_end(keys["tokenizer.ggml.tokens"], keys.get("tokenizer.ggml.token_type", [])))
    return sorted({token for token in named if token is not None})


def _turn_end(tokens: Sequence[str], types: Sequence[int]) -> int | None:
    control = {
        token: number for number, (token, kind) in enumerate(zip(tokens, types, strict=False)) if kind == _CONTROL
    }
    return next((control[token] for token in _TURN_ENDS if token in control), None)


def build_tokenizer(path: Path, keys: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer that cuts text as llama.cpp does with this file."""
    kind = _CLASSES.get(keys["general.architecture"], AutoTokenizer)
    tokenizer: Tokenizer = kind.from_pretrained(path.parent, gguf_file=path.name).backend_tokenizer
    split = keys.get("tokenizer.ggml.pre")
    if split in _DIGITS_ALONE:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    whole_words = keys["tokenizer.ggml.model"] == _BYTE_PAIRS and split in _LLAMA_3
    if whole_words:
        tokenizer.model.ignore_merges = True
    first = keys.get("tokenizer.ggml.bos_token_id")
    if whole_words and first is not None and keys.get("tokenizer.ggml.add_bos_token", True):
        text = keys["tokenizer.ggml.tokens"][first]
        tokenizer.post_processor = processors.TemplateProcessing(single=f"{text} $A", special_tokens=[(text, first)])
    return tokenizer
