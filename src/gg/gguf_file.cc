#include "gg/gguf_file.h"

#include <algorithm>
#include <cmath>
#include <format>
#include <limits>
#include <type_traits>
#include <utility>

#include "base/check.h"
#include "base/fnv1a.h"
#include "gg/gguf_parse.h"

namespace gg {
namespace {

using base::ErrorKind;
using base::Fail;
using base::Forward;
using base::Result;

constexpr std::string_view kSplitCount = "split.count";
constexpr std::string_view kSplitNumber = "split.no";
constexpr std::string_view kSplitTensors = "split.tensors.count";
constexpr std::uint32_t kMaxShards = 99999;  // five digits in a shard's name

// "model-00001-of-00003.gguf" for (prefix "model", index 0, count 3).
std::string ShardPath(std::string_view prefix, std::uint32_t index, std::uint32_t count) {
  return std::format("{}-{:05}-of-{:05}.gguf", prefix, index + 1, count);
}

// What stands before the shard's number in `path`; nothing when it is not named like that shard.
std::optional<std::string_view> ShardPrefix(std::string_view path, std::uint32_t index,
                                            std::uint32_t count) {
  const std::string suffix = ShardPath("", index, count);
  if (!path.ends_with(suffix)) return std::nullopt;
  return path.substr(0, path.size() - suffix.size());
}

// A whole number that may be stored with either sign and any width.
std::optional<std::int64_t> WholeNumber(const GgufFile::Value& value) {
  if (const auto* number = std::get_if<std::int64_t>(&value)) return *number;
  const auto* large = std::get_if<std::uint64_t>(&value);
  if (large == nullptr || !std::in_range<std::int64_t>(*large)) return std::nullopt;
  return static_cast<std::int64_t>(*large);
}

Result<std::uint32_t> ReadCount(const GgufContents& contents, std::string_view key,
                                std::uint32_t fallback, const std::string& name) {
  const auto found = contents.values.find(key);
  if (found == contents.values.end()) return fallback;
  const auto number = WholeNumber(found->second);
  if (!number || !std::in_range<std::uint32_t>(*number)) {
    return Fail(ErrorKind::kCorruptModel, "'{}': key {} is not a count; convert the model again",
                name, key);
  }
  return static_cast<std::uint32_t>(*number);
}

struct Shard {
  base::MappedFile file;
  GgufContents contents;
  std::uint32_t number = 0;
  std::uint32_t count = 1;
};

Result<Shard> OpenShard(const std::string& path) {
  auto file = base::MappedFile::Open(path);
  if (!file) {
    return Fail(ErrorKind::kCorruptModel, "{}; give a GGUF file that can be read",
                file.error().message);
  }
  auto contents = ParseGguf(file->bytes(), path);
  if (!contents) return Forward(contents);
  auto number = ReadCount(*contents, kSplitNumber, 0, path);
  if (!number) return Forward(number);
  auto count = ReadCount(*contents, kSplitCount, 1, path);
  if (!count) return Forward(count);
  return Shard{*std::move(file), *std::move(contents), *number, std::max(*count, 1U)};
}

Result<std::string> FirstShardPrefix(const Shard& shard, const std::string& path) {
  if (shard.count > kMaxShards || shard.number >= shard.count) {
    return Fail(ErrorKind::kCorruptModel,
                "'{}': {} is {} of {} {}, which no split model has; split the model again", path,
                kSplitNumber, shard.number, kSplitCount, shard.count);
  }
  const auto prefix = ShardPrefix(path, shard.number, shard.count);
  if (shard.number != 0) {
    return Fail(ErrorKind::kCorruptModel,
                "'{}' is shard {} of {} of a split model; give the first{}", path, shard.number + 1,
                shard.count,
                prefix ? std::format(": '{}'", ShardPath(*prefix, 0, shard.count)) : "");
  }
  if (!prefix) {
    return Fail(
        ErrorKind::kCorruptModel,
        "'{}' is the first of {} shards, whose names must end in '{}' and so on; rename them", path,
        shard.count, ShardPath("", 0, shard.count));
  }
  return std::string(*prefix);
}

Result<Shard> OpenLaterShard(const Shard& first, const std::string& prefix, std::uint32_t number) {
  const std::string path = ShardPath(prefix, number, first.count);
  auto shard = OpenShard(path);
  if (!shard) return shard;
  if (shard->number != number || shard->count != first.count) {
    return Fail(ErrorKind::kCorruptModel,
                "'{}' says it is shard {} of {}, expected {} of {}; it is of another model: "
                "download it again",
                path, shard->number + 1, shard->count, number + 1, first.count);
  }
  constexpr std::string_view kArchitecture = "general.architecture";
  const auto own = shard->contents.values.find(kArchitecture);
  const auto expected = first.contents.values.find(kArchitecture);
  if (own != shard->contents.values.end() && expected != first.contents.values.end() &&
      own->second != expected->second) {
    return Fail(ErrorKind::kCorruptModel,
                "'{}' is of another model than the first shard: {} differs; download it again",
                path, kArchitecture);
  }
  return shard;
}

void HashShape(const GgufTensor& tensor, base::Fnv1a& hash) {
  hash.Number(tensor.shape.size());
  for (const std::uint64_t width : tensor.shape) hash.Number(width);
}

}  // namespace

std::string FormatShape(std::span<const std::uint64_t> shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    text += std::format("{}{}", i == 0 ? "" : ", ", shape[i]);
  }
  return text + "]";
}

Result<GgufFile> GgufFile::Open(const std::string& path) {
  auto first = OpenShard(path);
  if (!first) return Forward(first);
  std::string prefix;
  if (first->count > 1) {
    auto found = FirstShardPrefix(*first, path);
    if (!found) return Forward(found);
    prefix = *std::move(found);
  }
  auto announced = ReadCount(first->contents, kSplitTensors, 0, path);
  if (!announced) return Forward(announced);

  GgufFile file;
  file.name_ = path;
  file.values_ = first->contents.values;
  if (auto added = file.AddTensors(std::move(first->contents.tensors)); !added) {
    return Forward(added);
  }
  const std::uint32_t count = first->count;
  file.shards_.push_back(std::move(first->file));
  for (std::uint32_t number = 1; number < count; ++number) {
    auto shard = OpenLaterShard(*first, prefix, number);
    if (!shard) return Forward(shard);
    if (auto added = file.AddTensors(std::move(shard->contents.tensors)); !added) {
      return Forward(added);
    }
    file.shards_.push_back(std::move(shard->file));
  }
  if (count > 1 && *announced != 0 && file.tensors_.size() != *announced) {
    return Fail(ErrorKind::kCorruptModel,
                "'{}': the {} shards hold {} tensors, {} says {}; download it again", path, count,
                file.tensors_.size(), kSplitTensors, *announced);
  }
  return file;
}

Result<GgufFile> GgufFile::Parse(std::span<const std::byte> bytes, std::string name) {
  auto contents = ParseGguf(bytes, name);
  if (!contents) return Forward(contents);
  auto shards = ReadCount(*contents, kSplitCount, 1, name);
  if (!shards) return Forward(shards);
  if (*shards > 1) {
    return Fail(ErrorKind::kCorruptModel, "'{}' is one of {} shards; open the first by its path",
                name, *shards);
  }
  GgufFile file;
  file.name_ = std::move(name);
  file.values_ = std::move(contents->values);
  if (auto added = file.AddTensors(std::move(contents->tensors)); !added) return Forward(added);
  return file;
}

Result<void> GgufFile::AddTensors(std::vector<GgufTensor> tensors) {
  for (GgufTensor& tensor : tensors) {
    tensor.shard = shards_.size();
    if (!tensor_index_.emplace(tensor.name, tensors_.size()).second) {
      return Fail(ErrorKind::kCorruptModel,
                  "'{}': tensor {} appears in two shards; split the model again", name_,
                  tensor.name);
    }
    tensors_.push_back(std::move(tensor));
  }
  return {};
}

Result<const GgufFile::Value*> GgufFile::Find(std::string_view key) const {
  const auto found = values_.find(key);
  if (found == values_.end()) {
    return Fail(ErrorKind::kCorruptModel, "'{}': key {} is missing; convert the model again", name_,
                key);
  }
  return &found->second;
}

std::unexpected<base::Error> GgufFile::WrongType(std::string_view key,
                                                 std::string_view expected) const {
  return Fail(ErrorKind::kCorruptModel, "'{}': key {} is not {}; convert the model again", name_,
              key, expected);
}

Result<std::string> GgufFile::String(std::string_view key) const {
  auto value = Find(key);
  if (!value) return Forward(value);
  if (const auto* text = std::get_if<std::string>(*value)) return *text;
  return WrongType(key, "a string");
}

Result<std::uint32_t> GgufFile::Uint32(std::string_view key) const {
  auto value = Find(key);
  if (!value) return Forward(value);
  const auto number = WholeNumber(**value);
  if (!number || !std::in_range<std::uint32_t>(*number)) {
    return WrongType(key, "a whole number of 0 to 4294967295");
  }
  return static_cast<std::uint32_t>(*number);
}

Result<float> GgufFile::Float(std::string_view key) const {
  auto value = Find(key);
  if (!value) return Forward(value);
  if (const auto* real = std::get_if<double>(*value)) {
    if (std::isfinite(*real) && std::abs(*real) > double{std::numeric_limits<float>::max()}) {
      return WrongType(key, "a number that a float can hold");
    }
    return static_cast<float>(*real);
  }
  if (const auto number = WholeNumber(**value)) return static_cast<float>(*number);
  return WrongType(key, "a number");
}

Result<bool> GgufFile::Bool(std::string_view key) const {
  auto value = Find(key);
  if (!value) return Forward(value);
  if (const auto* flag = std::get_if<bool>(*value)) return *flag;
  return WrongType(key, "a flag");
}

Result<std::vector<std::int64_t>> GgufFile::IntArray(std::string_view key) const {
  auto value = Find(key);
  if (!value) return Forward(value);
  if (const auto* array = std::get_if<Array>(*value)) {
    if (const auto* numbers = std::get_if<std::vector<std::int64_t>>(array)) return *numbers;
  }
  return WrongType(key, "an array of whole numbers");
}

const GgufTensor* GgufFile::FindTensor(std::string_view name) const {
  const auto found = tensor_index_.find(name);
  return found == tensor_index_.end() ? nullptr : &tensors_[found->second];
}

std::span<const std::byte> GgufFile::Data(const GgufTensor& tensor) const {
  ES_CHECK(tensor.shard < shards_.size());
  return shards_[tensor.shard].bytes().subspan(tensor.offset, tensor.bytes.count());
}

std::uint64_t GgufFile::DirectoryHash() const {
  base::Fnv1a hash;
  for (const GgufTensor& tensor : tensors_) {
    hash.Text(tensor.name);
    hash.Number(static_cast<std::uint64_t>(tensor.type));
    HashShape(tensor, hash);
  }
  return hash.value();
}

std::uint64_t GgufFile::ShapeHash() const {
  base::Fnv1a hash;
  for (const auto& [name, index] : tensor_index_) {
    hash.Text(name);
    HashShape(tensors_[index], hash);
  }
  return hash.value();
}

}  // namespace gg
