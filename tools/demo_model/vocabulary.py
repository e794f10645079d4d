"""The demo model's tokenizer: byte-level BPE, learned from its texts, one that llama.cpp knows.

Text is cut into words by the pattern of Qwen's tokenizers (llama.cpp's pre-tokenizer "qwen2"),
then merged within words. Every byte is a token, so any text can be written.
"""

import json
import pathlib

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

SIZE = 4096
PRE_TOKENIZER = "qwen2"  # llama.cpp's name for _WORDS
END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIAL = [END_OF_TEXT, TURN_START, TURN_END]  # ids 0, 1, 2

_WORDS = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")


def turns(user: str, assistant: str) -> str:
    """One exchange as CHAT_TEMPLATE writes it."""
    return (f"{TURN_START}user\n{user}{TURN_END}\n"
            f"{TURN_START}assistant\n{assistant}{TURN_END}\n")


def _with_words(model: models.BPE) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(_WORDS), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def restore(tokens: list[str], merges: list[str]) -> Tokenizer:
    """The tokenizer of a model file: its tokens in id order and its merges."""
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = _with_words(models.BPE(vocabulary, [tuple(m.split(" ")) for m in merges]))
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer


def tokens_and_merges(tokenizer: Tokenizer) -> tuple[list[str], list[str]]:
    """What a model file holds: see restore."""
    model = json.loads(tokenizer.to_str())["model"]
    tokens = [token for token, _ in sorted(model["vocab"].items(), key=lambda item: item[1])]
    merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
    return tokens, merges


def learn(texts: list[str], path: pathlib.Path) -> Tokenizer:
    """The tokenizer in `path`; learned from `texts` and written there when there is none yet."""
    if path.exists():
        return Tokenizer.from_file(str(path))
    tokenizer = _with_words(models.BPE())
    trainer = trainers.BpeTrainer(vocab_size=SIZE, special_tokens=SPECIAL, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() != SIZE:
        raise RuntimeError(f"the texts gave {tokenizer.get_vocab_size()} tokens, not {SIZE}")
    tokenizer.save(str(path))
    return tokenizer
