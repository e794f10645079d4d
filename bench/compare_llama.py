#!/usr/bin/env python3
"""Runs llama-bench and `expert-split bench` in turn on one model and prints the ratios.

  scripts/build
  scripts/env python3 bench/compare_llama.py

The model is made once and kept: 8 layers of the 35B-A3B shape with a vocabulary of 32768, written
as F16 (14 GB, deleted afterwards) and brought to Q4_K_M (about 4 GB) by llama-quantize, so that
both programs see the mix of types that people run. llama-bench runs with its defaults but for the
number of threads and -ngl 0, expert-split with --targets cpu. Each pair runs the two programs one
after the other, in alternating order; the ratio of a pair is ours divided by llama.cpp's, and what
counts is the median over pairs. A bandwidth probe runs before each pair. The script warns when the
machine is not idle; such numbers mean nothing.
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
SHAPES = {
    "bench": (["--preset", "35b-a3b", "--layers", "8", "--vocab", "32768", "--type", "F16"], 20e9),
    "small": (["--preset", "35b-a3b", "--layers", "4", "--experts", "8", "--vocab", "1024",
               "--type", "F16"], 2e9),
}
# A pair whose probe falls below this part of the best one ran on a machine that was busy, or whose
# threads shared a core.
SLOW_PROBE = 0.8


class Failure(Exception):
    """One line for the user."""


def run(command: list[str]) -> str:
    # With a software Vulkan device visible llama.cpp would send large batches there.
    environment = {k: v for k, v in os.environ.items() if k != "GGML_VK_VISIBLE_DEVICES"}
    try:
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, check=False)
    except OSError as error:
        raise Failure(f"{command[0]}: {error.strerror}; run this through scripts/env, after "
                      "scripts/build") from None
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise Failure(f"{' '.join(command)}: exit status {done.returncode}: {lines[-1]}")
    return done.stdout


def make_model(path: pathlib.Path, shape: str) -> None:
    options, need = SHAPES[shape]
    path.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(path.parent).free
    if free < need:
        raise Failure(f"{path.parent}: {free / 1e9:.0f} GB free, making the model takes "
                      f"{need / 1e9:.0f}; give another folder with --model")
    f16 = path.with_suffix(".f16.gguf")
    partial = path.with_suffix(".partial.gguf")
    try:
        say(f"making {path} (some minutes)")
        run([sys.executable, "-B", str(REPOSITORY / "tools/make_model.py"), *options, "--out",
             str(f16)])
        run(["llama-quantize", str(f16), str(partial), "Q4_K_M", str(os.cpu_count())])
        partial.rename(path)
    finally:
        f16.unlink(missing_ok=True)
        partial.unlink(missing_ok=True)


def probe(arguments: argparse.Namespace) -> float:
    return json.loads(run([str(arguments.bin / "membw"), str(arguments.threads)]))["median_gb_s"]


def measure_llama(arguments: argparse.Namespace) -> tuple[float, float]:
    rows = json.loads(run(["llama-bench", "-m", str(arguments.model), "-ngl", "0", "-t",
                           str(arguments.threads), "-p", str(arguments.prompt), "-n",
                           str(arguments.generate), "-r", str(arguments.repeats), "-o", "json"]))
    speeds = {"prompt": 0.0, "generate": 0.0}
    for row in rows:
        speeds["prompt" if row["n_prompt"] else "generate"] = statistics.median(row["samples_ts"])
    return speeds["prompt"], speeds["generate"]


def measure_ours(arguments: argparse.Namespace) -> tuple[float, float]:
    result = json.loads(run([str(arguments.bin / "expert-split"), "bench", "--model",
                             str(arguments.model), "--targets", "cpu", "--threads",
                             str(arguments.threads), "-p", str(arguments.prompt), "-n",
                             str(arguments.generate), "-r", str(arguments.repeats), "--json"]))
    return result["prompt_tok_s"]["median"], result["decode_tok_s"]["median"]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def report(pairs: list[dict], arguments: argparse.Namespace, busy: bool) -> None:
    print(f"{'':14}{'llama.cpp':>12}{'ours':>12}{'ratio':>8}   tokens/s, medians of "
          f"{len(pairs)} pairs")
    for index, name in ((0, f"prompt {arguments.prompt}"), (1, f"generate {arguments.generate}")):
        llama = [pair["llama"][index] for pair in pairs]
        ours = [pair["ours"][index] for pair in pairs]
        ratios = [b / a for a, b in zip(llama, ours)]
        print(f"{name:14}{statistics.median(llama):12.2f}{statistics.median(ours):12.2f}"
              f"{statistics.median(ratios):8.3f}   ({min(ratios):.3f} to {max(ratios):.3f})")
    probes = [pair["probe"] for pair in pairs]
    print(f"read bandwidth {min(probes):.1f} to {max(probes):.1f} GB/s, {arguments.threads} threads, "
          "random 288 KB blocks")
    slow = sum(1 for value in probes if value < SLOW_PROBE * max(probes))
    if slow:
        print(f"WARNING: in {slow} of {len(pairs)} pairs the bandwidth was below "
              f"{SLOW_PROBE:.0%} of the best; measure again")
    if busy:
        print("WARNING: the machine was not idle; these numbers mean nothing")


def is_busy() -> bool:
    return os.getloadavg()[0] > 0.5


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, metavar="FILE.gguf",
                        help="made when it is absent (default: build/bench/SHAPE-Q4_K_M.gguf)")
    parser.add_argument("--shape", choices=SHAPES, default="bench",
                        help="what to make: bench, or small to try the script")
    parser.add_argument("--bin", type=pathlib.Path, default=REPOSITORY / "build/release/bin",
                        help="where expert-split and membw are (default: build/release/bin)")
    parser.add_argument("--pairs", type=int, default=5, metavar="N", help="default 5")
    parser.add_argument("-r", dest="repeats", type=int, default=3, metavar="N",
                        help="samples of each program in a pair (default 3)")
    parser.add_argument("-p", dest="prompt", type=int, default=512, metavar="N")
    parser.add_argument("-n", dest="generate", type=int, default=64, metavar="N")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), metavar="N",
                        help="default: one a core")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="also write every pair")
    arguments = parser.parse_args()
    if min(arguments.pairs, arguments.repeats, arguments.prompt, arguments.generate,
           arguments.threads) < 1:
        parser.error("--pairs, -r, -p, -n and --threads: at least 1")
    if arguments.model is None:
        arguments.model = REPOSITORY / f"build/bench/{arguments.shape}-Q4_K_M.gguf"
    return arguments


def main() -> int:
    arguments = options()
    try:
        # What made the model is no foreign load, what ran before it is.
        busy = is_busy()
        if busy:
            say(f"warning: load average {os.getloadavg()[0]:.2f}: the machine is not idle")
        if not arguments.model.exists():
            make_model(arguments.model, arguments.shape)
        pairs = []
        for index in range(arguments.pairs):
            pair = {"probe": probe(arguments)}
            order = [("llama", measure_llama), ("ours", measure_ours)]
            for name, measure in order if index % 2 == 0 else reversed(order):
                pair[name] = measure(arguments)
            pairs.append(pair)
            say(f"pair {index + 1} of {arguments.pairs}: {json.dumps(pair)}")
    except Failure as failure:
        say(f"compare_llama.py: {failure}")
        return 1
    except KeyboardInterrupt:
        return 130
    report(pairs, arguments, busy)
    if arguments.json:
        arguments.json.write_text(json.dumps({"busy": busy, "pairs": pairs}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
