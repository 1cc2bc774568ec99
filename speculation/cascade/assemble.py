"""From a configuration to the process of one model of its cascade."""

from pathlib import Path

import torch

from speculation.cascade.line import SmallerLine
from speculation.cascade.model import CascadeModel, WholeModel
from speculation.decisions.cascade.writer import CascadeWriter, Pacing
from speculation.drafters.load_model import load_whole
from workers.rehearsal.paced import Pace, PacedLayers
from workers.sampling.sampler import Sampler
from workers.shared.cascade.endpoints import endpoint_of
from workers.shared.cascade.figures import ModelFigures
from workers.shared.config import EngineConfig
from workers.shared.links import Listener
from workers.shared.messages import StageTimings
from workers.shared.model_files.facts import read_facts
from workers.shared.time_slices import settle


def assemble(config: EngineConfig, number: int) -> CascadeModel:
    """Loads model `number` of the cascade, 0 being the smallest; from then on the next bigger one may connect.

    Raises `ConfigError` where it cannot be loaded.
    """
    drafter = config.drafter
    folder, device = Path(drafter.cascade[number]), drafter.cascade_device(number)
    shard, capacity = load_whole(config, folder, device, "--cascade")
    model: WholeModel = shard
    if milliseconds := config.emulate.of_cascade(number):
        model = PacedLayers(shard, Pace(milliseconds, config.emulate.of_rows), StageTimings(), sleeps=True)
    figures = ModelFigures(folder.name, device)
    pacing = Pacing(drafter.cascade_lead, drafter.cascade_lookahead)
    slots = range(config.max_num_seqs)
    writers = [CascadeWriter(slot, capacity, pacing, figures, smallest=number == 0) for slot in slots]
    line = None
    if number > 0:
        ends = [writer.smaller for writer in writers if writer.smaller is not None]
        below = endpoint_of(config.endpoints.cascade, number - 1)
        line = SmallerLine(below, Path(drafter.cascade[number - 1]).name, ends)
    sampler = Sampler(read_facts(folder).vocab_size, torch.device(device))
    settle()
    listener = Listener(endpoint_of(config.endpoints.cascade, number), "the next bigger model")
    return CascadeModel(model, sampler, writers, listener, line, figures)
