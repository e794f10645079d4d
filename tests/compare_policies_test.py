"""Tests of tools/compare_policies.py: the built program's comparison as a table and a plot.

    compare_policies_test.py PROGRAM MODEL
"""

import os
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

TOOL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tools",
                    "compare_policies.py")
PROGRAM, MODEL = sys.argv[1:3]


def run(*more):
    return subprocess.run(
        [sys.executable, "-B", TOOL, "--program", PROGRAM, "--model", MODEL, "--targets",
         "cuda:0,cpu", "--assume", "cuda:0=900GB/s@24GiB,cpu=50GB/s", *more],
        capture_output=True, text=True, check=False, env={**os.environ, "GGML_VK_VISIBLE_DEVICES": ""})


class ComparePolicies(unittest.TestCase):
    def test_a_row_a_size_and_a_bar_a_policy(self):
        with tempfile.TemporaryDirectory() as folder:
            svg = os.path.join(folder, "plot.svg")
            done = run("--percent", "25", "50", "--svg", svg)
            self.assertEqual(done.returncode, 0, done.stderr)
            lines = done.stdout.splitlines()
            self.assertEqual(len(lines), 4)
            self.assertIn("layers: share on cuda:0", lines[0])
            # Without a profile a quarter of the bytes is a quarter of the traffic.
            self.assertTrue(lines[2].startswith("| 25 % | 25.0 % |"), lines[2])
            self.assertTrue(lines[3].startswith("| 50 % | 50.0 % |"), lines[3])
            root = xml.etree.ElementTree.parse(svg).getroot()
            rectangles = [e for e in root if e.tag.endswith("rect")]
            # Background, six bars, three of the legend.
            self.assertEqual(len(rectangles), 10)

    def test_what_the_program_refuses_is_shown(self):
        done = run("--profile", "/nonexistent/p.json")
        self.assertEqual(done.returncode, 1)
        self.assertIn("/nonexistent/p.json", done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
