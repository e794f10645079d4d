"""Random weights of a wanted standard deviation in any ggml weight type.

F32, F16, BF16 hold the drawn values; types that gguf-py can quantise hold them quantised. For the
others (K-quants, IQ types, NVFP4, Q1_0, Q2_0) no quantiser is at hand, so their blocks are drawn as random
bits with the scale fields set such that the *dequantised* weights have the wanted deviation and a
mean of about zero.
"""

import functools
import hashlib
from typing import Callable, Iterator

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

_FLOATS = (Type.F32, Type.F16, Type.BF16)
_QUANTISED = (Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.Q8_0, Type.TQ1_0, Type.TQ2_0,
              Type.MXFP4)
# Byte offset of the fp16 scale inside a block; None: the type keeps its scale otherwise.
_SCALE_OFFSET = {
    Type.Q2_K: 80, Type.Q3_K: 108, Type.Q4_K: 0, Type.Q5_K: 0, Type.Q6_K: 208, Type.IQ2_XXS: 0,
    Type.IQ2_XS: 0, Type.IQ2_S: 0, Type.IQ3_XXS: 0, Type.IQ3_S: 0, Type.IQ1_S: 0, Type.IQ4_NL: 0,
    Type.IQ4_XS: 0, Type.IQ1_M: None, Type.NVFP4: None, Type.Q1_0: 0, Type.Q2_0: 0,
}
# Types with a minimum: minimum scale over scale that centres the values, and the minimum's offset.
_CENTRE = {Type.Q2_K: (1.5, 82), Type.Q4_K: (7.5, 2), Type.Q5_K: (15.5, 2)}
# Bits of a code, the value of code 0 and the distance between codes, in units of the scale.
_CODE_BITS = {Type.Q1_0: (1, -1, 2), Type.Q2_0: (2, -1, 1)}
_E4M3 = np.array([m / 8 * 2.0**-6 if e == 0 else (1 + m / 8) * 2.0 ** (e - 7)
                  for e in range(16) for m in range(8)][:-1])
_CHUNK = 1 << 22  # elements encoded at a time

KNOWN = {kind.name: kind for kind in (*_FLOATS, *_QUANTISED, *_SCALE_OFFSET)}


def holds_values(kind: Type) -> bool:
    """Whether a tensor of this type holds the values asked for, not just values like them."""
    return kind not in _SCALE_OFFSET


def row_bytes(kind: Type, elements: int) -> int:
    block, size = gguf.GGML_QUANT_SIZES[kind]
    return elements // block * size


def generator(seed: int, *path) -> np.random.Generator:
    """A stream of its own for every tensor and expert, so that none depends on the others."""
    digest = hashlib.sha256(":".join(map(str, (seed, *path))).encode()).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest[:16], "little")))


def _same_scale_and_min(blocks: np.ndarray, kind: Type) -> None:
    # Sub-block minima equal to the sub-block scales, scales in the upper half of their range.
    if kind == Type.Q2_K:
        scale = (blocks[:, :16] & 0x0F) | 0x08
        blocks[:, :16] = scale | (scale << 4)
        return
    low, high = blocks[:, 4:8] | 0x20, blocks[:, 12:16] & 0x0F
    blocks[:, 4:8] = low | 0x80  # upper two bits: the top of scales 4 to 7
    blocks[:, 8:12] = blocks[:, 4:8]
    blocks[:, 12:16] = high | (high << 4)


def _random_blocks(rng: np.random.Generator, kind: Type, count: int, scale: float) -> np.ndarray:
    size = gguf.GGML_QUANT_SIZES[kind][1]
    blocks = np.frombuffer(rng.bytes(count * size), np.uint8).reshape(count, size).copy()
    d = (scale * rng.uniform(0.75, 1.25, (count, 1)).astype(np.float32)).astype(np.float16)
    if kind in (Type.IQ4_NL, Type.Q2_0):  # their values do not add up to zero
        d *= rng.choice(np.array([-1, 1], np.float16), (count, 1))
    if kind == Type.IQ1_M:  # the fp16 scale lies in the top nibbles of four 16-bit words
        bits = d.view(np.uint16)
        for word in range(4):
            nibble = ((bits[:, 0] >> (4 * word)) & 0xF).astype(np.uint8)
            blocks[:, 49 + 2 * word] = (blocks[:, 49 + 2 * word] & 0x0F) | (nibble << 4)
        return blocks
    if kind == Type.NVFP4:  # four unsigned e4m3 scales; codes ascend with their values
        wanted = scale * rng.uniform(0.75, 1.25, (count, 4))
        blocks[:, :4] = np.searchsorted((_E4M3[1:] + _E4M3[:-1]) / 2, wanted)
        return blocks
    if kind in _CENTRE:
        _same_scale_and_min(blocks, kind)
        ratio, offset = _CENTRE[kind]
        minimum = (d.astype(np.float32) * ratio).astype(np.float16)
        blocks[:, offset:offset + 2] = minimum.view(np.uint8)
    offset = _SCALE_OFFSET[kind]
    blocks[:, offset:offset + 2] = d.view(np.uint8)
    return blocks


@functools.lru_cache(maxsize=None)
def _unit_deviation(kind: Type) -> float:
    """Deviation of the dequantised values of random blocks whose scale is 1."""
    blocks = _random_blocks(generator(0, "calibrate", kind.name), kind, 512, 1.0)
    return float(np.std(decode(blocks, kind), dtype=np.float64))


def _encode(values: np.ndarray, kind: Type) -> np.ndarray:
    if kind == Type.F32:
        return values
    if kind == Type.F16:
        return values.astype(np.float16)
    return gguf.quantize(values, kind)


def _decode_codes(raw: np.ndarray, kind: Type) -> np.ndarray:
    """gguf-py cannot: an fp16 scale, then codes, lowest bits first, each an equally spaced value."""
    bits, low, step = _CODE_BITS[kind]
    blocks = raw.reshape(-1, gguf.GGML_QUANT_SIZES[kind][1])
    scale = np.ascontiguousarray(blocks[:, :2]).view(np.float16).astype(np.float32)
    codes = blocks[:, 2:, None] >> np.arange(0, 8, bits, dtype=np.uint8) & ((1 << bits) - 1)
    values = (low + step * codes.astype(np.float32)).reshape(len(blocks), -1) * scale
    return values.reshape(*raw.shape[:-1], -1)


def decode(raw: np.ndarray, kind: Type) -> np.ndarray:
    if kind in _CODE_BITS:
        return _decode_codes(raw, kind)
    return gguf.dequantize(raw, kind).astype(np.float32)


def stream(kind: Type, rows: int, width: int, seed: int, name: str, deviation: float,
           mean: float = 0.0, patch: Callable[[np.ndarray, int], None] | None = None,
           dequantized: bool = False) -> Iterator[bytes]:
    """The bytes of [rows, width] random weights.

    `patch(values, first_row)` may change drawn values in place before they are encoded; only for
    types that hold values. With `dequantized` the bytes are F32: what the encoded weights mean.
    """
    rng = generator(seed, name)
    step = max(1, _CHUNK // width)
    for first in range(0, rows, step):
        count = min(step, rows - first)
        if holds_values(kind):
            values = rng.standard_normal((count, width), np.float32)
            values *= np.float32(deviation)
            values += np.float32(mean)
            if patch is not None:
                patch(values, first)
            encoded = _encode(values, kind)
        else:
            blocks = count * width // gguf.GGML_QUANT_SIZES[kind][0]
            encoded = _random_blocks(rng, kind, blocks, deviation / _unit_deviation(kind))
            encoded = encoded.reshape(count, -1)
        if dequantized and kind != Type.F32:
            encoded = decode(encoded, kind)
        yield np.ascontiguousarray(encoded).tobytes()
