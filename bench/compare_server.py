#!/usr/bin/env python3
"""Serves the same model with llama-server and with expert-split in turn, and prints ratios.

  scripts/build
  scripts/env python3 bench/compare_server.py [--streams 1,4,16] [--json FILE] [--markdown FILE]

The model is that of compare_llama.py, made once and kept; or --model FILE. A pair starts both
servers one after the other, in alternating order, on the CPU with the same number of threads, slots
and context and else with their defaults. Each is asked the same things by the same clients: for
each number of streams, that many clients send one streaming /v1/completions request each at the
same time, all with prompts of their own, so that nothing can be reused, and to be answered with the
same number of tokens. Two things are measured: generated tokens a second of all streams together,
from the first request to the last token, and the mean time from a request to its first text. The
ratio of a pair is ours divided by llama-server's, of times the other way round, so that more is
better everywhere; what counts is the median over pairs. An answer that is not of the length asked
for ends the measurement. The script warns when the machine is not idle; such numbers mean nothing.
"""

import argparse
import contextlib
import http.client
import json
import os
import pathlib
import random
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import compare_llama
from compare_llama import REPOSITORY, Failure, say

START_SECONDS = 600
ANSWER_SECONDS = 1800
# Characters of a prompt are tokens of the random models, whose vocabulary has no merges.
LETTERS = "abcdefghijklmnopqrstuvwxyz    "


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def ours(arguments: argparse.Namespace, port: int, context: int) -> list[str]:
    return [str(arguments.bin / "expert-split"), "serve", "--model", str(arguments.model),
            "--targets", "cpu", "--port", str(port), "--threads", str(arguments.threads),
            "--parallel", str(max(arguments.streams)), "--ctx", str(context)]


def llama(arguments: argparse.Namespace, port: int, context: int) -> list[str]:
    slots = max(arguments.streams)
    return ["llama-server", "-m", str(arguments.model), "-ngl", "0", "--host", "127.0.0.1",
            "--port", str(port), "-t", str(arguments.threads), "-np", str(slots),
            "-c", str(context * slots)]


@contextlib.contextmanager
def running(command: list[str], port: int):
    """The server, from when it is ready."""
    # With a software Vulkan device visible llama.cpp would send large batches there.
    environment = {k: v for k, v in os.environ.items() if k != "GGML_VK_VISIBLE_DEVICES"}
    with tempfile.TemporaryFile() as log:
        try:
            server = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        except OSError as error:
            raise Failure(f"{command[0]}: {error.strerror}; run this through scripts/env, after "
                          "scripts/build") from None
        try:
            wait_until_ready(command[0], server, port, log)
            yield
        finally:
            server.terminate()
            server.wait()


def wait_until_ready(name: str, server: subprocess.Popen, port: int, log) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if server.poll() is not None:
            log.seek(0)
            lines = log.read().decode(errors="replace").strip().splitlines() or ["no message"]
            raise Failure(f"{name}: exit status {server.returncode}: {lines[-1]}")
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        except OSError:
            pass
        time.sleep(0.05)
    raise Failure(f"{name}: not ready within {START_SECONDS} s")


class Client(threading.Thread):
    """One streaming request."""

    def __init__(self, port: int, prompt: str, tokens: int, barrier: threading.Barrier):
        super().__init__()
        self.port, self.prompt, self.tokens, self.barrier = port, prompt, tokens, barrier
        self.start_time = self.first_time = self.end_time = 0.0
        self.problem: str | None = None

    def run(self) -> None:
        try:
            self.ask()
        except (OSError, ValueError, http.client.HTTPException) as error:
            self.problem = f"{type(error).__name__}: {error}"

    def ask(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=ANSWER_SECONDS)
        connection.connect()
        body = json.dumps({"prompt": self.prompt, "max_tokens": self.tokens, "temperature": 0,
                           "ignore_eos": True, "stream": True,
                           "stream_options": {"include_usage": True}})
        self.barrier.wait()
        self.start_time = time.monotonic()
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise ValueError(f"status {response.status}: {response.read(300)!r}")
        usage = None
        for line in response:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            usage = event.get("usage") or usage
            for choice in event.get("choices", []):
                self.end_time = time.monotonic()
                if choice.get("text"):
                    self.first_time = self.first_time or self.end_time
        if usage is None or usage["completion_tokens"] != self.tokens or not self.first_time:
            raise ValueError(f"an answer that is not of {self.tokens} tokens: usage {usage}")


def ask_together(port: int, prompts: list[str], tokens: int) -> dict[str, float]:
    barrier = threading.Barrier(len(prompts))
    clients = [Client(port, prompt, tokens, barrier) for prompt in prompts]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    for client in clients:
        if client.problem:
            raise Failure(f"a request failed: {client.problem}")
    begin = min(client.start_time for client in clients)
    end = max(client.end_time for client in clients)
    return {"tokens": len(clients) * tokens / (end - begin),
            "first": statistics.mean(c.first_time - c.start_time for c in clients)}


def prompts_of(seed: int, streams: int, length: int) -> list[str]:
    letters = random.Random(seed)
    return ["".join(letters.choices(LETTERS, k=length)) for _ in range(streams)]


def measure_server(arguments: argparse.Namespace, make_command, seed: int) -> dict:
    port = free_port()
    context = -(-(arguments.prompt + arguments.tokens + 16) // 256) * 256
    result = {}
    with running(make_command(arguments, port, context), port):
        ask_together(port, prompts_of(seed, 1, arguments.prompt), 8)
        for streams in arguments.streams:
            prompts = prompts_of(seed + streams, streams, arguments.prompt)
            result[str(streams)] = ask_together(port, prompts, arguments.tokens)
    return result


def measure(arguments: argparse.Namespace) -> list[dict]:
    pairs = []
    for index in range(arguments.pairs):
        pair = {"probe": compare_llama.probe(arguments, arguments.threads)}
        order = [("llama", llama), ("ours", ours)]
        for name, make_command in order if index % 2 == 0 else reversed(order):
            pair[name] = measure_server(arguments, make_command, 1000 * index)
        pairs.append(pair)
        say(f"pair {index + 1} of {arguments.pairs}: {json.dumps(pair)}")
    return pairs


def row_of(pairs: list[dict], streams: int, kind: str) -> list[str]:
    theirs = [pair["llama"][str(streams)][kind] for pair in pairs]
    own = [pair["ours"][str(streams)][kind] for pair in pairs]
    ratios = [a / b if kind == "first" else b / a for a, b in zip(theirs, own)]
    what = "seconds to the first text" if kind == "first" else "tokens/s"
    digits = 3 if kind == "first" else 2
    return [str(streams), what, f"{statistics.median(theirs):.{digits}f}",
            f"{statistics.median(own):.{digits}f}", f"{statistics.median(ratios):.2f}",
            f"{min(ratios):.2f} to {max(ratios):.2f}"]


def report(arguments: argparse.Namespace, pairs: list[dict], busy: bool) -> str:
    rows = [["streams", "what", "llama-server", "ours", "ratio", "pairs"]]
    rows += [row_of(pairs, streams, kind) for kind in ("tokens", "first")
             for streams in arguments.streams]
    text = compare_llama.table_of(rows)
    text += (f"\n\n{arguments.model.name}, prompts of {arguments.prompt} characters, "
             f"{arguments.tokens} tokens generated, medians of {len(pairs)} pairs. "
             f"{compare_llama.cpu_name()}, {arguments.threads} threads. "
             f"{compare_llama.llama_version()}.\n")
    best = max(pair["probe"] for pair in pairs)
    slow = sum(1 for pair in pairs if pair["probe"] < compare_llama.SLOW_PROBE * best)
    if slow:
        text += (f"\nWARNING: in {slow} of {len(pairs)} pairs the bandwidth was below "
                 f"{compare_llama.SLOW_PROBE:.0%} of the best; measure again\n")
    if busy:
        text += "\nWARNING: the machine was not idle; these numbers mean nothing\n"
    return text


def numbers(text: str) -> list[int]:
    if not re.fullmatch(r"[1-9]\d{0,2}(,[1-9]\d{0,2})*", text):
        raise argparse.ArgumentTypeError(f"'{text}' is no list of numbers such as 1,4,16")
    return [int(number) for number in text.split(",")]


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=numbers, default=[1, 4, 16], metavar="A,B",
                        help="clients at the same time (default 1,4,16)")
    parser.add_argument("--model", type=pathlib.Path, metavar="FILE",
                        help="default: compare_llama.py's main, made where it is missing")
    parser.add_argument("--models", type=pathlib.Path, default=REPOSITORY / "build/bench",
                        metavar="FOLDER", help="where that model is (default: build/bench)")
    parser.add_argument("--bin", type=pathlib.Path, default=REPOSITORY / "build/release/bin",
                        help="where expert-split and membw are (default: build/release/bin)")
    parser.add_argument("--pairs", type=int, default=5, metavar="N", help="default 5")
    parser.add_argument("--prompt", type=int, default=128, metavar="N",
                        help="characters of a prompt (default 128)")
    parser.add_argument("--tokens", type=int, default=64, metavar="N",
                        help="tokens of an answer (default 64)")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), metavar="N",
                        help="default: one a core")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="also write every pair")
    parser.add_argument("--markdown", type=pathlib.Path, metavar="FILE", help="also write the table")
    arguments = parser.parse_args()
    if min(arguments.pairs, arguments.prompt, arguments.tokens, arguments.threads) < 1:
        parser.error("--pairs, --prompt, --tokens and --threads: at least 1")
    return arguments


def main() -> int:
    arguments = options()
    try:
        busy = compare_llama.is_busy()
        if busy:
            say("warning: the machine is not idle")
        if arguments.model is None:
            arguments.model = compare_llama.model_path(arguments, "main")
            if not arguments.model.exists():
                compare_llama.make_model(arguments.model, "main")
        pairs = measure(arguments)
    except Failure as failure:
        say(f"compare_server.py: {failure}")
        return 1
    except KeyboardInterrupt:
        return 130
    text = report(arguments, pairs, busy)
    print(text, end="")
    if arguments.markdown:
        arguments.markdown.write_text(text)
    if arguments.json:
        arguments.json.write_text(json.dumps(
            {"busy": busy, "cpu": compare_llama.cpu_name(),
             "versions": compare_llama.llama_version(), "model": arguments.model.name,
             "prompt": arguments.prompt, "tokens": arguments.tokens, "pairs": pairs},
            indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
