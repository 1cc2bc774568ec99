"""`python -m tests.models_page > docs/models.md`: which models are served, made from the tables that decide it."""

import sys

from workers.prepare.gguf.configuration import MODEL_TYPES
from workers.shared.model_files.architectures import REFUSED
from workers.shared.model_files.blocks import BITS, BLOCKS
from workers.shared.model_files.expected import KNOWN as EVERY_FRAME
from workers.shared.model_files.families import EXPERT_FIELDS, FAMILIES, Family

_HEAD = """\
# Models

The tables are made from those that the program decides by; `make models` writes this page, do not edit it.

## Served

Each `model_type` is compared with transformers on small random models, on CPUs: greedy tokens of `generate` and logits
(float32, 1e-4), with one, two and four stages, and the same bits with wrong drafts at every position and another
sequence in between (`tests/model/test_families.py`). Those marked "every length" also for five splits, logits at every
length, chunks of any size and bfloat16 (`tests/model/test_shard.py`). Of experts a token reads those it goes to: the
split counts these bytes, the memory report all. "Since" is the version that served the family first; 0.2 is the one in
the making.

| model_type | layers | since | as GGUF, under the name | tested |
| --- | --- | --- | --- | --- |
"""

_FILES = """
A folder, a hub model and a GGUF file are checked before any process is started, and what is wrong is named:

* **config.json**: a field that is neither known to be applied nor known to be without effect is refused, unless it is
  unset (`workers/shared/model_files/families.py`, `architectures.py`). Rotary embeddings: default, linear, llama3,
  yarn, factors by frequency, and dynamic, which changes nothing within a model's own context. `longrope` has factors
  for short and for long sequences; the latter are taken where `--max-model-len` is more than the original context,
  for every request, so that a token's rotation does not depend on what follows.
* **A text tower** of a model that also sees or hears (`text_config`, tensors under `language_model.`) is served as
  text if its own `model_type` is in the table: Gemma 3, Mistral 3, Qwen3.5. Images and sounds are refused.
* **Latent attention** (DeepSeek-V3, GLM-4 MoE lite): keys and values are kept as attention reads them, not as the
  latents they are made of: many times the memory, and no work at every token for all positions.
* **Experts in MXFP4** (gpt-oss) are unpacked to the dtype when they are loaded (`workers/model/mxfp4.py`). The model's
  chat format is that of its own template; its channels are not told apart in answers.
* **Tensors**: missing, misshapen and superfluous ones, unknown dtypes, and files that are cut short, from headers alone
  (`expected.py`). Values that are infinite or not numbers are refused by name when they are loaded.
* **GGUF**: every key of the architecture and of the tokenizer and every tensor is applied as llama.cpp does or refused
  by name, `rope_freqs` and rope scaling among them (`workers/prepare/gguf/`). An answer ends with the file's `eos`,
  `eot` and `eom` tokens. Parts of a split file must be joined first.

## Packed weights

Tensors of a GGUF file are kept as they are, in the prepared folder and in memory. On CPUs of x86 they are multiplied
packed; which layer does it depends on the kind of block and the processor, never on a measurement, so that a restart or
another stage computes the same bits. Each row's result is the same however many rows go together. On other CPUs blocks
are unpacked for every product, which is slow; on GPUs they are unpacked when loaded.

| kind | bits a weight in the file | held on a CPU of x86 |
| --- | --- | --- |
"""

_ACCURACY = """
The four-bit product rounds rows, scales and offsets to bfloat16 and sums in float32: its results differ from those of
the unpacked weights by 0.2 to 0.6 % (`tests/model/test_packed_linear.py`), about as much as a model in bfloat16 does.
Blocks of other kinds are unpacked to float32 when the file is converted.

SmolLM2-135M-Instruct (Q4_1, head in Q8_0), all layers on one thread of a Sapphire Rapids core that others used, too,
in processor time a token (least of 30 after a prompt of 12 and 48 more): 31.6 ms packed, 64.9 ms in float32; weights
125 MiB against 620. A prompt chunk of 128 tokens takes longer packed, .61 s against .34: the product is made for few
rows (unpacking a matrix first takes longer still).
Gemma 3 270M (Q4_K_M; Q5_0, Q8_0, Q4_K and Q6_K blocks): 64.2 ms a token.

Not served: compressed-tensors, AWQ, GPTQ and FP8 checkpoints (`quantization_config` is refused), and quantisation of
16-bit checkpoints on load.

## Refused by name

| model_type | why |
| --- | --- |
"""


def page() -> str:
    """The whole page."""
    files = {kind: name for name, kind in MODEL_TYPES.items()}
    served = [
        f"| `{kind}` | {_layers(family)} | {family.since} | {f'`{files[kind]}`' if kind in files else 'no'} | "
        f"{_TESTED[kind in EVERY_FRAME]} |"
        for kind, family in sorted(FAMILIES.items())
    ]
    packed = [f"| {kind} | {_bits(kind)} | {_held(kind)} |" for kind in BLOCKS]
    refused = [f"| `{kind}` | {reason} |" for kind, reason in sorted(REFUSED.items())]
    parts = [_HEAD, *_lines(served), _FILES, *_lines(packed), _ACCURACY, *_lines(refused)]
    return "".join(parts)


_TESTED = {True: "every length", False: "one length"}


def _layers(family: Family) -> str:
    parts = ["attention"] if family.mixer is None else [family.mixer.replace("_", " "), "attention"]
    return ", ".join([*parts, "experts"] if family.fields & EXPERT_FIELDS else parts)


def _lines(rows: list[str]) -> list[str]:
    return [f"{row}\n" for row in rows]


def _bits(kind: str) -> str:
    return f"{8 * BLOCKS[kind].nbytes / BLOCKS[kind].weights:g}"


def _held(kind: str) -> str:
    if kind not in BITS:
        return "float16, 16 bits a weight, sums in float32"
    return "four-bit layer, 5 bits a weight" if BITS[kind] <= 4 else "two four-bit layers, 10 bits a weight"


if __name__ == "__main__":
    sys.stdout.write(page())
