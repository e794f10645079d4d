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


class Batches:
    """Endless batches of the training documents; the same seed gives the same ones."""

    def __init__(self, training: dict[str, list[Document]], tokenizer: Tokenizer, context: int,
                 seed: int) -> None:
        self._training, self._tokenizer = training, tokenizer
        self._context, self._seed = context, seed
        self._end = tokenizer.token_to_id(vocabulary.END_OF_TEXT)
        self._plain = {domain: [e.ids + [self._end] for e in tokenizer.encode_batch(
            [d.text for d in documents])] for domain, documents in training.items()}

    def __call__(self, size: int, skipped: int) -> Iterator[np.ndarray]:
        """[size, context + 1] token ids: even rows of the first domain, odd rows of the second.

        `skipped` windows of each domain have been seen before.
        """
        streams = [itertools.islice(self._windows(domain), skipped, None)
                   for domain in self._training]
        while True:
            yield np.stack([next(streams[row % len(streams)]) for row in range(size)])

    def _windows(self, domain: str) -> Iterator[np.ndarray]:
        """Windows of context + 1 tokens; each pass over the documents is in another order."""
        documents, plain = self._training[domain], self._plain[domain]
        index = list(self._training).index(domain)
        for number in itertools.count():
            random = np.random.default_rng([self._seed, index, number])
            stream: list[int] = []
            for place in random.permutation(len(documents)):
                if random.random() < CHAT_SHARE:
                    question = _chat(documents[place], random)
                    stream += self._tokenizer.encode(question).ids + [self._end]
                else:
                    stream += plain[place]
            start = int(random.integers(self._context))
            tokens = np.asarray(stream, np.int64)
            for first in range(start, len(tokens) - self._context, self._context):
                yield tokens[first:first + self._context + 1]
