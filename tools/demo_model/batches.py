"""What the model sees, in which order: windows of packed documents, both domains in every batch."""

import itertools
import re
from typing import Iterator

import numpy as np
from tokenizers import Tokenizer

import vocabulary
from texts import Document

CHAT_SHARE = 0.15  # of the documents of a pass are questions with an answer instead
_ANSWER_CHARACTERS = 1500
_QUESTIONS = {"kjv": ["Read {}.", "Read me {}."],
              "sqlite": ["Explain: {}", "Tell me about {}."]}


def _chat(document: Document, random: np.random.Generator) -> str:
    section = document.sections[random.integers(len(document.sections))]
    question = _QUESTIONS[document.domain][random.integers(2)]
    subject = re.sub(r"^[\d.]+ ", "", section.heading or document.title)
    answer = section.text.strip()
    if len(answer) > _ANSWER_CHARACTERS:  # up to the last whole line
        answer = answer[:_ANSWER_CHARACTERS].rsplit("\n", 1)[0]
    return vocabulary.turns(question.format(subject), answer)


def windows(documents: list[Document], tokenizer: Tokenizer, context: int,
            seed: list[int]) -> Iterator[np.ndarray]:
    """Endless windows of context + 1 tokens; each pass over the documents is in another order."""
    end = tokenizer.token_to_id(vocabulary.END_OF_TEXT)
    plain = [e.ids + [end] for e in tokenizer.encode_batch([d.text for d in documents])]
    for number in itertools.count():
        random = np.random.default_rng([*seed, number])
        stream: list[int] = []
        for index in random.permutation(len(documents)):
            if random.random() < CHAT_SHARE:
                stream += tokenizer.encode(_chat(documents[index], random)).ids + [end]
            else:
                stream += plain[index]
        start = int(random.integers(context))
        tokens = np.asarray(stream, np.int64)
        for first in range(start, len(tokens) - context, context):
            yield tokens[first:first + context + 1]


def batches(training: dict[str, list[Document]], tokenizer: Tokenizer, context: int, size: int,
            seed: int, skipped: int) -> Iterator[np.ndarray]:
    """[size, context + 1] token ids: even rows of the first domain, odd rows of the second.

    `skipped` windows of each domain have been seen before.
    """
    streams = [itertools.islice(windows(documents, tokenizer, context, [seed, index]), skipped, None)
               for index, documents in enumerate(training.values())]
    while True:
        yield np.stack([next(streams[row % len(streams)]) for row in range(size)])
