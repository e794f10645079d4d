// Builds GGUF files for tests, byte by byte: good ones, and ones that are wrong in a chosen place.
//
//   std::string file = GgufBytes()
//                          .Text("general.architecture", "fakemoe")
//                          .Number("fakemoe.block_count", 2)
//                          .Tensor("token_embd.weight", GGML_TYPE_F32, {8, 16})
//                          .Build();
//
// Tensors lie in the order they were added, each at the next multiple of the alignment, and hold
// zeros unless data is given. Nothing is checked: that is the reader's business.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace test_support {

class GgufBytes {
 public:
  // The format's numbers for value types.
  enum Type : std::uint32_t {
    kU8,
    kI8,
    kU16,
    kI16,
    kU32,
    kI32,
    kF32,
    kBool,
    kString,
    kArray,
    kU64,
    kI64,
    kF64
  };

  GgufBytes& Text(std::string_view key, std::string_view value);
  GgufBytes& Number(std::string_view key, std::uint32_t value);  // kU32
  GgufBytes& Real(std::string_view key, float value);            // kF32
  GgufBytes& Flag(std::string_view key, bool value);
  GgufBytes& Numbers(std::string_view key, const std::vector<std::int32_t>& values);
  GgufBytes& Texts(std::string_view key, const std::vector<std::string>& values);
  // A key of any type with its value's bytes as they shall stand in the file.
  GgufBytes& RawKey(std::string_view key, std::uint32_t type, std::string_view value);

  // `data` shorter than the tensor is followed by zeros.
  GgufBytes& Tensor(std::string_view name, int type, const std::vector<std::uint64_t>& shape,
                    std::string_view data = {});
  // Takes a tensor out again; true when it was there.
  bool DropTensor(std::string_view name);

  // What shall be wrong, or other than usual.
  GgufBytes& Version(std::uint32_t version);
  GgufBytes& Alignment(std::uint64_t alignment);  // of the layout; the key is not written
  GgufBytes& KeyCount(std::uint64_t count);
  GgufBytes& TensorCount(std::uint64_t count);
  GgufBytes& TensorOffset(std::string_view name, std::uint64_t offset);  // in the data section

  std::string Build() const;
  // Header and directory alone; a sparse file of `file_size` bytes makes it whole.
  std::string BuildHeader() const;
  // Bytes of the whole file.
  std::uint64_t file_size() const;

 private:
  struct TensorEntry {
    std::string name;
    int type = 0;
    std::vector<std::uint64_t> shape;
    std::string data;
    std::optional<std::uint64_t> offset;  // instead of the next free one
  };

  std::uint64_t Align(std::uint64_t position) const;

  std::uint32_t version_ = 3;
  std::uint64_t alignment_ = 32;
  std::uint64_t num_keys_ = 0;
  std::optional<std::uint64_t> key_count_;
  std::optional<std::uint64_t> tensor_count_;
  std::string keys_;
  std::vector<TensorEntry> tensors_;
};

// `value`'s bytes in the file's order.
template <class T>
std::string Raw(T value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
}
// A string as it stands in a file: its length, then its bytes.
std::string RawText(std::string_view text);

// `content` as the parser takes it; valid while `content` lives.
inline std::span<const std::byte> AsBytes(std::string_view content) {
  return std::as_bytes(std::span(content.data(), content.size()));
}

}  // namespace test_support
