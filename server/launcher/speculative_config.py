"""What other engines call drafting, in our options: vLLM's `--speculative-config`, and names of SGLang's flags."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec.structs import replace

from workers.shared.drafters import DrafterName
from workers.shared.errors import ConfigError
from workers.shared.options.declared import options_of
from workers.shared.options.engine import DrafterOptions, EngineOptions

_FLAG = "--speculative-config"
_METHODS: Mapping[str, DrafterName] = {
    "ngram": "ngram",
    "draft_model": "model",
    "eagle3": "eagle3",
    "mtp": "mtp",
}
_OF_FAMILIES = "_mtp"  # vLLM also knows `mtp` under the names of families: qwen3_next_mtp
_OPTIONS = {
    "model": "draft_model",
    "num_speculative_tokens": "num_speculative_tokens",
    "prompt_lookup_max": "ngram_max",
    "prompt_lookup_min": "ngram_min",
}
# How another engine computes, not what: nothing here depends on it. Drafts share the noise of the target's sampler
# whatever `draft_sample_method` says.
_MOOT = frozenset({
    "attention_backend",
    "disable_padded_drafter_batch",
    "draft_sample_method",
    "enforce_eager",
    "use_local_argmax_reduction",
})  # fmt: skip
_INSTEAD: Mapping[str, str] = {
    "code_revision": "give --draft-model as a folder",
    "draft_tensor_parallel_size": "a drafter has one device, --draft-device",
    "kv_cache_dtype": "a drafter keeps keys and values in --dtype",
    "max_model_len": "a drafter has the context of --max-model-len",
    "num_speculative_tokens_per_batch_size": "beside other requests, credits decide how much is drafted",
    "quantization": "give a --draft-model that is stored as it is to be used",
    "revision": "give --draft-model as a folder",
    "use_heterogeneous_vocab": "a draft model needs the vocabulary of the target",
}
_LOSSY = "what the target samples would not be what is sent: Echelon's text is always the target's"
_REHEARSED = "to rehearse with drafts that are right by chance, use --drafter scripted --scripted-acceptance P"

# What operators of SGLang and llama.cpp type, and what it is here.
ELSEWHERE: Mapping[str, str] = MappingProxyType({
    "--speculative-algorithm": "--drafter eagle3, model (STANDALONE), ngram or mtp",
    "--speculative-draft-model-path": "--draft-model PATH",
    "--speculative-draft-model": "--draft-model PATH",
    "--speculative-draft": "--draft-model PATH",
    "--speculative-num-steps": "--num-speculative-tokens K, as rounds of K drafts",
    "--speculative-eagle-topk": "--tree-width W, the drafts for one position: of all branches together",
    "--speculative-num-draft-tokens": "--num-speculative-tokens K",
    "--speculative-draft-model-revision": "--draft-model with a folder",
    "--speculative-draft-model-quantization": "--draft-model with a folder that is stored as it is to be used",
    "--speculative-token-map": "the head's own d2t: leave it out",
    "--speculative-accept-threshold-single": f"nothing, for {_LOSSY}",
    "--speculative-accept-threshold-acc": f"nothing, for {_LOSSY}",
    "--num-draft-tokens": "--num-speculative-tokens K",
    "--spec-draft-n-max": "--num-speculative-tokens K",
    "--spec-type": "--drafter eagle3, model, ngram or mtp",
    "-md": "--draft-model PATH",
})  # fmt: skip


def settle_speculation(options: EngineOptions) -> EngineOptions:
    """The same options with what `--speculative-config` says in words of ours; raises `ConfigError` naming its key.

    `--drafter none` switches off whatever else is said of drafting, wherever that is said.
    """
    text = options.drafter.speculative_config
    if options.drafter.name == "none":
        off = replace(
            options.drafter, module=None, model=None, cascade=(), speculative_config=None, num_speculative_tokens=0
        )
        return replace(options, drafter=off)
    if text is None:
        return options
    said = _parsed(text)
    values = _translated(said)
    drafter = options.drafter
    fields = {option.name: option for option in options_of(DrafterOptions)}
    changes = {}
    for name, value in values.items():
        option = fields[name]
        (field,) = option.path
        if getattr(drafter, field) != option.default:
            raise ConfigError(f"{_FLAG} and {option.flag} both say it; leave out either")
        changes[field] = option.convert(value, f"{_FLAG}: {_key_of(name)}")
    return replace(options, drafter=replace(drafter, **changes, speculative_config=None))


def _parsed(text: str) -> dict[str, Any]:
    """A JSON object, or `key=value` with commas between, each value JSON or a text."""
    if text.lstrip().startswith("{"):
        try:
            return msgspec.json.decode(text, type=dict[str, Any])
        except msgspec.MsgspecError as error:
            raise ConfigError(f"{_FLAG}: no JSON object: {error}") from error
    said: dict[str, Any] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = part.partition("=")
        if not equals:
            raise ConfigError(f"{_FLAG}: {part!r} is neither JSON nor key=value")
        try:
            said[key] = msgspec.json.decode(value)
        except msgspec.MsgspecError:
            said[key] = value
    return said


def _translated(said: Mapping[str, Any]) -> dict[str, Any]:
    """Values by our options' names."""
    known = _OPTIONS.keys() | _MOOT | {"method", "parallel_drafting", "rejection_sample_method"}
    for key, value in said.items():
        if key.startswith("synthetic") or (key, value) == ("rejection_sample_method", "synthetic"):
            raise ConfigError(f"{_FLAG}: {key} is for measurements without a drafter; {_REHEARSED}")
        if key == "rejection_sample_method" and value != "standard":
            raise ConfigError(f"{_FLAG}: {key} {value!r} is not to be had: {_LOSSY}; leave it out")
        if key not in known and not (key == "draft_tensor_parallel_size" and value in (None, 1)):
            instead = _INSTEAD.get(key, f"known are {', '.join(sorted(known))}")
            raise ConfigError(f"{_FLAG}: {key} has no counterpart here: {instead}")
    values = {_OPTIONS[key]: value for key, value in said.items() if key in _OPTIONS and value is not None}
    name = _drafter(said)
    if name == "mtp" and values.pop("draft_model", None) is not None:
        raise ConfigError(f"{_FLAG}: model: the head of method mtp is in the checkpoint of MODEL itself; leave it out")
    if values.get("draft_model") in ("ngram", "[ngram]"):  # how vLLM's older versions are told
        del values["draft_model"]
    return values | ({} if name is None else {"drafter": name})


def _drafter(said: Mapping[str, Any]) -> DrafterName | None:
    """Which drafter is meant; None where a model or head says it itself."""
    method = said.get("method")
    if method is None and said.get("model") in (None, "ngram", "[ngram]"):
        return "ngram"
    if method is None:
        return None
    found = "mtp" if str(method).endswith(_OF_FAMILIES) else _METHODS.get(method)
    if found is None:
        raise ConfigError(
            f"{_FLAG}: method {method!r} is not one of {', '.join(_METHODS)}; --drafter has what else there is here"
        )
    return "peagle" if found == "eagle3" and said.get("parallel_drafting") else found


def _key_of(option: str) -> str:
    return next((key for key, name in _OPTIONS.items() if name == option), "method")
