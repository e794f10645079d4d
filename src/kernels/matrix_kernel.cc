#include "kernels/matrix_kernel.h"

#include <ggml.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"
#include "kernels/layout.h"
#include "kernels/pack.h"
#include "kernels/strips.h"

namespace kernels {
namespace {

// Packed bytes of the strips that one pass over all panels covers: they stay in the second-level
// cache meanwhile.
constexpr std::size_t kBlockBytes = 512 * 1024;

struct TypeEntry {
  ggml_type type;
  std::size_t block;  // columns
  std::size_t block_bytes;
  ActivationFormat activation_format;
  std::size_t slab_bytes;     // of 256 columns; 0: see blocks
  const BlockLayout* blocks;  // of types of 32-column blocks
  PackStripFunction pack;
  StripFunctions (*strips)(InstructionSet set);
};

TypeEntry SuperBlocks(ggml_type type, std::size_t block_bytes, const SlabLayout& layout,
                      PackStripFunction pack, StripFunctions (*strips)(InstructionSet set)) {
  return {type,           kSlabColumns, block_bytes, ActivationFormat::kBlock256,
          layout.bytes(), nullptr,      pack,        strips};
}

TypeEntry Blocks(ggml_type type, std::size_t block_bytes, const BlockLayout& layout,
                 PackStripFunction pack, StripFunctions (*strips)(InstructionSet set)) {
  return {type, kUnitColumns, block_bytes, ActivationFormat::kBlock32, 0, &layout, pack, strips};
}

const TypeEntry* FindType(int type) {
  static const std::array kTypes = {
      SuperBlocks(GGML_TYPE_Q2_K, 84, kQ2K, PackQ2K, Q2KStrips),
      SuperBlocks(GGML_TYPE_Q3_K, 110, kQ3K, PackQ3K, Q3KStrips),
      SuperBlocks(GGML_TYPE_Q4_K, 144, kQ4K, PackQ4K, Q4KStrips),
      SuperBlocks(GGML_TYPE_Q5_K, 176, kQ5K, PackQ5K, Q5KStrips),
      SuperBlocks(GGML_TYPE_Q6_K, 210, kQ6K, PackQ6K, Q6KStrips),
      SuperBlocks(GGML_TYPE_IQ4_XS, 136, kIq4Xs, PackIq4Xs, Iq4XsStrips),
      SuperBlocks(GGML_TYPE_IQ2_XXS, 66, kIq2Xxs, PackIq2Xxs, Iq2XxsStrips),
      SuperBlocks(GGML_TYPE_IQ2_XS, 74, kIq2Xs, PackIq2Xs, Iq2XsStrips),
      SuperBlocks(GGML_TYPE_IQ2_S, 82, kIq2Xs, PackIq2S, Iq2XsStrips),
      SuperBlocks(GGML_TYPE_IQ3_XXS, 98, kIq3, PackIq3Xxs, Iq3XxsStrips),
      SuperBlocks(GGML_TYPE_IQ3_S, 110, kIq3, PackIq3S, Iq3SStrips),
      Blocks(GGML_TYPE_Q8_0, 34, kQ80, PackQ80, Q80Strips),
      Blocks(GGML_TYPE_Q4_0, 18, kQ40, PackQ40, Q40Strips),
      Blocks(GGML_TYPE_IQ4_NL, 18, kIq4Nl, PackIq4Nl, Iq4NlStrips),
      Blocks(GGML_TYPE_MXFP4, 17, kMxfp4, PackMxfp4, Mxfp4Strips),
  };
  const auto it = std::ranges::find(kTypes, type, [](const TypeEntry& e) { return int{e.type}; });
  return it == kTypes.end() ? nullptr : &*it;
}

const std::int32_t* Words(const std::byte* p) { return reinterpret_cast<const std::int32_t*>(p); }
std::int32_t* Words(std::byte* p) { return reinterpret_cast<std::int32_t*>(p); }

// Panels of `num_rows` rows: as few as possible, of sizes that differ by one at most.
class PanelSizes {
 public:
  PanelSizes(std::size_t num_rows, std::size_t max_rows)
      : rest_(num_rows), panels_((num_rows + max_rows - 1) / max_rows) {}

  // The next panel's rows, 0 after the last.
  std::size_t Next() {
    if (panels_ == 0) return 0;
    const std::size_t size = (rest_ + panels_ - 1) / panels_;
    rest_ -= size;
    --panels_;
    return size;
  }

 private:
  std::size_t rest_;
  std::size_t panels_;
};

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
  const bool wide = entry.activation_format == ActivationFormat::kBlock256;
  MatrixKernel kernel;
  kernel.row_width_ = row_width;
  kernel.row_bytes_ = row_width / entry.block * entry.block_bytes;
  kernel.strip_bytes_ = entry.blocks != nullptr ? entry.blocks->strip_bytes(row_width)
                                                : row_width / kSlabColumns * entry.slab_bytes;
  kernel.quantized_bytes_ = 4 * (wide ? row_width / kSlabColumns * std::size_t{block256::kWords}
                                      : row_width / kUnitColumns * std::size_t{block32::kWords});
  kernel.activation_format_ = entry.activation_format;
  kernel.pack_ = entry.pack;
  kernel.quantize_ = wide ? Quantize256(set) : Quantize32(set);
  kernel.strip_functions_ = entry.strips(set);
  return kernel;
}

void MatrixKernel::Pack(const std::byte* rows, std::size_t num_rows, std::size_t first_strip,
                        std::size_t end_strip, std::byte* packed) const {
  ES_CHECK(end_strip <= NumStrips(num_rows));
  for (std::size_t strip = first_strip; strip < end_strip; ++strip) {
    const std::size_t row = strip * kStripRows;
    pack_(rows + row * row_bytes_, std::min(kStripRows, num_rows - row), row_width_,
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

void MatrixKernel::BuildPanels(const std::byte* const* rows, std::size_t num_rows,
                               std::byte* panels) const {
  const std::size_t num_words = quantized_bytes_ / 4;
  PanelSizes sizes(num_rows, max_panel_rows());
  while (const std::size_t size = sizes.Next()) {
    std::int32_t* out = Words(panels);
    for (std::size_t t = 0; t < size; ++t) {
      const std::int32_t* in = Words(rows[t]);
      for (std::size_t w = 0; w < num_words; ++w) out[w * size + t] = in[w];
    }
    rows += size;
    panels += PanelBytes(size);
  }
}

void MatrixKernel::Multiply(const std::byte* packed, std::size_t num_rows, std::size_t first_strip,
                            std::size_t end_strip, const std::byte* panels,
                            std::size_t num_activations, float* out, std::size_t out_stride) const {
  ES_CHECK(end_strip <= NumStrips(num_rows));
  const std::size_t block = std::max<std::size_t>(1, kBlockBytes / strip_bytes_);
  alignas(kAlignment) float values[kMaxPanelRows * kStripRows];
  for (std::size_t begin = first_strip; begin < end_strip; begin += block) {
    const std::size_t end = std::min(end_strip, begin + block);
    const std::byte* panel = panels;
    float* panel_out = out;
    PanelSizes sizes(num_activations, max_panel_rows());
    while (const std::size_t size = sizes.Next()) {
      const StripFunction multiply = strip_functions_.multiply[size - 1];
      for (std::size_t strip = begin; strip < end; ++strip) {
        multiply(packed + strip * strip_bytes_, row_width_, Words(panel), values);
        const std::size_t row = strip * kStripRows;
        const std::size_t bytes = std::min(kStripRows, num_rows - row) * sizeof(float);
        for (std::size_t t = 0; t < size; ++t) {
          std::memcpy(panel_out + t * out_stride + row, values + t * kStripRows, bytes);
        }
      }
      panel += PanelBytes(size);
      panel_out += size * out_stride;
    }
  }
}

}  // namespace kernels
