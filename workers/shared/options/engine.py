"""The options of an engine: what reaches its processes as it was given, and what is settled first.

A new option that every process may read as it is takes one field of `EngineFields`, or of `DrafterFields`.
"""

from typing import Annotated, Literal

from msgspec import Struct

from workers.shared.drafters import DrafterName
from workers.shared.emulation import REHEARSAL, Emulation
from workers.shared.options.declared import AtLeastOne, NotNegative, Seconds, Share, about, within
from workers.shared.packed.rounding import GroupSize, QuantizationName, Rounding

PIPELINE, SPECULATION = "Pipeline", "Speculation"

Dtype = Literal["float32", "bfloat16", "float16"]
KvDtype = Literal["auto", "fp8_e4m3"]
TransportName = Literal["unix", "zmq", "gloo", "nccl", "inprocess"]

DEFAULT_STAGES = 2
DEFAULT_MAX_MODEL_LEN = 8192  # a KV cache for more is only reserved when asked for


class DrafterFields(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Of the drafter, as given."""

    num_speculative_tokens: Annotated[
        NotNegative,
        about(
            SPECULATION,
            "Draft-then-verify, the classic way: make so many drafts, then send them through the pipeline in one "
            "frame. 0: each draft is a frame, and frames fill all stages at once. Of use with one stage; with "
            "several, all but one of them idle",
        ),
    ] = 0
    threads: Annotated[
        AtLeastOne, about(SPECULATION, "CPU threads of the draft module or model", name="draft_threads")
    ] = 1
    cascade_lead: Annotated[
        AtLeastOne,
        about(SPECULATION, "Most tokens that a model of --cascade writes ahead of the next bigger one"),
    ] = 64
    cascade_lookahead: Annotated[
        NotNegative,
        about(
            SPECULATION,
            "Have every model wait until the next smaller one has written so many tokens ahead. 0: nobody waits. With "
            "--cascade-lead of the same number, one model works at a time",
        ),
    ] = 0
    ngram_max: Annotated[AtLeastOne, about(SPECULATION, "Longest n-gram looked up")] = 6
    ngram_min: Annotated[AtLeastOne, about(SPECULATION, "Shortest n-gram looked up")] = 1
    head_reading: Annotated[
        Literal["tried", "declared"],
        about(
            SPECULATION,
            "What a draft head's files leave open (which layers are meant, where norms are): tried: all of it once, on "
            "text that comes with Echelon, through the target's layers; declared: what is usual where it comes from",
            name="draft_head_reading",
        ),
    ] = "tried"
    script: Annotated[str | None, about(REHEARSAL, "Recorded runs for --drafter scripted (JSON)", metavar="FILE")] = (
        None
    )
    scripted_acceptance: Annotated[
        Share | None, about(REHEARSAL, "Accept drafts with this probability; the text then means nothing")
    ] = None
    scripted_rescue: Annotated[
        Share,
        about(
            REHEARSAL,
            "With --scripted-acceptance: the share of wrong drafts that twice as many candidates would have made right",
        ),
    ] = 0.42
    always: Annotated[
        bool, about(REHEARSAL, "Draft even while it loses against plain decoding", name="always_draft")
    ] = False


class DrafterOptions(DrafterFields, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Of the drafter, to be settled."""

    name: Annotated[
        Literal["auto"] | DrafterName,
        about(
            SPECULATION,
            "pdm: a draft module reads the stages' hidden states; ngram: look the last tokens up in prompt and answer; "
            "pdm+ngram: whichever has lately been better; exit: a head behind stage 0 reads what that has computed; "
            "model: a small model of the same family guesses, no training needed; cascade: several such models, each "
            "ahead of the next bigger one; eagle3, peagle: a draft head made for MODEL, by --draft-model; mtp: the "
            "head in MODEL's own checkpoint; none: plain pipeline; scripted: replay; auto: "
            "what --draft-model is, cascade where --cascade is, pdm+ngram where a module is given or comes with "
            "Echelon, else ngram",
            name="drafter",
        ),
    ] = "auto"
    module: Annotated[
        str | None,
        about(
            SPECULATION,
            "Draft module, or exit head for --drafter exit, of this model: a folder, or a .pt file of format v11",
            name="draft_module",
            default="the one that comes with Echelon, if any",
            metavar="PATH",
        ),
    ] = None
    model: Annotated[
        str | None,
        about(
            SPECULATION,
            "Small model with the vocabulary of MODEL, given as MODEL is, for --drafter model; it runs whole on "
            "--draft-device, and pays where it is faster than one stage. Or a draft head for MODEL (EAGLE-3, P-EAGLE), "
            "which tells by itself what it is",
            name="draft_model",
            metavar="MODEL",
        ),
    ] = None
    cascade: Annotated[
        tuple[str, ...],
        about(
            SPECULATION,
            "Models with the vocabulary of MODEL, given as MODEL is, from the smallest on, for --drafter cascade. Each "
            "has a process of its own, writes ahead of the next bigger one and verifies what the next smaller one has "
            "written, and none waits for another",
            metavar="SMALL[,MIDDLE...]",
        ),
    ] = ()
    cascade_device: Annotated[
        tuple[str, ...],
        about(SPECULATION, "Devices of the models of --cascade, one each, or one for all", default="--draft-device"),
    ] = ()
    device: Annotated[
        str,
        about(
            SPECULATION,
            "Device of the draft module or model; auto is the first stage's, where that runs on the same host",
            name="draft_device",
        ),
    ] = "auto"
    speculative_config: Annotated[
        str | None,
        about(
            SPECULATION,
            "The same in the words of vLLM: JSON, or key=value with commas between. method, model, "
            "num_speculative_tokens, prompt_lookup_max and _min, parallel_drafting",
            metavar="JSON",
        ),
    ] = None


class EngineFields(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Of the engine, as given."""

    threads: Annotated[AtLeastOne, about(PIPELINE, "CPU threads a stage")] = 1
    prefill_chunk: Annotated[
        AtLeastOne,
        about(
            PIPELINE,
            "Prompt tokens that move through the pipeline together; whole chunks are reused by later prompts. Short "
            "requests pass between two chunks of a long prompt: sooner between smaller ones",
        ),
    ] = 128
    quantization: Annotated[
        QuantizationName | None,
        about(
            PIPELINE,
            "Round linear layers when they are loaded, on CPUs: int8 (one scale a row) or int4 (groups; the head keeps "
            "8 bits). Weights that the files hold packed stay as they are",
            default="as the files have them",
        ),
    ] = None
    quantization_group_size: Annotated[
        GroupSize, about(PIPELINE, "Columns with one scale in int4, or the next fewer that divide a matrix")
    ] = 64
    max_num_seqs: Annotated[
        AtLeastOne,
        about(
            PIPELINE,
            "Requests that run at a time, each in a KV slot of max-model-len positions; idle slots keep the beginnings "
            "of conversations",
            was="sequences",
        ),
    ] = 4
    max_total_tokens: Annotated[
        NotNegative,
        about(
            PIPELINE,
            "On CPUs: positions for which all KV slots together have memory. A request starts once its prompt and "
            "max_tokens have room. 0: for max-model-len positions in every slot",
        ),
    ] = 0
    kv_cache_dtype: Annotated[
        KvDtype,
        about(
            PIPELINE,
            "Keys and values of the stages: auto is --dtype; fp8_e4m3 has eight bits, rounded by 1/16 and cut off at "
            "448: another text, but the same for every drafter and load",
        ),
    ] = "auto"
    enforce_eager: Annotated[
        bool,
        about(
            PIPELINE,
            "On GPUs: start every kernel of a frame by itself. Otherwise short frames are recorded as CUDA graphs at "
            "the start, for every KV slot and several lengths of context",
        ),
    ] = False
    fuse_layers: Annotated[
        bool,
        about(
            PIPELINE,
            "On GPUs: compile norms and MLPs of recorded frames into fewer kernels, which takes a minute at the start; "
            "`make gpu-check` tells whether it wins. The text is another one, but the same for every drafter and load",
        ),
    ] = False
    keep_warm: Annotated[
        NotNegative,
        about(
            PIPELINE,
            "On GPUs: for so many seconds after a frame, an idle stage multiplies something small now and then, so "
            "that its card does not clock down; 0: never",
        ),
    ] = 0
    prefill_share: Annotated[
        Share,
        about(
            PIPELINE,
            "Share of the frames in flight that prompts may have while other requests decode, at least one frame: less "
            "of it, and a long prompt delays the others less and takes longer itself",
        ),
    ] = 0.5
    delta: Annotated[NotNegative, about(SPECULATION, "Frames in flight beyond one a stage")] = 0
    tokens_per_frame: Annotated[
        Literal["auto"] | AtLeastOne,
        about(
            SPECULATION,
            "Tokens that move through the pipeline together, in every stage at once. Several pay where so many drafts "
            "take less time than a stage, and lift the limit of n times the speed with n stages; text may then differ "
            "from plain decoding where two tokens are nearly tied. auto: as many, up to 8, as are fastest for the "
            "request",
        ),
    ] = 1
    tree_width: Annotated[
        Literal["auto"] | AtLeastOne,
        about(
            SPECULATION,
            "Drafts that a frame may hold for one position, the likeliest first, so that a wrong first guess does not "
            "empty the pipeline. Several pay where a stage takes little longer for so many rows; text may then differ "
            "from plain decoding where two tokens are nearly tied. 1: a chain of drafts. auto: as many, up to 8, as "
            "are fastest for the request",
        ),
    ] = 1
    exact: Annotated[
        bool,
        about(
            SPECULATION,
            "Promise the last bit of plain decoding: one token a frame, and nothing that has kernels see several",
        ),
    ] = False
    stall_timeout: Annotated[
        Seconds, about(PIPELINE, "Seconds without an answer after which a stage that serves is taken for hung")
    ] = 20.0
    ready_timeout: Annotated[
        Seconds,
        about(
            PIPELINE,
            "Seconds in which all processes must have started and loaded their weights; who goes on loading has more",
        ),
    ] = 600.0
    hollow_stages: Annotated[
        bool,
        about(REHEARSAL, "Stages compute nothing, to measure the rest of a cycle; the text then means nothing"),
    ] = False
    emulate: Annotated[Emulation, within("emulate_")] = Emulation()


def rounding_of(engine: EngineFields) -> Rounding | None:
    """How weights are rounded when they are loaded."""
    return None if engine.quantization is None else Rounding(engine.quantization, engine.quantization_group_size)


class EngineOptions(EngineFields, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Of the engine, to be settled: by the model, the machine and each other."""

    stages: Annotated[
        AtLeastOne | None, about(PIPELINE, "Pipeline stages, one process each", default=str(DEFAULT_STAGES))
    ] = None
    split: Annotated[
        tuple[NotNegative, ...],
        about(
            PIPELINE,
            "Decoder layers a stage, such as 10,10,8,2; the last may have 0",
            default="equal bytes a token, LM head included",
        ),
    ] = ()
    device: Annotated[
        tuple[str, ...],
        about(PIPELINE, "cpu; cuda (one GPU a stage); or a list, such as cuda:1,cuda:0"),
    ] = ("cpu",)
    dtype: Annotated[
        Literal["auto"] | Dtype, about(PIPELINE, "Weights and KV cache; auto is float32 on CPUs, bfloat16 on GPUs")
    ] = "auto"
    transport: Annotated[
        Literal["auto"] | TransportName,
        about(
            PIPELINE,
            "Hidden states between stages; auto is nccl on GPUs with one stage each, inprocess on a single GPU, else "
            "unix on one host and zmq between hosts",
        ),
    ] = "auto"
    max_model_len: Annotated[
        AtLeastOne | None,
        about(
            PIPELINE,
            "Longest prompt plus answer, in tokens; the KV cache is reserved for it",
            default=f"what the model was made for, at most {DEFAULT_MAX_MODEL_LEN}",
        ),
    ] = None
    drafter: Annotated[DrafterOptions, within()] = DrafterOptions()


class ModelArgument(Struct, frozen=True, kw_only=True):
    """Which model."""

    model: Annotated[
        str,
        about(
            "Model",
            "ORG/NAME on the Hugging Face hub, a folder with safetensors, a .gguf file, 'default' "
            "(SmolLM2-135M-Instruct, fetched once) or 'tiny' (a built-in random model)",
            place=True,
        ),
    ] = "default"
