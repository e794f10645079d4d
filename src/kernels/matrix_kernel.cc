#include "kernels/matrix_kernel.h"

#include <ggml.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"
#include "kernels/layout.h"
#include "kernels/strips.h"

namespace kernels {
namespace {

// Packed bytes of the strips that one pass over all panels covers: they stay in the second-level
// cache meanwhile.
constexpr std::size_t kBlockBytes = 512 * 1024;
// Panels that a slab of the file is packed for, and the largest slab.
constexpr std::size_t kFilePanels = 16;
constexpr std::size_t kMaxSlabBytes = kSlabColumns * kStripRows * sizeof(float);

struct TypeEntry {
  ggml_type type;
  std::size_t block;  // columns
  std::size_t block_bytes;
  ActivationFormat activation_format;
  std::size_t slab_bytes;     // of 256 columns; 0: see blocks
  const BlockLayout* blocks;  // of types of 32-column blocks; null: floats as they are
  PackStripFunction (*pack)(InstructionSet set);
  StripFunctions (*strips)(InstructionSet set);
  FileRowFunction (*file_row)(InstructionSet set) = nullptr;

  std::size_t strip_bytes(std::size_t row_width) const {
    if (slab_bytes != 0) return row_width / kSlabColumns * slab_bytes;
    if (blocks != nullptr) return blocks->strip_bytes(row_width);
    const std::size_t bytes = row_width * block_bytes * kStripRows;
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
};

TypeEntry SuperBlocks(ggml_type type, std::size_t block_bytes, const SlabLayout& layout,
                      PackStripFunction (*pack)(InstructionSet),
                      StripFunctions (*strips)(InstructionSet),
                      FileRowFunction (*file_row)(InstructionSet) = nullptr) {
  return {type, kSlabColumns, block_bytes, ActivationFormat::kBlock256, layout.bytes(), nullptr,
          pack, strips,       file_row};
}

TypeEntry Blocks(ggml_type type, std::size_t block, std::size_t block_bytes,
                 const BlockLayout& layout, PackStripFunction (*pack)(InstructionSet),
                 StripFunctions (*strips)(InstructionSet)) {
  return {type, block, block_bytes, ActivationFormat::kBlock32, 0, &layout, pack, strips};
}

TypeEntry Floats(ggml_type type, std::size_t element_bytes, ActivationFormat format,
                 PackStripFunction (*pack)(InstructionSet),
                 StripFunctions (*strips)(InstructionSet)) {
  return {type, 1, element_bytes, format, 0, nullptr, pack, strips};
}

const TypeEntry* FindType(int type) {
  static const std::array kTypes = {
      SuperBlocks(GGML_TYPE_Q2_K, 84, kQ2K, PackQ2K, Q2KStrips),
      SuperBlocks(GGML_TYPE_Q3_K, 110, kQ3K, PackQ3K, Q3KStrips),
      SuperBlocks(GGML_TYPE_Q4_K, 144, kQ4K, PackQ4K, Q4KStrips),
      SuperBlocks(GGML_TYPE_Q5_K, 176, kQ5K, PackQ5K, Q5KStrips),
      SuperBlocks(GGML_TYPE_Q6_K, 210, kQ6K, PackQ6K, Q6KStrips),
      SuperBlocks(GGML_TYPE_IQ4_XS, 136, kIq4Xs, PackIq4Xs, Iq4XsStrips),
      SuperBlocks(GGML_TYPE_IQ3_S, 110, kIq3, PackIq3S, Iq3SStrips),
      SuperBlocks(GGML_TYPE_IQ3_XXS, 98, kIq3, PackIq3Xxs, Iq3XxsStrips),
      SuperBlocks(GGML_TYPE_IQ2_S, 82, kIq2Xs, PackIq2S, Iq2XsStrips),
      SuperBlocks(GGML_TYPE_IQ2_XS, 74, kIq2Xs, PackIq2Xs, Iq2XsStrips),
      SuperBlocks(GGML_TYPE_IQ2_XXS, 66, kIq2Xxs, PackIq2Xxs, Iq2XxsStrips),
      SuperBlocks(GGML_TYPE_IQ1_M, 56, kIq2Xs, PackIq1M, Iq1MStrips),
      SuperBlocks(GGML_TYPE_IQ1_S, 50, kIq2Xxs, PackIq1S, Iq1SStrips),
      SuperBlocks(GGML_TYPE_TQ2_0, 66, kTernary, PackTq20, TernaryStrips, Tq20FileRow),
      SuperBlocks(GGML_TYPE_TQ1_0, 54, kTernary, PackTq10, TernaryStrips, Tq10FileRow),
      Blocks(GGML_TYPE_Q8_0, 32, 34, kQ80, PackQ80, Q80Strips),
      Blocks(GGML_TYPE_Q5_1, 32, 24, kQ51, PackQ51, Q51Strips),
      Blocks(GGML_TYPE_Q5_0, 32, 22, kQ50, PackQ50, Q50Strips),
      Blocks(GGML_TYPE_Q4_1, 32, 20, kQ41, PackQ41, Q41Strips),
      Blocks(GGML_TYPE_Q4_0, 32, 18, kQ40, PackQ40, Q40Strips),
      Blocks(GGML_TYPE_Q2_0, 64, 18, kQ20, PackQ20, Q20Strips),
      Blocks(GGML_TYPE_Q1_0, 128, 18, kQ10, PackQ10, Q10Strips),
      Blocks(GGML_TYPE_IQ4_NL, 32, 18, kIq4Nl, PackIq4Nl, Iq4NlStrips),
      Blocks(GGML_TYPE_MXFP4, 32, 17, kMxfp4, PackMxfp4, Mxfp4Strips),
      Blocks(GGML_TYPE_NVFP4, 64, 36, kNvfp4, PackNvfp4, Nvfp4Strips),
      Floats(GGML_TYPE_F32, 4, ActivationFormat::kFloat32, PackWords, F32Strips),
      Floats(GGML_TYPE_F16, 2, ActivationFormat::kFloat16, PackHalves, F16Strips),
      Floats(GGML_TYPE_BF16, 2, ActivationFormat::kBfloat16, PackHalves, Bf16Strips),
  };
  const auto it = std::ranges::find(kTypes, type, [](const TypeEntry& e) { return int{e.type}; });
  return it == kTypes.end() ? nullptr : &*it;
}

// Elements that are quantised as one, and the words that they become.
struct Granule {
  std::size_t columns;
  std::size_t words;
};

Granule GranuleOf(ActivationFormat format) {
  switch (format) {
    case ActivationFormat::kBlock256:
      return {kSlabColumns, block256::kWords};
    case ActivationFormat::kBlock32:
      return {kUnitColumns, block32::kWords};
    case ActivationFormat::kFloat16:
    case ActivationFormat::kBfloat16:
    case ActivationFormat::kFloat32:
      return {1, 1};
  }
  return {};
}

QuantizeFunction Quantizer(ActivationFormat format, InstructionSet set) {
  switch (format) {
    case ActivationFormat::kBlock256:
      return Quantize256(set);
    case ActivationFormat::kBlock32:
      return Quantize32(set);
    case ActivationFormat::kFloat16:
      return RoundToFloat16(set);
    case ActivationFormat::kBfloat16:
      return RoundToBfloat16(set);
    case ActivationFormat::kFloat32:
      return KeepFloats();
  }
  return nullptr;
}

const std::int32_t* Words(const std::byte* p) { return reinterpret_cast<const std::int32_t*>(p); }
std::int32_t* Words(std::byte* p) { return reinterpret_cast<std::int32_t*>(p); }

}  // namespace

bool MatrixKernel::Supports(int type, std::size_t row_width) {
  const TypeEntry* entry = FindType(type);
  return entry != nullptr && row_width > 0 && row_width % entry->block == 0;
}

base::Result<MatrixKernel> MatrixKernel::Make(int type, std::size_t row_width, InstructionSet set) {
  if (!Supports(type, row_width)) {
    return base::Fail(base::ErrorKind::kUnsupported,
                      "no packed layout for rows of {} elements of weight type {}", row_width,
                      type);
  }
  if (!std::ranges::contains(AvailableInstructionSets(), set)) {
    return base::Fail(base::ErrorKind::kInvalidInput, "this machine has no {}",
                      InstructionSetName(set));
  }
  const TypeEntry& entry = *FindType(type);
  MatrixKernel kernel;
  kernel.row_width_ = row_width;
  kernel.block_ = entry.block;
  kernel.block_bytes_ = entry.block_bytes;
  kernel.strip_bytes_ = entry.strip_bytes(row_width);
  kernel.activation_format_ = entry.activation_format;
  const Granule granule = GranuleOf(entry.activation_format);
  kernel.granule_ = granule.columns;
  kernel.quantized_bytes_ = 4 * (row_width / granule.columns * granule.words);
  kernel.pack_ = entry.pack(set);
  kernel.quantize_ = Quantizer(entry.activation_format, set);
  kernel.strip_functions_ = entry.strips(set);
  if (entry.file_row != nullptr) kernel.file_row_ = entry.file_row(set);
  return kernel;
}

void MatrixKernel::Pack(const std::byte* rows, std::size_t num_rows, std::size_t first_strip,
                        std::size_t end_strip, std::byte* packed) const {
  ES_CHECK(end_strip <= NumStrips(num_rows));
  const std::size_t row_bytes = row_width_ / block_ * block_bytes_;
  for (std::size_t strip = first_strip; strip < end_strip; ++strip) {
    const std::size_t row = strip * kStripRows;
    pack_(rows + row * row_bytes, std::min(kStripRows, num_rows - row), row_bytes, row_width_,
          packed + strip * strip_bytes_);
  }
}

void MatrixKernel::QuantizeRow(const float* in, std::byte* out) const {
  quantize_(in, row_width_, Words(out));
}

void MatrixKernel::QuantizePart(const float* in, std::size_t begin, std::size_t n,
                                std::byte* out) const {
  ES_CHECK(begin % granule() == 0 && n % granule() == 0 && begin + n <= row_width_);
  quantize_(in, n, Words(out + begin / granule() * (quantized_bytes_ / (row_width_ / granule()))));
}

std::pair<std::size_t, std::size_t> MatrixKernel::PanelRows(std::size_t num_rows,
                                                            std::size_t panel) const {
  const std::size_t panels = NumPanels(num_rows);
  const std::size_t size = num_rows / panels;
  const std::size_t larger = num_rows % panels;
  const std::size_t first = panel * size + std::min(panel, larger);
  return {first, first + size + (panel < larger ? 1 : 0)};
}

void MatrixKernel::BuildPanels(const std::byte* const* rows, std::size_t num_rows,
                               std::byte* panels) const {
  const std::size_t num_words = quantized_bytes_ / 4;
  for (std::size_t panel = 0; panel < NumPanels(num_rows); ++panel) {
    const auto [first, end] = PanelRows(num_rows, panel);
    const std::size_t size = end - first;
    std::int32_t* out = Words(panels + PanelBytes(first));
    for (std::size_t t = 0; t < size; ++t) {
      const std::int32_t* in = Words(rows[first + t]);
      for (std::size_t w = 0; w < num_words; ++w) out[w * size + t] = in[w];
    }
  }
}

void MatrixKernel::Multiply(const std::byte* packed, std::size_t num_rows, std::size_t first_strip,
                            std::size_t end_strip, const std::byte* panels,
                            std::size_t num_activations, float* out, std::size_t out_stride) const {
  ES_CHECK(end_strip <= NumStrips(num_rows));
  const std::size_t block = std::max<std::size_t>(1, kBlockBytes / strip_bytes_);
  alignas(kAlignment) float sums[kMaxPanelRows * kStripRows];
  for (std::size_t begin = first_strip; begin < end_strip; begin += block) {
    const std::size_t end = std::min(end_strip, begin + block);
    for (std::size_t panel = 0; panel < NumPanels(num_activations); ++panel) {
      const auto [first, last] = PanelRows(num_activations, panel);
      const StripFunction multiply = strip_functions_.multiply[last - first - 1];
      for (std::size_t strip = begin; strip < end; ++strip) {
        std::fill_n(sums, (last - first) * kStripRows, 0.0f);
        multiply(packed + strip * strip_bytes_, row_width_, Words(panels + PanelBytes(first)),
                 sums);
        const std::size_t row = strip * kStripRows;
        const std::size_t bytes = std::min(kStripRows, num_rows - row) * sizeof(float);
        for (std::size_t t = first; t < last; ++t) {
          std::memcpy(out + t * out_stride + row, sums + (t - first) * kStripRows, bytes);
        }
      }
    }
  }
}

// The products of one strip with the activations of panels [first_panel, end_panel).
void MatrixKernel::MultiplyFileStrip(const std::byte* rows, std::size_t num_rows, std::size_t strip,
                                     const Activations& x, std::size_t first_panel,
                                     std::size_t end_panel, float* out,
                                     std::size_t out_stride) const {
  alignas(kAlignment) std::byte slab[kMaxSlabBytes];
  alignas(kAlignment) float sums[kFilePanels * kMaxPanelRows * kStripRows];
  const std::size_t row_bytes = row_width_ / block_ * block_bytes_;
  const std::size_t row = strip * kStripRows;
  const std::size_t strip_rows = std::min(kStripRows, num_rows - row);
  const std::size_t begin = PanelRows(x.num_rows, first_panel).first;
  const std::size_t end = PanelRows(x.num_rows, end_panel - 1).second;
  const std::size_t granule_words = quantized_bytes_ / 4 / (row_width_ / granule_);
  std::fill_n(sums, (end - begin) * kStripRows, 0.0f);
  for (std::size_t column = 0; column < row_width_; column += kSlabColumns) {
    const std::size_t width = std::min(kSlabColumns, row_width_ - column);
    pack_(rows + row * row_bytes + column / block_ * block_bytes_, strip_rows, row_bytes, width,
          slab);
    for (std::size_t panel = first_panel; panel < end_panel; ++panel) {
      const auto [first, last] = PanelRows(x.num_rows, panel);
      const std::int32_t* words =
          Words(x.panels + PanelBytes(first)) + column / granule_ * granule_words * (last - first);
      strip_functions_.multiply[last - first - 1](slab, width, words,
                                                  sums + (first - begin) * kStripRows);
    }
  }
  for (std::size_t t = begin; t < end; ++t) {
    std::memcpy(out + t * out_stride + row, sums + (t - begin) * kStripRows,
                strip_rows * sizeof(float));
  }
}

void MatrixKernel::MultiplyFile(const std::byte* rows, std::size_t num_rows,
                                std::size_t first_strip, std::size_t end_strip,
                                const std::byte* panels, std::size_t num_activations, float* out,
                                std::size_t out_stride) const {
  ES_CHECK(end_strip <= NumStrips(num_rows));
  if (num_activations == 1 && file_row_ != nullptr) {
    const std::size_t row_bytes = row_width_ / block_ * block_bytes_;
    const std::size_t end_row = std::min(end_strip * kStripRows, num_rows);
    for (std::size_t row = first_strip * kStripRows; row < end_row; ++row) {
      out[row] = file_row_(rows + row * row_bytes, row_width_, Words(panels));
    }
    return;
  }
  const std::size_t num_panels = NumPanels(num_activations);
  for (std::size_t panel = 0; panel < num_panels; panel += kFilePanels) {
    const std::size_t end_panel = std::min(num_panels, panel + kFilePanels);
    for (std::size_t strip = first_strip; strip < end_strip; ++strip) {
      MultiplyFileStrip(rows, num_rows, strip, {panels, num_activations}, panel, end_panel, out,
                        out_stride);
    }
  }
}

}  // namespace kernels
