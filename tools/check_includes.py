#!/usr/bin/env python3
"""Checks that includes under src/ go one way only.

    tools/check_includes.py [ROOT]        ROOT is the repository (default: the one this file is in)

A part is a folder of src/; ALLOWED says which other parts each may include. Foreign headers with
one home (ggml, llama.cpp) are in FOREIGN. Nothing under src/moe may name a model family either.
Each breach is one line, "file:line: what", and the exit status is then 1.
"""

import re
import sys
from pathlib import Path

SUBSTRATE = ["moe/target", "moe/plan", "moe/runtime", "moe/profile", "moe/materialize",
             "moe/ipc", "moe/compute", "moe/rebalance"]

# part: the other parts it may include. The longest part that a path lies in counts.
ALLOWED = {
    "base": [],
    "gg": ["base"],
    "kernels": ["base", "gg"],
    "moe/target": ["base"],
    "moe/plan": ["base", "moe/target"],
    "moe/runtime": ["base", "moe/target", "moe/plan"],
    "moe/profile": ["base", "moe/target", "moe/plan"],
    "moe/ipc": ["base", "moe/target", "moe/plan"],
    "moe/materialize": ["base", "gg", "moe/target", "moe/plan", "moe/runtime"],
    "moe/compute": ["base", "gg", "kernels", "moe/target", "moe/plan", "moe/runtime", "moe/materialize",
                    "moe/ipc"],
    "moe/rebalance": ["base", "moe/target", "moe/plan", "moe/profile", "moe/compute"],
    "model": ["base", "gg", *SUBSTRATE],           # the interface
    "model/text": ["base", "model"],
    "model/*": ["base", "gg", "kernels", *SUBSTRATE, "model", "model/text"],  # a family; never another one
    "engine": ["base", *SUBSTRATE, "model", "model/text"],         # never a concrete family
    "server": ["base", "engine", "model/text"],   # never the substrate or a concrete model
    "cli": ["base", "gg", *SUBSTRATE, "model", "model/text", "model/*", "engine", "server"],
}

# (what, pattern of the header's name, parts that may include it).
FOREIGN = [
    ("ggml", re.compile(r"^(ggml|gguf)([-_.].*)?\.h(pp)?$"), ["gg", "model", "model/*",
                                                             "moe/compute", "kernels"]),
    ("llama.cpp", re.compile(r"^(lib)?llama([-_.].*)?\.h(pp)?$"), ["model/text"]),
]

# The one file of the model interface that names the families, to choose among them.
REGISTRY = re.compile(r"^model/registry(_test)?\.cc$")
# What tests share lies in tests/support; only tests may include it.
TEST_SUPPORT = "support/"

SOURCES = {".h", ".cc", ".cpp", ".hpp", ".inc"}
INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]*)"|<([^>]*)>)')


def part_of(path):
    """The part that a path below src/ ("moe/plan/plan.h") lies in, or None."""
    folders = path.split("/")[:-1]
    for length in range(len(folders), 0, -1):
        part = "/".join(folders[:length])
        if part in ALLOWED and "*" not in part:
            if part == "model" and len(folders) > 1:
                return "/".join(folders[:2])
            return part
    return None


def rule_of(part):
    """The key of ALLOWED that a part falls under: its own, or that of the model families."""
    return part if part in ALLOWED else "model/*"


def fault_of(part, quoted, angled):
    """What is wrong with one include of a file of `part`; None when nothing is."""
    header = quoted if quoted is not None else angled
    name = header.rsplit("/", 1)[-1]
    for what, pattern, homes in FOREIGN:
        if pattern.match(name) and part_of(header) is None:
            if rule_of(part) in homes:
                return None
            return f"{part} may not include {header}: {what} is for {', '.join(homes)}"
    if quoted is None:
        return None
    included = part_of(header)
    if included is None:
        return f'"{header}" is not a path below src/; write it whole, or foreign headers as <...>'
    if included == part or rule_of(included) in ALLOWED[rule_of(part)]:
        return None
    return f"{part} may not include {header}: it may include {', '.join(ALLOWED[rule_of(part)]) or 'nothing else'}"


def excused(path, header):
    """Whether the file has a licence of its own for a header that its part may not include."""
    if header.startswith(TEST_SUPPORT):
        return path.endswith("_test.cc")
    return REGISTRY.match(path) is not None and part_of(header) not in (None, "engine", "server",
                                                                         "cli")


def check(root):
    """All breaches below root/src, as lines."""
    src = Path(root) / "src"
    families = [f.name for f in sorted((src / "model").glob("*")) if f.is_dir() and f.name != "text"]
    family = re.compile("|".join(map(re.escape, families)), re.IGNORECASE) if families else None
    faults = []
    for file in sorted(p for p in src.rglob("*") if p.suffix in SOURCES):
        path = file.relative_to(src).as_posix()
        part = part_of(path)
        if part is None:
            faults.append(f"src/{path}:1: the folder is not in the table of tools/check_includes.py")
            continue
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            include = INCLUDE.match(line)
            fault = fault_of(part, include[1], include[2]) if include else None
            if fault and excused(path, include[1] or ""):
                fault = None
            if fault:
                faults.append(f"src/{path}:{number}: {fault}")
            named = family.search(line) if family and path.startswith("moe/") else None
            if named:
                faults.append(f"src/{path}:{number}: the substrate may not name the model family "
                              f"{named[0]}")
    return faults


def main(arguments):
    if len(arguments) > 1:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    root = arguments[0] if arguments else Path(__file__).resolve().parent.parent
    if not (Path(root) / "src").is_dir():
        print(f"check_includes: no folder src in {root}", file=sys.stderr)
        return 2
    faults = check(root)
    for fault in faults:
        print(fault)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
