#!/usr/bin/env python3
"""The include check: this tree passes, and each kind of breach is reported where it is."""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOOL = ROOT / "tools" / "check_includes.py"


def run(root):
    return subprocess.run([sys.executable, str(TOOL), str(root)], capture_output=True, text=True,
                          check=False)


class CheckIncludes(unittest.TestCase):
    def faults(self, files):
        """Exit status and "file:line" of each fault of a tree made of {path: text}."""
        with tempfile.TemporaryDirectory() as root:
            for path, text in files.items():
                file = Path(root) / path
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text, encoding="utf-8")
            result = run(root)
        lines = result.stdout.splitlines()
        return result.returncode, [":".join(line.split(":")[:2]) for line in lines]

    def assert_refused(self, path, include):
        text = f"#pragma once\n\n#include <vector>\n#include {include}\n"
        self.assertEqual(self.faults({path: text}), (1, [f"{path}:4"]), f"{path} {include}")

    def assert_accepted(self, path, include):
        self.assertEqual(self.faults({path: f"#include {include}\n"}), (0, []), f"{path} {include}")

    def test_this_tree_passes(self):
        result = run(ROOT)
        self.assertEqual((result.returncode, result.stdout, result.stderr), (0, "", ""))

    def test_an_include_down_the_order_passes(self):
        for path, include in [
                ("src/gg/a.h", '"base/file.h"'),
                ("src/moe/plan/a.h", '"moe/target/ids.h"'),
                ("src/moe/plan/a.cc", '"moe/plan/b.h"'),
                ("src/moe/profile/a.h", '"moe/plan/b.h"'),
                ("src/moe/materialize/a.h", '"gg/b.h"'),
                ("src/moe/compute/a.h", '"moe/ipc/b.h"'),
                ("src/model/fake/a.h", '"moe/compute/b.h"'),
                ("src/model/fake/a.h", '"model/text/b.h"'),
                ("src/engine/a.h", '"model/backend.h"'),
                ("src/server/http/a.h", '"server/openai/b.h"'),
                ("src/server/http/a.h", '"engine/b.h"'),
                ("src/cli/a.cc", '"model/fake/b.h"')]:
            self.assert_accepted(path, include)

    def test_an_include_up_the_order_is_refused(self):
        for path, include in [
                ("src/base/a.h", '"gg/b.h"'),
                ("src/gg/a.h", '"moe/target/b.h"'),
                ("src/moe/target/a.h", '"moe/plan/b.h"'),
                ("src/moe/plan/a.h", '"moe/runtime/b.h"'),
                ("src/moe/plan/a.h", '"gg/b.h"'),
                ("src/moe/runtime/a.h", '"moe/profile/b.h"'),
                ("src/moe/materialize/a.h", '"moe/compute/b.h"'),
                ("src/moe/ipc/a.h", '"gg/b.h"'),
                ("src/moe/compute/a.cc", '"model/backend.h"'),
                ("src/model/a.h", '"engine/b.h"'),
                ("src/model/a.h", '"model/fake/b.h"'),
                ("src/model/fake/a.h", '"model/other/b.h"'),
                ("src/engine/a.h", '"model/fake/b.h"'),
                ("src/engine/a.h", '"server/b.h"'),
                ("src/server/http/a.h", '"moe/plan/b.h"'),
                ("src/server/a.h", '"model/backend.h"'),
                ("src/server/a.h", '"cli/b.h"')]:
            self.assert_refused(path, include)

    def test_foreign_headers_stay_in_their_homes(self):
        for path in ["src/gg/a.h", "src/model/fake/a.cc", "src/moe/compute/a.cc"]:
            self.assert_accepted(path, "<ggml-backend.h>")
        for path in ["src/moe/plan/a.h", "src/moe/materialize/a.h", "src/engine/a.h",
                     "src/server/a.h", "src/cli/a.cc"]:
            self.assert_refused(path, "<ggml.h>")
            self.assert_refused(path, '"gguf.h"')
        self.assert_accepted("src/model/text/a.cc", "<llama.h>")
        self.assert_refused("src/model/fake/a.cc", "<llama.h>")
        self.assert_refused("src/engine/a.cc", "<llama-cpp.h>")
        self.assert_accepted("src/moe/materialize/a.cc", '"gg/gguf_file.h"')

    def test_a_path_that_is_not_whole_is_refused(self):
        self.assert_refused("src/base/a.cc", '"b.h"')
        self.assert_refused("src/base/a.cc", '"../base/b.h"')

    def test_licences_of_single_files(self):
        self.assert_accepted("src/model/registry.cc", '"model/fake/b.h"')
        self.assert_refused("src/model/registry.h", '"model/fake/b.h"')
        self.assert_refused("src/model/registry.cc", '"engine/b.h"')
        self.assert_accepted("src/model/a_test.cc", '"support/b.h"')
        self.assert_refused("src/model/a.cc", '"support/b.h"')

    def test_a_folder_outside_the_table_is_refused(self):
        self.assertEqual(self.faults({"src/extra/a.h": "int a;\n"}), (1, ["src/extra/a.h:1"]))

    def test_the_substrate_does_not_name_a_model_family(self):
        files = {"src/model/fake7b/a.h": "// Fake7b\n",
                 "src/moe/plan/b.h": "\n// as Fake7B has it\n"}
        self.assertEqual(self.faults(files), (1, ["src/moe/plan/b.h:2"]))

    def test_every_breach_is_reported(self):
        files = {"src/base/a.h": '#include "gg/b.h"\n  #  include "moe/plan/c.h"\n',
                 "src/gg/b.h": '#include "cli/c.h"\n'}
        self.assertEqual(self.faults(files),
                         (1, ["src/base/a.h:1", "src/base/a.h:2", "src/gg/b.h:1"]))

    def test_a_folder_without_src_is_a_usage_error(self):
        with tempfile.TemporaryDirectory() as root:
            self.assertEqual(run(root).returncode, 2)


if __name__ == "__main__":
    unittest.main()
