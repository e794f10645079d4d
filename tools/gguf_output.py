"""Writes GGUF version 3 files: the header at once, tensor data as a stream, atomically.

The format is https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, little endian. A file
appears under its final name only when it is whole: it is written beside it under a temporary name
and renamed. A sparse file has the header and, for the data, a hole of the right length: it reads
as zeros and takes no disk space.
"""

import os
import struct
from dataclasses import dataclass
from typing import Callable, Iterable, Iterator

ALIGNMENT = 32
_VERSION = 3

# Value types of the format; a metadata value is (type, value), an array (ARRAY, (type, list)).
UINT16, UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY = 2, 4, 5, 6, 7, 8, 9
_PACK = {UINT16: "<H", UINT32: "<I", INT32: "<i", FLOAT32: "<f", BOOL: "<?"}


@dataclass
class TensorEntry:
    name: str
    shape: tuple[int, ...]  # ggml order: shape[0] is contiguous
    type_id: int
    size: int  # bytes
    data: Callable[[], Iterator[bytes]]  # called once, when it is the tensor's turn


def _string(text: str) -> bytes:
    raw = text.encode("utf-8")
    return struct.pack("<Q", len(raw)) + raw


def _value(kind: int, value) -> bytes:
    if kind == STRING:
        return _string(value)
    if kind == ARRAY:
        item_kind, items = value
        head = struct.pack("<IQ", item_kind, len(items))
        if item_kind == STRING:
            return head + b"".join(map(_string, items))
        return head + struct.pack(f"<{len(items)}{_PACK[item_kind][1]}", *items)
    return struct.pack(_PACK[kind], value)


def _padding(size: int) -> int:
    return -size % ALIGNMENT


def _write_one(path: str, metadata: dict, tensors: list[TensorEntry], sparse: bool) -> None:
    header = [b"GGUF", struct.pack("<IQQ", _VERSION, len(tensors), len(metadata))]
    for key, (kind, value) in metadata.items():
        header += [_string(key), struct.pack("<I", kind), _value(kind, value)]
    offset = 0
    for tensor in tensors:
        header.append(_string(tensor.name))
        header.append(struct.pack(f"<I{len(tensor.shape)}QIQ", len(tensor.shape), *tensor.shape,
                                  tensor.type_id, offset))
        offset += tensor.size + _padding(tensor.size)
    head = b"".join(header)
    head += bytes(_padding(len(head)))

    partial = f"{path}.{os.getpid()}.partial"
    try:
        with open(partial, "wb") as file:
            file.write(head)
            if sparse:
                file.truncate(len(head) + offset)
            else:
                for tensor in tensors:
                    written = 0
                    for chunk in tensor.data():
                        file.write(chunk)
                        written += len(chunk)
                    if written != tensor.size:
                        raise AssertionError(f"{tensor.name}: {written} bytes, not {tensor.size}")
                    file.write(bytes(_padding(written)))
        os.replace(partial, path)
    finally:
        if os.path.exists(partial):
            os.unlink(partial)


def shard_path(path: str, index: int, count: int) -> str:
    """PATH.gguf -> PATH-00001-of-00003.gguf, as llama.cpp names shards (index from 0)."""
    return f"{path.removesuffix('.gguf')}-{index + 1:05d}-of-{count:05d}.gguf"


def write(path: str, metadata: dict, tensors: Iterable[TensorEntry], shards: int = 1,
          sparse: bool = False) -> list[str]:
    """Writes one file, or `shards` files of about equal size, and returns their paths.

    The first shard carries all metadata, the others only the split.* keys.
    """
    tensors = list(tensors)
    if shards == 1:
        _write_one(path, metadata, tensors, sparse)
        return [path]
    total = sum(tensor.size for tensor in tensors)
    groups: list[list[TensorEntry]] = [[] for _ in range(shards)]
    done = 0
    for position, tensor in enumerate(tensors):
        # A shard is never empty, whatever the sizes.
        earliest = max(0, shards - (len(tensors) - position))
        groups[max(earliest, min(shards - 1, done * shards // max(total, 1)))].append(tensor)
        done += tensor.size
    paths = []
    for index, group in enumerate(groups):
        split = {"split.no": (UINT16, index), "split.count": (UINT16, shards),
                 "split.tensors.count": (INT32, len(tensors))}
        paths.append(shard_path(path, index, shards))
        _write_one(paths[-1], {**metadata, **split} if index == 0 else split, group, sparse)
    return paths
