"""Starts whatever is to be measured."""

from pathlib import Path

from speculation.bench.configuration import HUGGING_FACE, LLAMA_CPP, BenchSettings, Contender
from speculation.bench.contenders.hugging_face import HuggingFace
from speculation.bench.contenders.llama_server import LlamaServer
from speculation.bench.contenders.running import Running
from speculation.bench.contenders.served import Served


def start(contender: Contender, settings: BenchSettings, checkpoint: str | None, logs: Path) -> Running:
    """Starts a contender's processes; `checkpoint` is as in `serve_arguments`.

    Only to be called by the main thread: processes that die with their parent die with the thread that started them.
    """
    name = f"{contender.method}-n{contender.stages}.log"
    if contender.method == HUGGING_FACE:
        return HuggingFace(settings, logs / name)
    if contender.method == LLAMA_CPP:
        return LlamaServer(settings, logs / name)
    return Served(contender, settings, checkpoint, logs / name)
