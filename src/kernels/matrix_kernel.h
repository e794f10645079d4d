// MatrixKernel: products of a weight matrix with activation rows, in a layout of its own.
//
// At load a matrix [num_rows, row_width] of any weight type is packed: strips of 16 rows,
// interleaved for the vector unit, stored one after the other so that a product reads memory
// strictly in order. Where there is no memory for that, MultiplyFile packs on its way what it
// multiplies. An activation row is quantised once (QuantizeRow: to int8, for float weights to
// floats) and then used with any matrix that takes the same activations. Products are made for
// panels of a few rows, so that weights are unpacked once a panel.
//
// Bit rule: an output depends on its weight row, its activation row and the instruction set alone,
// never on how many rows a call holds, how strips are split over threads, or whether the matrix is
// packed. Sums over a block are integers, hence exact; blocks are added in ascending order with one
// rounding each; sums of float weights have a fixed order. Instruction sets with fused
// multiply-add (all but x86's baseline) give the same bits.
//
// A non-finite element of an activation row makes outputs of that row NaN (with float weights:
// what their sum is) and no others.
//
// A kernel is a value of function pointers, immutable; any thread. It owns no memory: callers
// bring buffers, aligned to kAlignment where said. Nothing here allocates or fails after Make.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/result.h"
#include "kernels/instruction_set.h"

namespace kernels {

inline constexpr std::size_t kStripRows = 16;
inline constexpr std::size_t kAlignment = 64;
// Most activation rows that one pass over weights serves, on any instruction set.
inline constexpr std::size_t kMaxPanelRows = 12;

// How activation rows are quantised: int8 with one scale for so many elements; floats rounded to
// what float weights of 16 bits hold, as ggml does; or floats as they are.
enum class ActivationFormat { kBlock256, kBlock32, kFloat16, kBfloat16, kFloat32 };

// Packs one strip: `num_rows` (1..16) rows of the file's layout, `row_bytes` apart, of which
// row_width elements are packed; absent rows are 0.
using PackStripFunction = void (*)(const std::byte* rows, std::size_t num_rows,
                                   std::size_t row_bytes, std::size_t row_width, std::byte* packed);
// Adds one strip times one panel of a fixed number T of rows to `sums`, [T, kStripRows].
using StripFunction = void (*)(const std::byte* strip, std::size_t row_width,
                               const std::int32_t* panel, float* sums);
// The product of one row in the file's layout with one quantised row.
using FileRowFunction = float (*)(const std::byte* row, std::size_t row_width,
                                  const std::int32_t* activations);
using QuantizeFunction = void (*)(const float* in, std::size_t row_width, std::int32_t* out);

// Products of a strip for panels of 1..max_rows rows: multiply[T - 1].
struct StripFunctions {
  const StripFunction* multiply = nullptr;
  std::size_t max_rows = 0;
};

class MatrixKernel {
 public:
  // Whether matrices of this ggml_type and width can be packed.
  static bool Supports(int type, std::size_t row_width);

  // Errors: kUnsupported when Supports() is false, naming type and width; kInvalidInput when the
  // machine lacks `set`.
  static base::Result<MatrixKernel> Make(int type, std::size_t row_width,
                                         InstructionSet set = BestInstructionSet());

  std::size_t row_width() const { return row_width_; }
  ActivationFormat activation_format() const { return activation_format_; }
  // A row quantised for one kernel serves another.
  bool SameActivations(const MatrixKernel& other) const {
    return activation_format_ == other.activation_format_ && row_width_ == other.row_width_;
  }

  static std::size_t NumStrips(std::size_t num_rows) {
    return (num_rows + kStripRows - 1) / kStripRows;
  }
  // Bytes of a packed strip, a multiple of kAlignment; the same on every instruction set.
  std::size_t strip_bytes() const { return strip_bytes_; }
  std::size_t PackedBytes(std::size_t num_rows) const { return NumStrips(num_rows) * strip_bytes_; }

  // Packs strips [first_strip, end_strip) of a matrix. `rows` is the whole matrix in the file's
  // layout, any alignment; `packed` is [NumStrips(num_rows), strip_bytes()], aligned. Threads may
  // pack disjoint ranges of one matrix at once.
  void Pack(const std::byte* rows, std::size_t num_rows, std::size_t first_strip,
            std::size_t end_strip, std::byte* packed) const;

  // Bytes of one quantised row, a multiple of 4.
  std::size_t quantized_bytes() const { return quantized_bytes_; }
  // Quantising only copies.
  bool takes_floats() const { return activation_format_ == ActivationFormat::kFloat32; }
  // `in` is [row_width()]; `out` is quantized_bytes(), aligned to 4.
  void QuantizeRow(const float* in, std::byte* out) const;
  // Elements [begin, begin + n) of a row, written to their place in `out`, the start of the row's
  // quantised form; both multiples of granule(). Threads may share a row.
  void QuantizePart(const float* in, std::size_t begin, std::size_t n, std::byte* out) const;
  std::size_t granule() const { return granule_; }

  // Rows of a panel, at most kMaxPanelRows.
  std::size_t max_panel_rows() const { return strip_functions_.max_rows; }
  // Rows are put into as few panels as can be, of sizes that differ by one at most: rows
  // [first, second) are in panel `panel`.
  std::size_t NumPanels(std::size_t num_rows) const {
    return (num_rows + max_panel_rows() - 1) / max_panel_rows();
  }
  std::pair<std::size_t, std::size_t> PanelRows(std::size_t num_rows, std::size_t panel) const;
  // Bytes of the panels of `num_rows` rows: those of the quantised rows.
  std::size_t PanelBytes(std::size_t num_rows) const { return num_rows * quantized_bytes_; }
  // Interleaves quantised rows into panels; `rows` is [num_rows] pointers.
  // The panel of one row is the quantised row itself, so single rows need no panel of their own.
  void BuildPanels(const std::byte* const* rows, std::size_t num_rows, std::byte* panels) const;

  // out[i * out_stride + r] = row r of the matrix . activation row i, for the rows of strips
  // [first_strip, end_strip) and i < num_activations. `num_rows` is that of the matrix; `panels`
  // comes from BuildPanels of as many activations. Outputs of other strips are left alone.
  void Multiply(const std::byte* packed, std::size_t num_rows, std::size_t first_strip,
                std::size_t end_strip, const std::byte* panels, std::size_t num_activations,
                float* out, std::size_t out_stride) const;
  // The same, with the same bits, of a matrix in the file's layout: `rows` is the whole matrix, any
  // alignment. Slower by what packing takes: little with many activations, and nothing with one
  // where the type has rows of its own for that.
  void MultiplyFile(const std::byte* rows, std::size_t num_rows, std::size_t first_strip,
                    std::size_t end_strip, const std::byte* panels, std::size_t num_activations,
                    float* out, std::size_t out_stride) const;

 private:
  MatrixKernel() = default;

  struct Activations {
    const std::byte* panels = nullptr;
    std::size_t num_rows = 0;
  };
  void MultiplyFileStrip(const std::byte* rows, std::size_t num_rows, std::size_t strip,
                         const Activations& x, std::size_t first_panel, std::size_t end_panel,
                         float* out, std::size_t out_stride) const;

  std::size_t row_width_ = 0;
  std::size_t block_ = 0;  // columns of a block of the file
  std::size_t block_bytes_ = 0;
  std::size_t granule_ = 0;
  std::size_t strip_bytes_ = 0;
  std::size_t quantized_bytes_ = 0;
  ActivationFormat activation_format_ = ActivationFormat::kBlock256;
  PackStripFunction pack_ = nullptr;
  QuantizeFunction quantize_ = nullptr;
  StripFunctions strip_functions_;
  FileRowFunction file_row_ = nullptr;  // null: one row is packed like many
};

}  // namespace kernels
