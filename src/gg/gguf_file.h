// A GGUF model file (or every shard of a split one), checked before anything relies on it.
//
// Every key, type, count, shape and extent is compared with the bytes that are really there, so
// that no other code (ggml included) meets a length, offset or type that the file does not back.
// The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little
// endian. Immutable after Open; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <expected>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/bytes.h"
#include "base/file.h"
#include "base/result.h"

namespace gg {

// "[256, 128]", in ggml order.
std::string FormatShape(std::span<const std::uint64_t> shape);

struct GgufTensor {
  std::string name;
  int type = 0;                      // a ggml_type that this ggml knows
  std::vector<std::uint64_t> shape;  // 1 to 4 dimensions, ggml order: shape[0] is contiguous
  std::size_t shard = 0;             // index of the file that holds it
  std::uint64_t offset = 0;          // of its first byte in that file
  base::Bytes bytes;                 // whole tensor; offset + bytes lies inside the file
};

class GgufFile {
 public:
  using Array = std::variant<std::vector<std::int64_t>, std::vector<double>, std::vector<bool>,
                             std::vector<std::string>>;
  using Value = std::variant<std::int64_t, std::uint64_t, double, bool, std::string, Array>;

  // Opens and maps `path`; with split.count > 1 (`path` must then be the first shard) also the
  // shards beside it. Errors: kCorruptModel, one line naming the file, the key or tensor and what
  // is wrong: missing, not GGUF, unknown version, cut off, a length or count beyond the file, a
  // duplicate key or tensor, an unknown type, a shape that its type's block size does not divide,
  // an offset that is misaligned or reaches beyond the end, overlapping tensors, a shard missing or
  // not of this model.
  static base::Result<GgufFile> Open(const std::string& path);

  // Checks one file's bytes without mapping anything; what the fuzzer calls. Tensor offsets are
  // checked against `bytes`; split models are refused. Errors as Open.
  static base::Result<GgufFile> Parse(std::span<const std::byte> bytes, std::string name);

  // Typed access to metadata. Errors: kCorruptModel naming file and key when it is absent or of
  // another type (integer widths and signs convert when the value fits).
  base::Result<std::string> String(std::string_view key) const;
  base::Result<std::uint32_t> Uint32(std::string_view key) const;
  base::Result<float> Float(std::string_view key) const;
  base::Result<bool> Bool(std::string_view key) const;
  base::Result<std::vector<std::int64_t>> IntArray(std::string_view key) const;
  bool Has(std::string_view key) const { return values_.contains(key); }
  const std::map<std::string, Value, std::less<>>& metadata() const { return values_; }

  // Nullptr when absent.
  const GgufTensor* FindTensor(std::string_view name) const;
  // In file order, shard after shard.
  std::span<const GgufTensor> tensors() const { return tensors_; }

  // The tensor's bytes in the mapping. Precondition: opened by Open; `tensor` is one of tensors().
  std::span<const std::byte> Data(const GgufTensor& tensor) const;
  std::span<const base::MappedFile> shards() const { return shards_; }
  const std::string& name() const { return name_; }

  // FNV-1a (64 bit) over every tensor's name, type and shape in file order.
  std::uint64_t DirectoryHash() const;
  // The same over names and shapes alone, sorted by name: equal for every quantisation of a model.
  std::uint64_t ShapeHash() const;

 private:
  GgufFile() = default;

  base::Result<void> AddTensors(std::vector<GgufTensor> tensors);
  base::Result<const Value*> Find(std::string_view key) const;
  std::unexpected<base::Error> WrongType(std::string_view key, std::string_view expected) const;

  std::string name_;
  std::map<std::string, Value, std::less<>> values_;
  std::vector<GgufTensor> tensors_;
  std::map<std::string, std::size_t, std::less<>> tensor_index_;
  std::vector<base::MappedFile> shards_;
};

}  // namespace gg
