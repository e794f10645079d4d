"""Tests of tools/make_model.py: what it writes is read back with gguf-py."""

import hashlib
import os
import sys
import tempfile
import unittest

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

TOOLS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tools")
sys.path.insert(0, TOOLS)
import make_model  # noqa: E402
import random_tensor  # noqa: E402

SMALL = ["--layers", "2", "--interval", "2", "--experts", "4"]


def digest(path):
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


class MakeModel(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def make(self, *args, name="m.gguf"):
        return make_model.run([*args, "--out", os.path.join(self.folder.name, name)])

    def read(self, *args, name="m.gguf"):
        return gguf.GGUFReader(self.make(*args, name=name)[0])

    def shapes(self, reader):
        return {tensor.name: [int(n) for n in tensor.shape] for tensor in reader.tensors}

    def test_tiny_has_the_keys_and_shapes_of_the_architecture(self):
        reader = self.read()
        value = {key: field.contents() for key, field in reader.fields.items()}
        self.assertEqual(value["general.architecture"], "qwen35moe")
        self.assertEqual(value["qwen35moe.block_count"], 4)
        self.assertEqual(value["qwen35moe.rope.dimension_sections"], [3, 3, 2, 0])
        self.assertEqual(len(value["tokenizer.ggml.tokens"]), 272)
        shapes = self.shapes(reader)
        self.assertEqual(shapes["token_embd.weight"], [256, 272])
        self.assertEqual(shapes["blk.0.ffn_gate_exps.weight"], [256, 256, 8])
        self.assertEqual(shapes["blk.0.attn_qkv.weight"], [256, 512])
        self.assertEqual(shapes["blk.3.attn_q.weight"], [256, 512])
        self.assertIn("blk.2.ssm_out.weight", shapes)
        self.assertNotIn("blk.3.ssm_out.weight", shapes)

    def test_variants_add_and_remove_tensors(self):
        shapes = self.shapes(self.read(*SMALL, "--fused", "--tied", "--biases", "--scales",
                                       "--nextn", "1", "--ff", "128"))
        self.assertEqual(shapes["blk.0.ffn_gate_up_exps.weight"], [256, 256, 4])
        self.assertNotIn("blk.0.ffn_up_exps.weight", shapes)
        self.assertNotIn("output.weight", shapes)
        self.assertEqual(shapes["blk.1.attn_q.bias"], [512])
        self.assertEqual(shapes["blk.0.ffn_down_exps.scale"], [4])
        self.assertEqual(shapes["blk.0.ssm_out.input_scale"], [1])
        self.assertEqual(shapes["blk.2.nextn.eh_proj.weight"], [512, 256])

    def test_same_seed_gives_the_same_bytes_and_another_seed_does_not(self):
        one = digest(self.make(*SMALL, "--seed", "7", name="a.gguf")[0])
        self.assertEqual(one, digest(self.make(*SMALL, "--seed", "7", name="b.gguf")[0]))
        self.assertNotEqual(one, digest(self.make(*SMALL, "--seed", "8", name="c.gguf")[0]))

    def test_a_sparse_file_has_full_size_and_takes_no_space(self):
        path = self.make("--preset", "397b-a17b", "--sparse", "--vocab", "272")[0]
        self.assertGreater(os.path.getsize(path), 100e9)
        self.assertLess(os.stat(path).st_blocks * 512, 16e6)
        shapes = self.shapes(gguf.GGUFReader(path))
        self.assertEqual(shapes["blk.59.ffn_down_exps.weight"], [1024, 4096, 512])

    def test_sparse_and_full_files_have_the_same_size(self):
        full, sparse = self.make(*SMALL, name="a.gguf")[0], self.make(*SMALL, "--sparse")[0]
        self.assertEqual(os.path.getsize(full), os.path.getsize(sparse))

    def test_weights_of_every_type_have_the_wanted_deviation(self):
        for name, kind in random_tensor.KNOWN.items():
            raw = b"".join(random_tensor.stream(kind, 64, 1024, 3, "w", 0.03))
            self.assertEqual(len(raw), 64 * random_tensor.row_bytes(kind, 1024), name)
            array = np.frombuffer(raw, {Type.F32: np.float32, Type.F16: np.float16}.get(kind, np.uint8))
            values = (array if kind in (Type.F32, Type.F16) else
                      random_tensor.decode(array.reshape(64, -1), kind)).astype(np.float64)
            self.assertTrue(np.isfinite(values).all(), name)
            # Ternary types have the block's maximum as their only step.
            low, high = (0.5, 2.0) if name in ("TQ1_0", "TQ2_0") else (0.85, 1.15)
            self.assertGreater(values.std(), low * 0.03, name)
            self.assertLess(values.std(), high * 0.03, name)
            self.assertLess(abs(values.mean()), 0.1 * values.std(), name)

    def test_every_weight_type_of_ggml_is_known(self):
        # Q8_1 and Q8_K hold activations, the others no weights.
        others = {"Q8_1", "Q8_K", "I8", "I16", "I32", "I64", "F64"}
        self.assertEqual(set(random_tensor.KNOWN), {kind.name for kind in Type} - others)

    def test_help_names_the_presets(self):
        text = make_model._parser().format_help()
        self.assertIn("--preset", text)
        self.assertIn("tiny, 35b-a3b, 397b-a17b", " ".join(text.split()))

    def test_codes_of_one_and_two_bits_read_as_ggml_reads_them(self):
        one = np.array([[0, 0x3C, 0b00000101, *[0] * 15]], np.uint8)  # scale 1
        np.testing.assert_array_equal(random_tensor.decode(one, Type.Q1_0)[0, :4], [1, -1, 1, -1])
        two = np.array([[0, 0x40, 0b11100100, *[0] * 15]], np.uint8)  # scale 2
        np.testing.assert_array_equal(random_tensor.decode(two, Type.Q2_0)[0, :5],
                                      [-2, 0, 2, 4, -2])

    def test_dequantized_weights_are_what_the_quantised_ones_mean(self):
        for kind in ("Q8_0", "Q4_K", "IQ2_XXS"):
            args = [*SMALL, "--type", kind]
            packed = {t.name: t for t in self.read(*args, name="q.gguf").tensors}
            plain = {t.name: t for t in self.read(*args, "--dequantized", name="f.gguf").tensors}
            name = "blk.1.ffn_up_exps.weight"
            self.assertEqual(packed[name].tensor_type.name, kind)
            self.assertEqual(plain[name].tensor_type, Type.F32)
            np.testing.assert_array_equal(
                gguf.dequantize(packed[name].data, packed[name].tensor_type), plain[name].data)

    def test_shards_hold_every_tensor_once(self):
        paths = self.make(*SMALL, "--split", "3", name="s.gguf")
        self.assertEqual([os.path.basename(path) for path in paths],
                         [f"s-0000{i}-of-00003.gguf" for i in (1, 2, 3)])
        readers = [gguf.GGUFReader(path) for path in paths]
        names = [tensor.name for reader in readers for tensor in reader.tensors]
        self.assertEqual(names, list(self.shapes(self.read(*SMALL))))
        self.assertTrue(all(reader.tensors for reader in readers))
        self.assertEqual(readers[2].fields["split.no"].contents(), 2)
        self.assertEqual(readers[0].fields["split.tensors.count"].contents(), len(names))

    def test_skew_makes_a_router_bias_in_the_constant_channel(self):
        tensors = {t.name: t.data for t in self.read(*SMALL, "--skew", "1").tensors}
        self.assertTrue((tensors["token_embd.weight"][:, 0] == 3).all())
        bias = tensors["blk.0.ffn_gate_inp.weight"][:, 0]
        self.assertGreater(bias.max() - bias.min(), 0.2)

    def test_bad_arguments_are_one_line_and_leave_no_file(self):
        for args, text in ((["--preset", "huge"], "'huge': no such preset; known: tiny"), (["--type", "Q9"], "'Q9' is no"),
                           (["--layers", "0"], "--layers 0"), (["--layers", "x"], "--layers"),
                           (["--experts-used", "9"], "--experts-used 9"), (["--vocab", "9"], "259"),
                           (["--embd", "96", "--type", "Q4_K"], "rows of 96"),
                           (["--split", "9999"], "--split 9999"),
                           (["--skew", "1", "--embd-type", "Q4_K"], "--embd-type Q8_0")):
            with self.assertRaises(make_model.UsageError) as caught:
                self.make(*args)
            self.assertIn(text, str(caught.exception))
            self.assertNotIn("\n", str(caught.exception))
        self.assertEqual(os.listdir(self.folder.name), [])


if __name__ == "__main__":
    unittest.main()
