#!/usr/bin/env python3
"""Trains the demo model, on the CPU, and can be stopped and continued at any time.

  scripts/env --extra reference --extra texts python3 tools/demo_model/train.py

Everything is kept in --work (default build/demo_model): tokenizer.json, checkpoint.pt and
train.log, one line of numbers every ten steps. Ctrl-C saves and stops; the same command goes on.
--tokens may be changed in between: the learning rate falls to zero over the last part of it.
Training time is counted in CPU seconds of all processes, so a busy machine does not change it.
"""

import argparse
import os
import pathlib
import signal
import sys
import threading
import time

for _library in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):  # a process is one thread
    os.environ[_library] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402

import network  # noqa: E402
import texts  # noqa: E402
import vocabulary  # noqa: E402
from batches import Batches  # noqa: E402
from shared_state import SharedState  # noqa: E402

SEED = 6
BALANCE_WEIGHT = 0.003  # of the load-balancing loss: experts may specialise
WARM_UP_STEPS = 20
DECAY_SHARE = 0.45      # of all tokens: the learning rate falls to zero over the last ones
LOG_EVERY, SAVE_EVERY = 10, 50
MAX_CPU_SECONDS = 120 * 60


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path("build/demo_model"))
    parser.add_argument("--tokens", type=int, default=3000000, help="to train on, in all")
    parser.add_argument("--batch", type=int, default=8, help=f"windows of {network.CONTEXT} tokens "
                        "a step; a multiple of twice --processes")
    parser.add_argument("--processes", type=int, default=2)
    args = parser.parse_args()
    if args.batch < 1 or args.batch % (2 * args.processes):
        parser.error(f"--batch {args.batch}: must be a multiple of {2 * args.processes}")
    return args


def rate_factor(tokens: int, total: int, step: int) -> float:
    left = (total - tokens) / (DECAY_SHARE * total)
    return max(0.0, min(1.0, left, step / WARM_UP_STEPS))


class Trainer:
    """One training; `run` is called in every process, with the state of all of them shared."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        args.work.mkdir(parents=True, exist_ok=True)
        self.training, _ = texts.read(SEED)
        tokenizer = vocabulary.learn(
            [d.text for documents in self.training.values() for d in documents],
            args.work / "tokenizer.json")
        self.batches = Batches(self.training, tokenizer, network.CONTEXT, SEED)
        self.model = network.build(SEED)
        self.state = SharedState(self.model, args.processes)
        self.step = self.tokens = self.windows = 0  # windows: seen of each domain
        self.cpu_seconds = 0.0
        self.checkpoint = args.work / "checkpoint.pt"
        if self.checkpoint.exists():
            saved = torch.load(self.checkpoint, weights_only=True)
            self.state.restore(saved)
            for name in ("step", "tokens", "windows", "cpu_seconds"):
                setattr(self, name, saved[name])
        context = torch.multiprocessing.get_context("fork")
        self.barrier = context.Barrier(args.processes)
        self.losses = torch.zeros(args.processes, 3).share_memory_()  # first, second domain, balance
        self.cpu = torch.zeros(args.processes, dtype=torch.float64).share_memory_()
        self.stopping = torch.zeros(1).share_memory_()

    def start(self) -> int:
        others = [torch.multiprocessing.get_context("fork").Process(target=self.run, args=(rank,))
                  for rank in range(1, self.args.processes)]
        for process in others:
            process.start()
        status = self.run(0)
        for process in others:
            process.join()
            status = status or process.exitcode
        return status

    def run(self, rank: int) -> int:
        interrupted = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, (lambda *_: interrupted.set()) if rank == 0 else signal.SIG_IGN)
        try:
            self._loop(rank, interrupted)
        except threading.BrokenBarrierError:
            print(f"process {rank}: another process failed", file=sys.stderr)
            return 1
        except BaseException:
            self.barrier.abort()
            raise
        return 0

    def _loop(self, rank: int, interrupted: threading.Event) -> None:
        args = self.args
        self.state.attach(self.model, rank)
        share = self.state.shares()[rank]
        stream = self.batches(args.batch, self.windows)
        earlier, wall, mean = self.cpu_seconds, time.monotonic(), None
        while self.tokens < args.tokens:
            each = args.batch // args.processes
            rows = torch.from_numpy(next(stream))[rank * each:(rank + 1) * each]
            self._gradients(rank, rows)
            self.barrier.wait()
            self.step += 1
            factor = rate_factor(self.tokens, args.tokens, self.step)
            for parameter in share:
                self.state.update(parameter, self.step, factor)
            self.tokens += args.batch * network.CONTEXT
            self.windows += args.batch // 2
            self.cpu[rank] = time.process_time()
            if rank == 0:
                self.stopping[0] = float(interrupted.is_set())
            self.barrier.wait()
            self.cpu_seconds = earlier + float(self.cpu.sum())
            stop = bool(self.stopping[0]) or self.cpu_seconds > MAX_CPU_SECONDS
            if rank == 0:
                losses = self.losses.mean(0)
                mean = losses.clone() if mean is None else mean.lerp_(losses, 0.1)
                if self.step % LOG_EVERY == 0:
                    self._log(mean, factor, args.batch * network.CONTEXT * LOG_EVERY
                              / (time.monotonic() - wall))
                    wall = time.monotonic()
                if stop or self.step % SAVE_EVERY == 0 or self.tokens >= args.tokens:
                    self._save()
            if stop:
                return

    def _gradients(self, rank: int, rows: torch.Tensor) -> None:
        self.state.gradients[rank].zero_()
        hidden = self.model.model(input_ids=rows[:, :-1], use_cache=False).last_hidden_state
        losses = [F.cross_entropy(self.model.lm_head(hidden[i]), rows[i, 1:])
                  for i in range(len(rows))]
        balance = network.balance_loss(self.model)
        (torch.stack(losses).mean() + BALANCE_WEIGHT * balance).backward()
        with torch.no_grad():
            self.losses[rank] = torch.stack(
                [torch.stack(losses[0::2]).mean(), torch.stack(losses[1::2]).mean(), balance])

    def _log(self, mean: torch.Tensor, factor: float, speed: float) -> None:
        names = list(self.training)
        line = (f"step {self.step} tokens {self.tokens} {names[0]} {mean[0]:.4f} "
                f"{names[1]} {mean[1]:.4f} balance {mean[2]:.3f} rate {factor:.3f} "
                f"cpu_s {self.cpu_seconds:.0f} tok_s {speed:.0f}")
        print(line, flush=True)
        with open(self.args.work / "train.log", "a") as file:
            file.write(line + "\n")

    def _save(self) -> None:
        partial = self.checkpoint.with_suffix(".partial")
        torch.save({**self.state.state(), "step": self.step, "tokens": self.tokens,
                    "windows": self.windows, "cpu_seconds": self.cpu_seconds}, partial)
        os.replace(partial, self.checkpoint)


def main() -> int:
    args = arguments()
    torch.set_num_threads(1)
    trainer = Trainer(args)
    parameters = trainer.state.weights.numel()
    words = ", ".join(f"{name} {sum(len(d.text) for d in documents):,} characters"
                      for name, documents in trainer.training.items())
    print(f"{parameters:,} parameters; {words}; seed {SEED}; at {trainer.tokens:,} of "
          f"{args.tokens:,} tokens", flush=True)
    return trainer.start()


if __name__ == "__main__":
    sys.exit(main())
