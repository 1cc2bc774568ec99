"""A model folder without a model: a small byte-level BPE tokenizer, its configuration files and a ChatML template."""

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
EOS = 2
VOCAB_SIZE = 400

CHATML = """\
{%- for message in messages -%}
{%- if message['role'] == 'forbidden' -%}{{ raise_exception('this role is not for this model') }}{%- endif -%}
{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}
"""

_CORPUS = (
    "the quick brown fox jumps over the lazy dog and then the dog sleeps in the sun",
    "a token enters the first stage while the token before it leaves the last stage",
    "user assistant system hello world, how are you today? I am fine; thank you!",
)


def byte_level_tokenizer(special: tuple[str, ...] = SPECIAL) -> Tokenizer:
    """A trained tokenizer of `VOCAB_SIZE` tokens or fewer; the special tokens come first."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    return tokenizer


def write_model_folder(folder: Path, template: str = CHATML) -> Path:
    """Fills `folder` with what the API server reads of a prepared model."""
    byte_level_tokenizer().save(str(folder / "tokenizer.json"))
    configs = {
        "config.json": {
            "vocab_size": VOCAB_SIZE,
            "eos_token_id": EOS,
            "num_hidden_layers": 4,
            "max_position_embeddings": 2048,
        },
        "generation_config.json": {"eos_token_id": [EOS]},
        "tokenizer_config.json": {"eos_token": "<|im_end|>", "bos_token": {"content": "<|endoftext|>"}},
    }
    for name, config in configs.items():
        (folder / name).write_text(json.dumps(config))
    (folder / "chat_template.jinja").write_text(template)
    return folder
