"""The head in a model's own checkpoint: against the model's own layer in transformers, and in a running engine."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from speculation.decisions.taps import columns_of_stages
from speculation.drafters.base import Drafter
from speculation.drafters.heads.chain import ChainDrafter
from speculation.drafters.none import NoDrafter
from speculation.heads.mtp import PREFIX, MtpHead, read_mtp
from speculation.heads.runtime import HeadRuntime
from speculation.taps import TapBuffer
from tests.harness import local_engine
from tests.model.conftest import VOCABULARY, write_model
from tests.model.families import family_configs
from workers.prepare.prepare import check_weights
from workers.shared.errors import ConfigError
from workers.shared.messages import Sampling
from workers.shared.model_files.draft_heads import own_head_size
from workers.shared.model_files.facts import read_facts

NAMES = ["qwen3_5", "qwen3_5_moe", "qwen3_next"]


def write_with_head(name: str, folder: Path) -> Path:
    """A random model of the family that carries a head; its full-attention layer is that of another random model."""
    config = family_configs()[name]
    write_model(config, folder)
    torch.manual_seed(8)
    donor = AutoModelForCausalLM.from_config(config)
    donor.save_pretrained(folder / "donor")
    full = config.layer_types.index("full_attention")
    held = load_file(folder / "donor" / "model.safetensors")
    prefix = f"model.layers.{full}."
    head = {f"{PREFIX}layers.0.{name[len(prefix) :]}": value for name, value in held.items() if name.startswith(prefix)}
    hidden = config.hidden_size
    head[f"{PREFIX}fc.weight"] = torch.randn(hidden, 2 * hidden) * 0.2
    for norm in ("norm", "pre_fc_norm_hidden", "pre_fc_norm_embedding"):
        head[f"{PREFIX}{norm}.weight"] = torch.randn(hidden) * 0.2
    for file in (folder / "donor").iterdir():
        file.unlink()
    (folder / "donor").rmdir()
    tensors: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(file)
        file.unlink()
    (folder / "model.safetensors.index.json").unlink(missing_ok=True)
    save_file(tensors | head, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="module", params=NAMES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_with_head(request.param, tmp_path_factory.mktemp(request.param))


def reference_logits(folder: Path, states: Tensor, following: list[int]) -> Tensor:
    """By transformers' own layer with the head's weights, over all pairs; each row that has no state of the model takes
    the normalised output of the one before."""
    held = load_file(folder / "model.safetensors")
    own = {name.removeprefix(f"{PREFIX}layers.0."): held[name] for name in held if name.startswith(f"{PREFIX}layers.")}
    full = AutoConfig.from_pretrained(folder).layer_types.index("full_attention")
    swapped = held | {f"model.layers.{full}.{name}": value.clone() for name, value in own.items()}
    other = folder / "swapped"
    other.mkdir(exist_ok=True)
    (other / "config.json").write_bytes((folder / "config.json").read_bytes())
    save_file(swapped, other / "model.safetensors", metadata={"format": "pt"})
    model = AutoModelForCausalLM.from_pretrained(other, dtype=torch.float32, attn_implementation="eager")
    layer, norm = model.model.layers[full], type(model.model.norm)

    def normed(name: str, row: Tensor) -> Tensor:
        module = norm(len(row), eps=model.config.rms_norm_eps)
        module.weight.data.copy_(held[PREFIX + name])
        return module(row)

    features = [model.model.norm(state) for state in states]
    while True:
        rows = []
        for feature, token in zip(features, following, strict=False):
            embedded = model.model.embed_tokens.weight[token]
            both = torch.cat(
                [normed("pre_fc_norm_embedding.weight", embedded), normed("pre_fc_norm_hidden.weight", feature)]
            )
            rows.append(held[f"{PREFIX}fc.weight"] @ both)
        hidden = torch.stack(rows)[None]
        positions = torch.arange(len(rows))[None]
        mask = torch.full((len(rows), len(rows)), -torch.inf).triu(1)[None, None]
        output = layer(hidden, position_embeddings=model.model.rotary_emb(hidden, positions), attention_mask=mask)
        output = output[0] if isinstance(output, tuple) else output
        last = normed("norm.weight", output[0, -1])
        if len(rows) == len(following):
            return model.lm_head(last)
        features.append(last)


@torch.inference_mode()
def test_drafts_are_those_of_the_models_own_layer(folder: Path) -> None:
    check_weights(folder)
    head = read_mtp(folder)
    assert isinstance(head, MtpHead)
    generator = torch.Generator().manual_seed(3)
    states = torch.randn(7, 1, head.width, generator=generator)
    following = torch.randint(VOCABULARY, (9,), generator=generator).tolist()
    runtime = HeadRuntime(head, 16)
    output = runtime.run(0, following[:7], head.features(states))[-1:]
    for place, token in enumerate(following[7:], 7):
        output = runtime.run(place, [token], head.fed_back(output))
    expected = reference_logits(folder, states[:, 0], following)
    torch.testing.assert_close(head.logits(output)[0], expected, atol=1e-3, rtol=1e-3)
    assert own_head_size(folder).weights == sum(
        parameter.numel() for name, parameter in head.named_parameters() if not name.startswith("final_norm")
    )


@pytest.mark.parametrize(("split", "drafts"), [((2, 2), 0), ((3, 1), 3)])
def test_tokens_are_those_of_plain_decoding(folder: Path, split: tuple[int, ...], drafts: int) -> None:
    head = read_mtp(folder)
    layers = read_facts(folder).num_hidden_layers
    assert head.anchors == (layers,)

    def make(slot: int) -> Drafter:
        columns = columns_of_stages(head.anchors, split)
        taps = TapBuffer(columns, (128, 1, head.width), torch.float32, "cpu")
        return ChainDrafter(HeadRuntime(head, 128), taps, VOCABULARY)

    settings = {"max_model_len": 128, "prefill_chunk": 16, "max_num_seqs": 2}
    with local_engine(folder, split, head.anchors, drafts=drafts, **settings) as running:
        for sampling in (Sampling(seed=0, temperature=0), Sampling(seed=4)):
            prompt = [(37 * place + 11) % VOCABULARY for place in range(21)]
            running.drafting.use(NoDrafter())
            plain = running.client.generate(prompt, 16, sampling).tokens
            running.drafting.use(make)
            for _ in range(2):
                result = running.client.generate(prompt, 16, sampling)
                assert result.tokens == plain
                assert result.counts is not None
                assert result.counts.drafted > 0


def test_a_model_without_such_a_head_and_one_that_is_made_otherwise_are_refused(
    tiny_model: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"holds no tensors mtp\.\*"):
        read_mtp(tiny_model)
    folder = write_with_head("qwen3_5", tmp_path)
    held = load_file(folder / "model.safetensors")
    for name, message in (
        ("mtp.layers.1.input_layernorm.weight", "heads of several layers"),
        ("mtp.shared_head.head.weight", "mtp.shared_head.head.weight is a tensor of a head that is made otherwise"),
    ):
        save_file(held | {name: torch.zeros(3)}, folder / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(ConfigError, match=message):
            read_mtp(folder)
    del held["mtp.fc.weight"]
    save_file(held, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"lacks mtp\.fc\.weight"):
        read_mtp(folder)
