"""The `echelon` command."""

import os
import subprocess
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from server.cli.bench import add_measuring_commands
from server.cli.training import add_training_commands
from server.launcher.launch import display_name, prepare_model, read_model, serve
from server.launcher.options import DrafterOptions, EngineOptions, choose_drafter_config, plan_over_network
from server.launcher.server_options import KEYS_VARIABLE, ServerOptions, collect_keys
from server.tool_parsers.dialects import DIALECTS
from workers.shared.emulation import Emulation
from workers.shared.errors import ConfigError
from workers.shared.model_files.shipped_modules import shipped_module

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Serve one conversation as fast as several devices can, with output that is exactly that of plain decoding.",
)


class DtypeChoice(StrEnum):
    """Values of --dtype."""

    auto = "auto"
    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


class Transport(StrEnum):
    """Values of --transport."""

    auto = "auto"
    unix = "unix"
    zmq = "zmq"
    gloo = "gloo"
    nccl = "nccl"
    inprocess = "inprocess"


class DrafterChoice(StrEnum):
    """Values of --drafter."""

    auto = "auto"
    none = "none"
    ngram = "ngram"
    model = "model"
    pdm = "pdm"
    pdm_ngram = "pdm+ngram"
    scripted = "scripted"


Model = Annotated[
    str,
    typer.Argument(
        help="ORG/NAME on the Hugging Face hub, a folder with safetensors, a .gguf file, "
        "'default' (SmolLM2-135M-Instruct, fetched once) or 'tiny' (a built-in random model)"
    ),
]
API, PIPELINE, SPECULATION, MEASURING = "API", "Pipeline", "Speculation", "Rehearsing and measuring"


@app.command("serve")
def serve_command(
    model: Model = "default",
    host: Annotated[str, typer.Option(help="Address to listen on", rich_help_panel=API)] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on", rich_help_panel=API)] = 8000,
    served_model_name: Annotated[
        str | None, typer.Option(help="Name of the model in the API [default: from MODEL]", rich_help_panel=API)
    ] = None,
    max_queue: Annotated[
        int,
        typer.Option(min=0, help="Requests that may wait behind the running one; more get 429", rich_help_panel=API),
    ] = 64,
    max_model_len: Annotated[
        int | None,
        typer.Option(
            help="Longest prompt plus answer, in tokens; the KV cache is reserved for it "
            "[default: what the model was made for, at most 8192]",
            rich_help_panel=API,
        ),
    ] = None,
    tool_call_parser: Annotated[
        str | None,
        typer.Option(
            help=f"How the model writes tool calls: {', '.join(DIALECTS)} [default: from its chat template]",
            rich_help_panel=API,
        ),
    ] = None,
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            help="Key that clients must send; may be given several times, or as a list separated by commas in the "
            "variable ECHELON_API_KEY, where other users of this machine cannot see it",
            rich_help_panel=API,
        ),
    ] = None,
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(help="Site whose pages may call from a browser, or *; may be repeated", rich_help_panel=API),
    ] = None,
    ssl_keyfile: Annotated[Path | None, typer.Option(help="Private key, for https", rich_help_panel=API)] = None,
    ssl_certfile: Annotated[Path | None, typer.Option(help="Certificate, for https", rich_help_panel=API)] = None,
    request_timeout: Annotated[
        float | None, typer.Option(help="Seconds a request may take in all [default: any]", rich_help_panel=API)
    ] = None,
    header_timeout: Annotated[
        float, typer.Option(help="Seconds in which the headers of a request must arrive", rich_help_panel=API)
    ] = 30.0,
    max_requests: Annotated[
        int, typer.Option(min=1, help="HTTP requests served at a time; more get 429", rich_help_panel=API)
    ] = 1024,
    stages: Annotated[
        int | None, typer.Option(min=1, help="Pipeline stages, one process each [default: 2]", rich_help_panel=PIPELINE)
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(
            help="Decoder layers a stage, such as 10,10,8,2 [default: equal bytes a token, LM head included]",
            rich_help_panel=PIPELINE,
        ),
    ] = None,
    device: Annotated[
        str,
        typer.Option(help="cpu; cuda (one GPU a stage); or a list, such as cuda:1,cuda:0", rich_help_panel=PIPELINE),
    ] = "cpu",
    dtype: Annotated[
        DtypeChoice,
        typer.Option(help="Weights and KV cache; auto is float32 on CPUs, bfloat16 on GPUs", rich_help_panel=PIPELINE),
    ] = DtypeChoice.auto,
    transport: Annotated[
        Transport,
        typer.Option(
            help="Hidden states between stages; auto is unix on CPUs of one host, nccl on GPUs, inprocess on one GPU",
            rich_help_panel=PIPELINE,
        ),
    ] = Transport.auto,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads a stage", rich_help_panel=PIPELINE)] = 1,
    prefill_chunk: Annotated[
        int,
        typer.Option(
            min=1,
            help="Prompt tokens that move through the pipeline together; whole chunks are reused by later prompts",
            rich_help_panel=PIPELINE,
        ),
    ] = 128,
    sequences: Annotated[
        int,
        typer.Option(
            min=1, help="KV slots: conversations whose beginnings are kept in the cache", rich_help_panel=PIPELINE
        ),
    ] = 2,
    stall_timeout: Annotated[
        float,
        typer.Option(help="Seconds without an answer after which a stage is restarted", rich_help_panel=PIPELINE),
    ] = 20.0,
    drafter: Annotated[
        DrafterChoice,
        typer.Option(
            help="pdm: a draft module reads the stages' hidden states; ngram: look the last tokens up in prompt and "
            "answer; pdm+ngram: whichever has lately been better; model: a small model of the same family guesses, no "
            "training needed; none: plain pipeline; scripted: replay; auto: model where --draft-model is given, "
            "pdm+ngram where a module is given or comes with Echelon, else ngram",
            rich_help_panel=SPECULATION,
        ),
    ] = DrafterChoice.auto,
    draft_module: Annotated[
        Path | None,
        typer.Option(
            help="Draft module for this model: a folder, or a .pt file of format v11 [default: the one that comes with "
            "Echelon, if any]",
            rich_help_panel=SPECULATION,
        ),
    ] = None,
    draft_model: Annotated[
        str | None,
        typer.Option(
            help="Small model with the vocabulary of MODEL, given as MODEL is, for --drafter model; it runs whole on "
            "--draft-device, and pays where it is faster than one stage",
            rich_help_panel=SPECULATION,
        ),
    ] = None,
    num_speculative_tokens: Annotated[
        int,
        typer.Option(
            min=0,
            help="Draft-then-verify, the classic way: make so many drafts, then send them through the pipeline in one "
            "frame. 0: each draft is a frame, and frames fill all stages at once. Of use with one stage; with several, "
            "all but one of them idle",
            rich_help_panel=SPECULATION,
        ),
    ] = 0,
    draft_device: Annotated[
        str,
        typer.Option(
            help="Device of the draft module or model; auto is the first stage's", rich_help_panel=SPECULATION
        ),
    ] = "auto",
    draft_threads: Annotated[
        int, typer.Option(min=1, help="CPU threads of the draft module or model", rich_help_panel=SPECULATION)
    ] = 1,
    always_draft: Annotated[
        bool,
        typer.Option(
            "--always-draft", help="Draft even while it loses against plain decoding", rich_help_panel=MEASURING
        ),
    ] = False,
    ngram_max: Annotated[int, typer.Option(min=1, help="Longest n-gram looked up", rich_help_panel=SPECULATION)] = 6,
    ngram_min: Annotated[int, typer.Option(min=1, help="Shortest n-gram looked up", rich_help_panel=SPECULATION)] = 1,
    delta: Annotated[
        int, typer.Option(min=0, help="Frames in flight beyond one a stage", rich_help_panel=SPECULATION)
    ] = 0,
    script: Annotated[
        Path | None, typer.Option(help="Recorded runs for --drafter scripted (JSON)", rich_help_panel=MEASURING)
    ] = None,
    scripted_acceptance: Annotated[
        float | None,
        typer.Option(
            help="Rehearsal: accept drafts with this probability; the text then means nothing",
            rich_help_panel=MEASURING,
        ),
    ] = None,
    emulate_stage_ms: Annotated[
        float, typer.Option(help="Make every stage take at least this long a frame, asleep", rich_help_panel=MEASURING)
    ] = 0.0,
    emulate_head_ms: Annotated[
        float, typer.Option(help="Make the last stage take this much longer", rich_help_panel=MEASURING)
    ] = 0.0,
    emulate_draft_ms: Annotated[
        float, typer.Option(help="Make a draft take at least this long", rich_help_panel=MEASURING)
    ] = 0.0,
    emulate_link_ms: Annotated[
        float,
        typer.Option(help="Let hidden states arrive this much later at the next stage", rich_help_panel=MEASURING),
    ] = 0.0,
    hollow_stages: Annotated[
        bool,
        typer.Option(
            "--hollow-stages",
            help="Rehearsal: stages compute nothing, to measure the rest of a cycle; the text then means nothing",
            rich_help_panel=MEASURING,
        ),
    ] = False,
) -> None:
    """Serve MODEL over an OpenAI-compatible API, its layers split over pipeline stages."""
    target = display_name(model)
    drafting = DrafterOptions(
        name=drafter.value,
        module=draft_module,
        model=draft_model,
        num_speculative_tokens=num_speculative_tokens,
        device=draft_device,
        threads=draft_threads,
        ngram_max=ngram_max,
        ngram_min=ngram_min,
        script=script,
        acceptance=scripted_acceptance,
        always=always_draft,
    )
    try:
        engine = EngineOptions(
            stages=stages,
            split=split,
            device=device,
            dtype=dtype.value,
            max_model_len=max_model_len,
            transport=transport.value,
            threads=threads,
            prefill_chunk=prefill_chunk,
            sequences=sequences,
            delta=delta,
            drafter=choose_drafter_config(drafting, target, shipped_module(target), device),
            hollow_stages=hollow_stages,
            emulate=Emulation(emulate_stage_ms, emulate_head_ms, emulate_draft_ms, emulate_link_ms),
            stall_timeout=stall_timeout,
        )
        code = serve(
            model,
            engine,
            ServerOptions(
                host,
                port,
                served_model_name,
                max_queue,
                tool_call_parser,
                collect_keys(api_key or [], os.environ.get(KEYS_VARIABLE, "")),
                tuple(cors_origin or ()),
                ssl_keyfile,
                ssl_certfile,
                request_timeout,
                header_timeout,
                max_requests,
            ),
        )
    except ConfigError as error:
        typer.echo(f"echelon: {error}", err=True)
        code = 2
    raise typer.Exit(code)


@app.command("plan")
def plan_command(
    model: Model = "default",
    hosts: Annotated[
        str, typer.Option(help="Where rank 0 and each stage run, in this order, such as engine,stage-0,stage-1")
    ] = "engine,stage-0,stage-1",
    split: Annotated[str | None, typer.Option(help="Decoder layers a stage [default: equal bytes a token]")] = None,
    device: Annotated[str, typer.Option(help="As the stage's own host sees it: cpu, cuda:0, or one a stage")] = "cpu",
    transport: Annotated[
        Transport, typer.Option(help="Hidden states between stages; auto is zmq on CPUs, nccl on GPUs")
    ] = Transport.auto,
    max_model_len: Annotated[int | None, typer.Option(help="As for serve")] = None,
    port: Annotated[int, typer.Option(help="First of the TCP ports that the processes listen on")] = 5550,
) -> None:
    """Print a configuration for processes that are started one by one, in containers or on several machines."""
    try:
        names = tuple(name.strip() for name in hosts.split(","))
        options = EngineOptions(
            stages=None if split else len(names) - 1,
            split=split,
            device=device,
            transport=transport.value,
            max_model_len=max_model_len,
        )
        config = plan_over_network(options, read_model(prepare_model(model)), names, port)
    except ConfigError as error:
        typer.echo(f"echelon: {error}", err=True)
        raise typer.Exit(2) from None
    typer.echo(msgspec.json.format(msgspec.json.encode(config)))


@app.command("prepare")
def prepare_command(model: Model = "default") -> None:
    """Fetch and convert MODEL without serving it; prints the folder."""
    raise typer.Exit(subprocess.run([sys.executable, "-m", "workers.prepare", model], check=False).returncode)


add_measuring_commands(app)
add_training_commands(app)


def main() -> None:
    """Entry point of the `echelon` script."""
    app()
