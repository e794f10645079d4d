#include "model/family.h"

#include <ggml.h>

#include <algorithm>
#include <format>
#include <string>
#include <utility>

#include "base/quote.h"

namespace model {
namespace {

using base::Bytes;
using base::ErrorKind;
using base::Fail;
using base::Forward;
using base::Result;

constexpr std::string_view kArchitecture = "general.architecture";
constexpr std::string_view kFileType = "general.file_type";
constexpr std::string_view kName = "general.name";
// Set by tools that inferred the type instead of reading it.
constexpr std::uint32_t kGuessedBit = 1024;

struct FileType {
  std::uint32_t number;
  std::string_view name;
};

constexpr FileType kFileTypes[] = {
    {0, "F32"},      {1, "F16"},      {2, "Q4_0"},    {3, "Q4_1"},    {7, "Q8_0"},
    {8, "Q5_0"},     {9, "Q5_1"},     {10, "Q2_K"},   {11, "Q3_K_S"}, {12, "Q3_K_M"},
    {13, "Q3_K_L"},  {14, "Q4_K_S"},  {15, "Q4_K_M"}, {16, "Q5_K_S"}, {17, "Q5_K_M"},
    {18, "Q6_K"},    {19, "IQ2_XXS"}, {20, "IQ2_XS"}, {21, "Q2_K_S"}, {22, "IQ3_XS"},
    {23, "IQ3_XXS"}, {24, "IQ1_S"},   {25, "IQ4_NL"}, {26, "IQ3_S"},  {27, "IQ3_M"},
    {28, "IQ2_S"},   {29, "IQ2_M"},   {30, "IQ4_XS"}, {31, "IQ1_M"},  {32, "BF16"},
    {36, "TQ1_0"},   {37, "TQ2_0"},   {38, "MXFP4"},  {39, "NVFP4"},  {40, "Q1_0"},
    {41, "Q2_0"},
};

// The element type that holds most of the file's bytes: what a file without general.file_type is.
std::string CommonType(const gg::GgufFile& file) {
  Bytes sums[GGML_TYPE_COUNT] = {};
  for (const gg::GgufTensor& tensor : file.tensors()) sums[tensor.type] += tensor.bytes;
  const auto type = static_cast<ggml_type>(std::ranges::max_element(sums) - sums);
  std::string name = ggml_type_name(type);
  std::ranges::transform(name, name.begin(), [](char c) {
    return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  });
  return name;
}

}  // namespace

std::string_view FileTypeName(std::uint32_t file_type) {
  const auto* found = std::ranges::find(kFileTypes, file_type & ~kGuessedBit, &FileType::number);
  return found == std::end(kFileTypes) ? "unknown" : found->name;
}

Result<moe::ModelIdentity> ReadIdentity(const gg::GgufFile& file) {
  moe::ModelIdentity identity;
  auto architecture = file.String(kArchitecture);
  if (!architecture) return Forward(architecture);
  identity.architecture = *std::move(architecture);
  if (file.Has(kName)) {
    auto name = file.String(kName);
    if (!name) return Forward(name);
    identity.name = *std::move(name);
  }
  if (file.Has(kFileType)) {
    auto type = file.Uint32(kFileType);
    if (!type) return Forward(type);
    identity.quantisation = FileTypeName(*type);
  } else {
    identity.quantisation = CommonType(file);
  }
  identity.directory_hash = file.DirectoryHash();
  identity.shape_hash = file.ShapeHash();
  return identity;
}

Result<ModelDescription> DescribeModel(const gg::GgufFile& file,
                                       std::span<const ModelFamily> families) {
  auto architecture = file.String(kArchitecture);
  if (!architecture) return Forward(architecture);
  const auto family = std::ranges::find(families, *architecture, &ModelFamily::architecture);
  if (family != families.end()) {
    auto description = family->describe(file);
    constexpr std::string_view kRemedy = "convert the model again";
    if (!description && !description.error().message.ends_with(kRemedy)) {
      description.error().message += std::format("; {}", kRemedy);
    }
    return description;
  }
  std::string known;
  for (const ModelFamily& each : families) {
    known += std::format("{}{}", known.empty() ? "" : ", ", each.architecture);
  }
  return Fail(ErrorKind::kCorruptModel,
              "'{}': architecture {} is not supported; choose a model of {}", file.name(),
              base::Quote(*architecture), known);
}

DenseNeeds NeedsOf(const DenseProfile& dense, const ContextRequest& request) {
  DenseNeeds needs;
  needs.weights = dense.weights;

  const auto type = static_cast<ggml_type>(request.kv_type);
  const auto block = static_cast<std::uint64_t>(ggml_blck_size(type));
  const Bytes row =
      Bytes(ggml_type_size(type)) * ((std::uint64_t{dense.kv_width} + block - 1) / block);
  const std::uint64_t cells = std::uint64_t{request.context} * request.num_sequences;
  needs.kv_cache = row * 2 * cells * dense.num_attention_layers;
  needs.state = dense.state_per_sequence * request.num_sequences;

  // Scores and their softmax of every head, the mask, a layer's activations, and the logits.
  constexpr Bytes kFloat(sizeof(float));
  const std::uint64_t rows = request.batch_rows;
  Bytes compute;
  if (dense.num_attention_layers > 0 && !request.on_cpu) {
    compute += kFloat * cells * rows * (2 * std::uint64_t{dense.num_heads} + 1);
  }
  compute += kFloat * rows * (4 * std::uint64_t{dense.n_embd} + dense.widest_row);
  compute += kFloat * dense.num_vocab * request.logit_rows;
  needs.compute = compute + Bytes(compute.count() / 8);
  return needs;
}

}  // namespace model
