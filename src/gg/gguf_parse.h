// One GGUF file's header, turned into values; the part of gg/gguf_file.h that meets raw bytes.
//
// Any thread. Only gguf_file.cc calls this; everybody else asks GgufFile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "gg/gguf_file.h"

namespace gg {

// A header may not be longer: real ones (vocabulary and merges included) stay below 32 MiB, and a
// bound keeps the memory that a hostile one can ask for finite.
inline constexpr std::uint64_t kMaxGgufHeaderBytes = std::uint64_t{256} << 20;
// Dimensions of a tensor, and bytes of its name with the terminating NUL, that ggml has room for.
inline constexpr std::uint32_t kMaxGgufDimensions = 4;
inline constexpr std::size_t kMaxGgufNameBytes = 64;

struct GgufContents {
  std::map<std::string, GgufFile::Value, std::less<>> values;
  std::vector<GgufTensor> tensors;  // in file order, shard 0; extents lie inside the bytes
};

// Reads header, metadata and tensor directory of `bytes`; `name` is for messages only. Touches
// nothing behind the directory. Errors: kCorruptModel, as listed at GgufFile::Open.
base::Result<GgufContents> ParseGguf(std::span<const std::byte> bytes, const std::string& name);

}  // namespace gg
