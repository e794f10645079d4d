#include "gg/gguf_parse.h"

#include <ggml.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <optional>
#include <set>
#include <string_view>
#include <type_traits>
#include <utility>

#include "base/quote.h"

namespace gg {
namespace {

using base::ErrorKind;
using base::Fail;
using base::Forward;
using base::Result;

static_assert(std::endian::native == std::endian::little, "GGUF is read in place");

// The format's value types.
enum class ValueType : std::uint32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12,
};

// What the smallest entry of each kind takes, to refuse counts that the file cannot hold.
constexpr std::uint64_t kMinKeyBytes = 8 + 1 + 4 + 1;
constexpr std::uint64_t kMinTensorBytes = 8 + 1 + 4 + 8 + 4 + 8;
constexpr std::size_t kMaxKeyBytes = 65535;

constexpr std::uint64_t kDefaultAlignment = 32;
constexpr std::uint64_t kMinAlignment = 8;
constexpr std::uint64_t kMaxAlignment = std::uint64_t{1} << 20;

class Parser {
 public:
  Parser(std::span<const std::byte> bytes, const std::string& name)
      : bytes_(bytes),
        header_(bytes.first(std::min<std::size_t>(bytes.size(), kMaxGgufHeaderBytes))),
        name_(name) {}

  Result<GgufContents> Run() {
    auto counts = ReadPreamble();
    if (!counts) return Forward(counts);
    for (std::uint64_t i = 0; i < counts->keys; ++i) {
      if (auto read = ReadKey(i); !read) return Forward(read);
    }
    if (auto read = ReadAlignment(); !read) return Forward(read);
    contents_.tensors.reserve(counts->tensors);
    for (std::uint64_t i = 0; i < counts->tensors; ++i) {
      if (auto read = ReadTensor(i); !read) return Forward(read);
    }
    if (auto placed = PlaceTensors(); !placed) return Forward(placed);
    return std::move(contents_);
  }

 private:
  struct Counts {
    std::uint64_t tensors = 0;
    std::uint64_t keys = 0;
  };

  template <class... Args>
  std::unexpected<base::Error> Corrupt(std::format_string<Args...> format, Args&&... args) const {
    return Fail(ErrorKind::kCorruptModel, "'{}': {}", name_,
                std::format(format, std::forward<Args>(args)...));
  }

  // What no tool writes.
  template <class... Args>
  std::unexpected<base::Error> Damaged(std::format_string<Args...> format, Args&&... args) const {
    return Corrupt("{}; the file is cut off or damaged: download or convert it again",
                   std::format(format, std::forward<Args>(args)...));
  }

  std::unexpected<base::Error> CutOff(std::string_view what) const {
    if (header_.size() < bytes_.size()) {
      return Damaged("the header reaches beyond {} while reading {}",
                     base::FormatBytes(base::Bytes(header_.size())), what);
    }
    return Corrupt("cut off: the file ends at byte {} while reading {}; download it again",
                   bytes_.size(), what);
  }

  std::uint64_t remaining() const { return header_.size() - position_; }

  template <class T>
  std::optional<T> Read() {
    static_assert(std::is_arithmetic_v<T>);
    if (remaining() < sizeof(T)) return std::nullopt;
    T value;
    std::memcpy(&value, header_.data() + position_, sizeof(T));
    position_ += sizeof(T);
    return value;
  }

  std::optional<std::string> ReadString() {
    const auto length = Read<std::uint64_t>();
    if (!length || *length > remaining()) return std::nullopt;
    std::string text(reinterpret_cast<const char*>(header_.data()) + position_, *length);
    position_ += *length;
    return text;
  }

  Result<Counts> ReadPreamble() {
    if (bytes_.empty()) return Corrupt("the file is empty; download it again");
    if (bytes_.size() < 4 || std::memcmp(bytes_.data(), "GGUF", 4) != 0) {
      return Corrupt("not a GGUF file (it does not start with 'GGUF'); give a .gguf model file");
    }
    position_ = 4;
    const auto version = Read<std::uint32_t>();
    if (!version) return CutOff("the version");
    if (*version == 0x02000000U || *version == 0x03000000U) {
      return Corrupt("a big-endian GGUF file; convert it with gguf-convert-endian");
    }
    if (*version != 2 && *version != 3) {
      return Corrupt("GGUF version {} is not supported (2 and 3 are); convert the model again",
                     *version);
    }
    const auto tensors = Read<std::uint64_t>();
    const auto keys = Read<std::uint64_t>();
    if (!tensors || !keys) return CutOff("the counts of tensors and keys");
    if (*keys > remaining() / kMinKeyBytes) {
      return Damaged("{} keys announced, more than its {} bytes can hold", *keys, bytes_.size());
    }
    if (*tensors > remaining() / kMinTensorBytes) {
      return Damaged("{} tensors announced, more than its {} bytes can hold", *tensors,
                     bytes_.size());
    }
    return Counts{*tensors, *keys};
  }

  // Names go into messages, maps and ggml's fixed C strings.
  static bool IsPlainName(std::string_view text) {
    return !text.empty() && std::ranges::all_of(text, [](char c) {
      return static_cast<unsigned char>(c) >= 0x20 && c != 0x7F;
    });
  }

  Result<void> ReadKey(std::uint64_t index) {
    auto key = ReadString();
    if (!key) return CutOff(std::format("the name of key {}", index));
    if (key->size() > kMaxKeyBytes || !IsPlainName(*key)) {
      return Damaged("key {} has no usable name: {}", index, base::Quote(*key));
    }
    const auto type = Read<std::uint32_t>();
    if (!type) return CutOff(std::format("the type of key {}", base::Quote(*key)));
    auto value = ReadValue(*key, static_cast<ValueType>(*type));
    if (!value) return Forward(value);
    const auto [place, inserted] = contents_.values.emplace(*std::move(key), *std::move(value));
    if (!inserted) return Damaged("key {} appears twice", base::Quote(place->first));
    return {};
  }

  template <class Stored, class Held>
  std::optional<GgufFile::Value> ReadAs() {
    const auto value = Read<Stored>();
    if (!value) return std::nullopt;
    return GgufFile::Value(std::in_place_type<Held>, static_cast<Held>(*value));
  }

  std::optional<GgufFile::Value> ReadNumber(ValueType type) {
    switch (type) {
      case ValueType::kUint8:
        return ReadAs<std::uint8_t, std::int64_t>();
      case ValueType::kInt8:
        return ReadAs<std::int8_t, std::int64_t>();
      case ValueType::kUint16:
        return ReadAs<std::uint16_t, std::int64_t>();
      case ValueType::kInt16:
        return ReadAs<std::int16_t, std::int64_t>();
      case ValueType::kUint32:
        return ReadAs<std::uint32_t, std::int64_t>();
      case ValueType::kInt32:
        return ReadAs<std::int32_t, std::int64_t>();
      case ValueType::kUint64:
        return ReadAs<std::uint64_t, std::uint64_t>();
      case ValueType::kInt64:
        return ReadAs<std::int64_t, std::int64_t>();
      case ValueType::kFloat32:
        return ReadAs<float, double>();
      case ValueType::kFloat64:
        return ReadAs<double, double>();
      default:
        return std::nullopt;
    }
  }

  Result<GgufFile::Value> ReadValue(const std::string& key, ValueType type) {
    if (type > ValueType::kFloat64) {
      return Damaged("key {} has unknown type {}", base::Quote(key), std::to_underlying(type));
    }
    if (type == ValueType::kArray) return ReadArray(key);
    std::optional<GgufFile::Value> value;
    if (type == ValueType::kString) {
      if (auto text = ReadString())
        value.emplace(std::in_place_type<std::string>, *std::move(text));
    } else if (type == ValueType::kBool) {
      if (const auto flag = Read<std::uint8_t>()) {
        if (*flag > 1) return Damaged("key {} is a flag of value {}", base::Quote(key), *flag);
        value.emplace(std::in_place_type<bool>, *flag == 1);
      }
    } else {
      value = ReadNumber(type);
    }
    if (!value) return CutOff(std::format("key {}", base::Quote(key)));
    return *std::move(value);
  }

  static std::uint64_t ElementBytes(ValueType type) {
    switch (type) {
      case ValueType::kUint8:
      case ValueType::kInt8:
      case ValueType::kBool:
        return 1;
      case ValueType::kUint16:
      case ValueType::kInt16:
        return 2;
      case ValueType::kUint32:
      case ValueType::kInt32:
      case ValueType::kFloat32:
        return 4;
      default:
        return 8;  // also a string's length field
    }
  }

  Result<GgufFile::Value> ReadArray(const std::string& key) {
    const auto type = Read<std::uint32_t>();
    const auto count = Read<std::uint64_t>();
    if (!type || !count) return CutOff(std::format("the array {}", base::Quote(key)));
    const auto element = static_cast<ValueType>(*type);
    if (element == ValueType::kArray) {
      return Damaged("key {} is an array of arrays, which no model needs", base::Quote(key));
    }
    if (element > ValueType::kFloat64) {
      return Damaged("key {} is an array of unknown type {}", base::Quote(key), *type);
    }
    if (*count > remaining() / ElementBytes(element)) {
      return Damaged("key {} announces {} elements, more than the file holds", base::Quote(key),
                     *count);
    }
    auto array = ReadElements(element, *count);
    if (!array) {
      return Damaged("key {} holds an element that is cut off or out of range", base::Quote(key));
    }
    return GgufFile::Value(std::in_place_type<GgufFile::Array>, *std::move(array));
  }

  // Nothing when an element is missing, a flag is neither 0 nor 1, or a number exceeds 63 bits.
  std::optional<GgufFile::Array> ReadElements(ValueType type, std::uint64_t count) {
    switch (type) {
      case ValueType::kUint8:
        return ReadNumbers<std::uint8_t, std::int64_t>(count);
      case ValueType::kInt8:
        return ReadNumbers<std::int8_t, std::int64_t>(count);
      case ValueType::kUint16:
        return ReadNumbers<std::uint16_t, std::int64_t>(count);
      case ValueType::kInt16:
        return ReadNumbers<std::int16_t, std::int64_t>(count);
      case ValueType::kUint32:
        return ReadNumbers<std::uint32_t, std::int64_t>(count);
      case ValueType::kInt32:
        return ReadNumbers<std::int32_t, std::int64_t>(count);
      case ValueType::kUint64:
        return ReadNumbers<std::uint64_t, std::int64_t>(count);
      case ValueType::kInt64:
        return ReadNumbers<std::int64_t, std::int64_t>(count);
      case ValueType::kFloat32:
        return ReadNumbers<float, double>(count);
      case ValueType::kFloat64:
        return ReadNumbers<double, double>(count);
      case ValueType::kBool:
        return ReadNumbers<std::uint8_t, bool>(count);
      case ValueType::kString:
        return ReadStrings(count);
      case ValueType::kArray:
        return std::nullopt;
    }
    return std::nullopt;
  }

  template <class Stored, class Held>
  std::optional<GgufFile::Array> ReadNumbers(std::uint64_t count) {
    std::vector<Held> elements;
    elements.reserve(count);
    for (std::uint64_t i = 0; i < count; ++i) {
      const auto value = Read<Stored>();
      if (!value) return std::nullopt;
      if constexpr (std::is_same_v<Held, bool>) {
        if (*value > 1) return std::nullopt;
        elements.push_back(*value == 1);
      } else {
        if constexpr (std::is_same_v<Stored, std::uint64_t>) {
          if (!std::in_range<Held>(*value)) return std::nullopt;
        }
        elements.push_back(static_cast<Held>(*value));
      }
    }
    return GgufFile::Array(std::move(elements));
  }

  std::optional<GgufFile::Array> ReadStrings(std::uint64_t count) {
    std::vector<std::string> elements;
    elements.reserve(count);
    for (std::uint64_t i = 0; i < count; ++i) {
      auto text = ReadString();
      if (!text) return std::nullopt;
      elements.push_back(*std::move(text));
    }
    return GgufFile::Array(std::move(elements));
  }

  Result<void> ReadAlignment() {
    const auto found = contents_.values.find("general.alignment");
    if (found == contents_.values.end()) return {};
    std::uint64_t alignment = 0;
    if (const auto* number = std::get_if<std::int64_t>(&found->second)) {
      alignment = *number > 0 ? static_cast<std::uint64_t>(*number) : 0;
    } else if (const auto* large = std::get_if<std::uint64_t>(&found->second)) {
      alignment = *large;
    }
    if (!std::has_single_bit(alignment) || alignment < kMinAlignment || alignment > kMaxAlignment) {
      return Damaged("general.alignment is not a power of two from {} to {}", kMinAlignment,
                     kMaxAlignment);
    }
    alignment_ = alignment;
    return {};
  }

  Result<void> ReadTensor(std::uint64_t index) {
    GgufTensor tensor;
    auto name = ReadString();
    if (!name) return CutOff(std::format("the name of tensor {}", index));
    if (name->size() >= kMaxGgufNameBytes || !IsPlainName(*name)) {
      return Damaged("tensor {} has no usable name: {}", index, base::Quote(*name));
    }
    tensor.name = *std::move(name);
    const auto dimensions = Read<std::uint32_t>();
    if (!dimensions) return CutOff(std::format("tensor {}", tensor.name));
    if (*dimensions < 1 || *dimensions > kMaxGgufDimensions) {
      return Damaged("tensor {} has {} dimensions, expected 1 to {}", tensor.name, *dimensions,
                     kMaxGgufDimensions);
    }
    for (std::uint32_t i = 0; i < *dimensions; ++i) {
      const auto width = Read<std::uint64_t>();
      if (!width) return CutOff(std::format("tensor {}", tensor.name));
      tensor.shape.push_back(*width);
    }
    const auto type = Read<std::uint32_t>();
    const auto offset = Read<std::uint64_t>();
    if (!type || !offset) return CutOff(std::format("tensor {}", tensor.name));
    tensor.offset = *offset;
    if (auto sized = SizeTensor(tensor, *type); !sized) return sized;
    if (!names_.insert(tensor.name).second) return Damaged("tensor {} appears twice", tensor.name);
    contents_.tensors.push_back(std::move(tensor));
    return {};
  }

  Result<void> SizeTensor(GgufTensor& tensor, std::uint32_t type) const {
    const auto known = type < GGML_TYPE_COUNT;
    const auto block = known ? ggml_blck_size(static_cast<ggml_type>(type)) : 0;
    const auto block_bytes = known ? ggml_type_size(static_cast<ggml_type>(type)) : 0;
    if (block <= 0 || block_bytes == 0) {
      return Corrupt(
          "tensor {} has type {}, which this ggml does not know; update ggml, or choose another "
          "quantisation",
          tensor.name, type);
    }
    tensor.type = static_cast<int>(type);
    std::uint64_t elements = 1;
    for (const std::uint64_t width : tensor.shape) {
      if (width == 0 || __builtin_mul_overflow(elements, width, &elements) ||
          !std::in_range<std::int64_t>(elements)) {
        return Damaged("tensor {} has an impossible shape {}", tensor.name,
                       FormatShape(tensor.shape));
      }
    }
    if (tensor.shape[0] % static_cast<std::uint64_t>(block) != 0) {
      return Damaged("tensor {} has rows of {}, which type {} (blocks of {}) cannot hold",
                     tensor.name, tensor.shape[0], ggml_type_name(static_cast<ggml_type>(type)),
                     block);
    }
    tensor.bytes = base::Bytes(elements / static_cast<std::uint64_t>(block)) * block_bytes;
    if (!std::in_range<std::int64_t>(tensor.bytes.count())) {
      return Damaged("tensor {} has an impossible size", tensor.name);
    }
    return {};
  }

  // Turns offsets within the data section into offsets within the file, and checks every extent.
  Result<void> PlaceTensors() {
    const std::uint64_t data = (position_ + alignment_ - 1) / alignment_ * alignment_;
    std::vector<const GgufTensor*> by_offset;
    for (GgufTensor& tensor : contents_.tensors) {
      if (tensor.offset % alignment_ != 0) {
        return Damaged("tensor {} lies at offset {}, which is no multiple of {}", tensor.name,
                       tensor.offset, alignment_);
      }
      const base::Bytes end = base::Bytes(data) + base::Bytes(tensor.offset) + tensor.bytes;
      if (end > base::Bytes(bytes_.size())) {
        return Corrupt(
            "cut off: tensor {} reaches to byte {}, the file ends at {}; download it again",
            tensor.name, end.count(), bytes_.size());
      }
      tensor.offset += data;
      by_offset.push_back(&tensor);
    }
    std::ranges::sort(by_offset, {}, [](const GgufTensor* tensor) { return tensor->offset; });
    for (std::size_t i = 1; i < by_offset.size(); ++i) {
      const GgufTensor& before = *by_offset[i - 1];
      if (before.offset + before.bytes.count() > by_offset[i]->offset) {
        return Damaged("tensors {} and {} overlap", before.name, by_offset[i]->name);
      }
    }
    return {};
  }

  std::span<const std::byte> bytes_;
  std::span<const std::byte> header_;  // the part of bytes_ that a header may occupy
  const std::string& name_;
  std::size_t position_ = 0;
  std::uint64_t alignment_ = kDefaultAlignment;
  std::set<std::string, std::less<>> names_;
  GgufContents contents_;
};

}  // namespace

Result<GgufContents> ParseGguf(std::span<const std::byte> bytes, const std::string& name) {
  return Parser(bytes, name).Run();
}

}  // namespace gg
