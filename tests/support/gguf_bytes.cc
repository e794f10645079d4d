#include "support/gguf_bytes.h"

#include <ggml.h>

#include <algorithm>

namespace test_support {
namespace {

std::uint64_t TensorBytes(int type, const std::vector<std::uint64_t>& shape) {
  if (type < 0 || type >= GGML_TYPE_COUNT) return 0;
  const auto block = ggml_blck_size(static_cast<ggml_type>(type));
  if (block <= 0) return 0;
  std::uint64_t elements = 1;
  for (const std::uint64_t width : shape) elements *= width;
  return elements / static_cast<std::uint64_t>(block) *
         ggml_type_size(static_cast<ggml_type>(type));
}

}  // namespace

std::string RawText(std::string_view text) {
  return Raw(std::uint64_t{text.size()}) + std::string(text);
}

GgufBytes& GgufBytes::RawKey(std::string_view key, std::uint32_t type, std::string_view value) {
  keys_ += RawText(key) + Raw(type) + std::string(value);
  ++num_keys_;
  return *this;
}

GgufBytes& GgufBytes::Text(std::string_view key, std::string_view value) {
  return RawKey(key, kString, RawText(value));
}

GgufBytes& GgufBytes::Number(std::string_view key, std::uint32_t value) {
  return RawKey(key, kU32, Raw(value));
}

GgufBytes& GgufBytes::Real(std::string_view key, float value) {
  return RawKey(key, kF32, Raw(value));
}

GgufBytes& GgufBytes::Flag(std::string_view key, bool value) {
  return RawKey(key, kBool, Raw(std::uint8_t{value}));
}

GgufBytes& GgufBytes::Numbers(std::string_view key, const std::vector<std::int32_t>& values) {
  std::string raw = Raw(std::uint32_t{kI32}) + Raw(std::uint64_t{values.size()});
  for (const std::int32_t value : values) raw += Raw(value);
  return RawKey(key, kArray, raw);
}

GgufBytes& GgufBytes::Texts(std::string_view key, const std::vector<std::string>& values) {
  std::string raw = Raw(std::uint32_t{kString}) + Raw(std::uint64_t{values.size()});
  for (const std::string& value : values) raw += RawText(value);
  return RawKey(key, kArray, raw);
}

GgufBytes& GgufBytes::Tensor(std::string_view name, int type,
                             const std::vector<std::uint64_t>& shape, std::string_view data) {
  tensors_.push_back({std::string(name), type, shape, std::string(data), std::nullopt});
  return *this;
}

bool GgufBytes::DropTensor(std::string_view name) {
  return std::erase_if(tensors_, [&](const TensorEntry& entry) { return entry.name == name; }) > 0;
}

GgufBytes& GgufBytes::Version(std::uint32_t version) {
  version_ = version;
  return *this;
}

GgufBytes& GgufBytes::Alignment(std::uint64_t alignment) {
  alignment_ = alignment;
  return *this;
}

GgufBytes& GgufBytes::KeyCount(std::uint64_t count) {
  key_count_ = count;
  return *this;
}

GgufBytes& GgufBytes::TensorCount(std::uint64_t count) {
  tensor_count_ = count;
  return *this;
}

GgufBytes& GgufBytes::TensorOffset(std::string_view name, std::uint64_t offset) {
  for (TensorEntry& entry : tensors_) {
    if (entry.name == name) entry.offset = offset;
  }
  return *this;
}

std::uint64_t GgufBytes::Align(std::uint64_t position) const {
  return (position + alignment_ - 1) / alignment_ * alignment_;
}

std::string GgufBytes::BuildHeader() const {
  std::string header = "GGUF" + Raw(version_) +
                       Raw(tensor_count_.value_or(std::uint64_t{tensors_.size()})) +
                       Raw(key_count_.value_or(num_keys_)) + keys_;
  std::uint64_t next = 0;
  for (const TensorEntry& entry : tensors_) {
    header += RawText(entry.name) + Raw(static_cast<std::uint32_t>(entry.shape.size()));
    for (const std::uint64_t width : entry.shape) header += Raw(width);
    header += Raw(static_cast<std::uint32_t>(entry.type)) + Raw(entry.offset.value_or(next));
    next = Align(next + TensorBytes(entry.type, entry.shape));
  }
  return header;
}

std::uint64_t GgufBytes::file_size() const {
  std::uint64_t size = Align(BuildHeader().size());
  for (const TensorEntry& entry : tensors_) {
    size = Align(size + TensorBytes(entry.type, entry.shape));
  }
  return size;
}

std::string GgufBytes::Build() const {
  std::string file = BuildHeader();
  file.resize(Align(file.size()));
  for (const TensorEntry& entry : tensors_) {
    const std::size_t begin = file.size();
    file += entry.data;
    file.resize(Align(begin + TensorBytes(entry.type, entry.shape)));
  }
  return file;
}

}  // namespace test_support
