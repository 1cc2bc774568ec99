"""The built-in model's tokenizer: byte-level BPE with ChatML control tokens, trained on one paragraph."""

from pathlib import Path

import msgspec
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

END_OF_TEXT = "<|endoftext|>"
START_OF_TURN = "<|im_start|>"
END_OF_TURN = "<|im_end|>"

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

_TEXT = """
An echelon is a line of riders who draft behind each other, staggered, so that everyone but the first one saves
strength. When the wind comes from the side the line spreads over the whole road, and whoever finds no place in it
falls behind. The first rider stays in the wind for a short while, moves aside, and lets the others pass before
joining the end again. In the same way the tokens of one sequence follow each other through the stages of a model:
while the oldest token is in the last stage, newer tokens that were only drafted are already in the earlier stages. If
the guess was right, nothing has to be computed again; if it was wrong, the tokens behind it leave the line and the
corrected token takes their place. What should I know about the weather today? Please write a short story about a
small town by the river, and explain why the bridge there was built of stone. There are one, two, three, four, five,
six, seven, eight, nine, ten reasons to think that it will be raining in the evening. However, nobody who lives there
would believe any of them without having looked. The quick brown fox jumps over the lazy dog. Pack my box with five
dozen liquor jugs. How vexingly quick daft zebras jump!
"""


def write_tokenizer(folder: Path, vocab_size: int) -> None:
    """Writes tokenizer.json and tokenizer_config.json with exactly `vocab_size` tokens, control tokens first."""
    control = [END_OF_TEXT, START_OF_TURN, END_OF_TURN]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=control,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([_TEXT], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": START_OF_TURN,
        "eos_token": END_OF_TURN,
        "pad_token": END_OF_TEXT,
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_bytes(msgspec.json.format(msgspec.json.encode(settings)))
