"""`python -m tests.models_page > docs/models.md`: which models are served, made from the tables that decide it."""

import sys

from workers.prepare.gguf.configuration import MODEL_TYPES, WITH_EXPERTS
from workers.shared.model_files.architectures import REFUSED
from workers.shared.model_files.blocks import BITS, BLOCKS
from workers.shared.model_files.expected import KNOWN as EVERY_FRAME
from workers.shared.model_files.families import FAMILIES, Family
from workers.shared.model_files.tensor_sizes import EXPERT_COUNTS

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
* **Latent attention** (DeepSeek-V2 and V3, GLM-4 MoE lite): keys and values are kept as attention reads them, not as
  the latents they are made of: many times the memory, and no work at every token for all positions.
* **Gemma 4 E** (E2B, E4B) is refused, by the field that says so: its layers read embeddings of their own, and keys and
  values of layers that may be on another stage. The other Gemma 4 models are served as text.
* **Sliding windows**: on CPUs layers that have one keep no more than they can still read, where that saves half of
  their memory ([decision 10](decisions/0010-slots-of-addresses.md)); on GPUs they keep every position.
* **gpt-oss**: prompts are made by its own template, answers are read channel by channel: `analysis` is reasoning, a
  message to a function is a call, the rest is text.
* **Tensors**: missing, misshapen and superfluous ones, unknown dtypes, and files that are cut short, from headers alone
  (`expected.py`). Values that are infinite or not numbers are refused by name when they are loaded.
* **GGUF**: every key of the architecture and of the tokenizer and every tensor is applied as llama.cpp does or refused
  by name, `rope_freqs` and rope scaling among them (`workers/prepare/gguf/`); Phi-3's windows are applied, which
  llama.cpp leaves out. Experts become a tensor each. An answer ends with the file's `eos`, `eot` and `eom` tokens.
  Parts of a split file must be joined first.

## Packed weights

Weights that a file has in 8 bits or fewer are kept so. On CPUs of x86 they are multiplied packed; which layer does it
depends on the layout and the processor, never on a measurement, so that a restart or another stage computes the same
bits. A row's result is the same however many rows go together, up to 64 (16 in the eight-bit product); longer frames
are chunks of prompts, and always the same ones. On other CPUs weights are unpacked for every product, which is slow; on
GPUs when they are loaded. They are read a matrix at a time, and no process ever holds all of its weights unpacked
(`tests/model/test_quantised_checkpoints.py`).

Each expert is a layer of its own, over the same products: those compute that a token goes to
(`workers/model/linear/experts.py`). They may lie one by one or together, and single ones may be left out
(`tests/model/test_packed_experts.py`).

Layers that hold them:

* **four-bit product**: 4 bits a weight, and 32 for the scale and offset of 32, 64 or 128 columns; rows, scales and
  offsets are rounded to bfloat16, sums are float32. Weights of 5 to 8 bits are two such layers.
* **eight-bit product**: 8 bits a weight and one scale a row, without offsets; rows are rounded to bfloat16.
* **float16**: 16 bits a weight, for what neither product takes; rows and sums are float32.

### GGUF

Tensors of a GGUF file are kept as they are, also in the prepared folder.

| kind | bits a weight in the file | held on a CPU of x86 |
| --- | --- | --- |
"""

_CHECKPOINTS = """
torch has no product for groups of 16 columns, as Q6_K has them, so it takes more memory here than in the file.
Blocks of other kinds are unpacked to float32 when the file is converted.

### Checkpoints that come quantised

A `quantization_config` in config.json is read for the methods below, anything else in it is refused by name
(`workers/shared/packed/schemes.py`). What a module's tensors are says how it is quantised, so modules that were left
out, and checkpoints whose modules differ, need no list. Layouts are compared with the same weights unpacked, integers
and FP8 of compressed-tensors as that library writes and unpacks them, the others as tests write them
(`tests/model/quantised.py`); not compared are 2 bits, one scale for a whole matrix, `weight_g_idx`, and AutoRound's own
files. No published checkpoint could be had to try.

| quant_method | layout | held on a CPU of x86 |
| --- | --- | --- |
| `compressed-tensors` | `pack-quantized`: 2 or 4 bits, groups or channels, zero points | four-bit product |
| `compressed-tensors` | 8 bits by channel: `pack-quantized`, `int-quantized` | eight-bit product |
| `compressed-tensors` | 8 bits in groups, or with zero points | two four-bit layers |
| `compressed-tensors` | `float-quantized`: FP8 by tensor, channel or block | float16 |
| `compressed-tensors` | `mxfp4-pack-quantized` | two four-bit layers |
| `compressed-tensors` | `nvfp4-pack-quantized` | float16 |
| `awq` | `gemm`, 4 bits | four-bit product |
| `gptq` | 2, 4 or 8 bits, act-order, zero points, `gptq_v2` | four-bit product, 8 bits two layers |
| `auto-round` | `auto_round:auto_gptq`, `auto_round:auto_awq` | as those |
| `fp8` | e4m3 with a scale for all, or for each block | float16 |
| `mxfp4` | experts, as gpt-oss has them | two four-bit layers |

Schemes that also round activations or the cache (W8A8, FP8, NVFP4) are served with rows of 16 bits or more: nearer to
the original than they ask for.

### `--quantization`

On CPUs `--quantization int8` and `int4` round the projections of decoder layers and the head when they are loaded; so
a checkpoint in 16 bits takes half or a quarter. int8 has one scale a row; int4 has a scale and an offset for each
`--quantization-group-size` columns (64), and leaves the head 8 bits. Values are the nearest of evenly spaced ones,
nothing is calibrated. Embeddings stay as they are stored, and so does what the file holds packed: of the default model,
whose layers have 4 bits and whose head has 8, nothing changes. Experts are rounded as other projections are, routers
not.
"""

_ACCURACY = """
### Accuracy and speed

Both products differ from those of the unpacked weights by 0.2 to 0.6 % (`tests/model/test_packed_linear.py`), about as
much as a model in bfloat16 does.

`python -m tests.measure.packed_accuracy --prompts DIR --limit 1 --tokens 32`, SmolLM2-135M-Instruct, three prompts
(one each of GSM8K, HumanEval and MT-Bench), 96 tokens, so roughly. Errors are of logits around their mean: against the
weights that are held, unpacked, and against the file's weights in float32. The last column: how often the token is the
one that float32 chooses greedily.

| scheme | error of the product | of scheme and product | same token |
| --- | --- | --- | --- |
| as the file packs them | 1.3 % | 1.3 % | 98 % |
| `int8` | 1.0 % | 4.3 % | 97 % |
| `int4`, groups of 32 | 1.1 % | 34 % | 83 % |
| `int4`, groups of 64 | 1.1 % | 37 % | 75 % |
| `int4`, groups of 128 | 1.1 % | 38 % | 77 % |

`int4` rounds without calibration, and here a second time what had 4 bits in the file; a model this small does not bear
it well. Take a checkpoint that was quantised with calibration where there is one, else `int8`.

SmolLM2-135M-Instruct (Q4_1, head in Q8_0), all layers on one thread of a Sapphire Rapids core that others used, too,
in processor time a token (least of 30 after a prompt of 12 and 48 more): 31.6 ms packed, 64.9 ms in float32; weights
125 MiB against 620. The products are made for few rows; on processors that multiply bfloat16 a prompt's chunk is
multiplied with weights converted to that, piece by piece. Against the product for few rows, 128 rows in eight bits took
1.1 to 1.6 ms instead of 3.3 to 4.2 (a matrix of 576 by 1536, one thread of a busy machine; 3.2 to 3.4 ms in float32).
Speed and memory of the served model: [benchmarks.md](benchmarks.md), "Packed weights, served".
Gemma 3 270M (Q4_K_M; Q5_0, Q8_0, Q4_K and Q6_K blocks): 64.2 ms a token.

Sixteen experts of 2048 by 768, of which a token goes to eight, one thread of a busy machine, in processor time (least
of 12): a token 12.3 ms in float32, 8.5 in int8, 3.7 in int4; the layer 294, 73 and 41 MiB. A chunk of 128 tokens, of
which an expert gets about 64: 106, 82 and 167 ms; in four bits so few rows may still go through the product for few.

## Refused by name

| model_type | why |
| --- | --- |
"""


def page() -> str:
    """The whole page."""
    files = {kind: name for names in (MODEL_TYPES, WITH_EXPERTS) for name, kind in names.items()}
    served = [
        f"| `{kind}` | {_layers(family)} | {family.since} | {f'`{files[kind]}`' if kind in files else 'no'} | "
        f"{_TESTED[kind in EVERY_FRAME]} |"
        for kind, family in sorted(FAMILIES.items())
    ]
    packed = [f"| {kind} | {_bits(kind)} | {_held(kind)} |" for kind in BLOCKS]
    refused = [f"| `{kind}` | {reason} |" for kind, reason in sorted(REFUSED.items())]
    parts = [_HEAD, *_lines(served), _FILES, *_lines(packed), _CHECKPOINTS, _ACCURACY, *_lines(refused)]
    return "".join(parts)


_TESTED = {True: "every length", False: "one length"}


def _layers(family: Family) -> str:
    parts = ["attention"] if family.mixer is None else [family.mixer.replace("_", " "), "attention"]
    return ", ".join([*parts, "experts"] if family.fields.intersection(EXPERT_COUNTS) else parts)


def _lines(rows: list[str]) -> list[str]:
    return [f"{row}\n" for row in rows]


def _bits(kind: str) -> str:
    return f"{8 * BLOCKS[kind].nbytes / BLOCKS[kind].weights:g}"


def _held(kind: str) -> str:
    if kind not in BITS:
        return "float16"
    return "four-bit product, 5 bits a weight" if BITS[kind] <= 4 else "two four-bit layers, 10 bits a weight"


if __name__ == "__main__":
    sys.stdout.write(page())
