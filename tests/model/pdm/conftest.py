"""A tiny random target, in memory and as a model folder."""

import random
from pathlib import Path

import msgspec
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from speculation.training.examples.data import Record

LAYERS, HIDDEN, VOCAB = 8, 32, 259
END = 256

TEMPLATE = (
    "{% for message in messages %}<|start|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>{% endif %}"
)


@pytest.fixture(scope="session")
def target_config() -> LlamaConfig:
    return LlamaConfig(
        hidden_size=HIDDEN,
        intermediate_size=64,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_hidden_layers=LAYERS,
        vocab_size=VOCAB,
        max_position_embeddings=512,
        initializer_range=0.2,
        bos_token_id=None,
        eos_token_id=END,
        tie_word_embeddings=False,
    )


@pytest.fixture(scope="session")
def target_model(target_config: LlamaConfig) -> LlamaForCausalLM:
    torch.manual_seed(11)
    model = LlamaForCausalLM(target_config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.uniform_(0.5, 1.5)
    return model.eval()


@pytest.fixture(scope="session")
def target_folder(target_model: LlamaForCausalLM, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("target")
    target_model.save_pretrained(folder)
    byte_alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {byte: index for index, byte in enumerate(byte_alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|pad|>")
    fast.add_special_tokens({"additional_special_tokens": ["<|start|>"]})
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    assert fast.eos_token_id == END
    assert len(fast) == VOCAB
    return folder


@pytest.fixture(scope="session")
def data_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    rng = random.Random(0)
    lines = []
    for number in range(24):
        ids = [rng.choice([65, 66, 67, 70]) for _ in range(rng.randint(2, 30))]
        record = Record(f"question {number}", "", [*ids, END], float(number % 2), "test")
        lines.append(msgspec.json.encode(record) + b"\n")
    (folder / "answers.jsonl").write_bytes(b"".join(lines))
    return folder
