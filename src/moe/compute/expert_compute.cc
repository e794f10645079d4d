#include "moe/compute/expert_compute.h"

#include <algorithm>

namespace moe {
namespace {

// Columns accumulated at a time: they stay in registers or the first cache level while the slots
// pass. Threads also share the output in whole blocks of a cache line.
constexpr std::size_t kColumns = 64;
constexpr std::size_t kLineFloats = 16;

// sum[c] += weight * vector[c]: the product is rounded, then the sum. This file is compiled
// without floating-point contraction.
void AddWeighted(const float* vector, float weight, std::size_t count, float* sum) {
  if (count == kColumns) {
    for (std::size_t c = 0; c < kColumns; ++c) sum[c] += weight * vector[c];
  } else {
    for (std::size_t c = 0; c < count; ++c) sum[c] += weight * vector[c];
  }
}

void Add(const float* vector, std::size_t count, float* sum) {
  for (std::size_t c = 0; c < count; ++c) sum[c] += vector[c];
}

const float* FindPair(std::span<const ExpertPart> parts, std::size_t pair) {
  for (const ExpertPart& part : parts) {
    if (part.form != PartForm::kPairs || part.pairs == nullptr) continue;
    if (part.pairs[pair] != nullptr) return part.pairs[pair];
  }
  return nullptr;
}

// Columns [begin, end) of one row.
void CombineRow(const ExpertBatch& batch, std::span<const ExpertPart> parts, std::size_t row,
                std::size_t begin, std::size_t end, float* out) {
  for (std::size_t column = begin; column < end; column += kColumns) {
    const std::size_t count = std::min(kColumns, end - column);
    float sum[kColumns] = {};
    for (std::size_t slot = 0; slot < batch.num_used; ++slot) {
      const std::size_t pair = row * batch.num_used + slot;
      const float* vector = FindPair(parts, pair);
      if (vector != nullptr) AddWeighted(vector + column, batch.weights[pair], count, sum);
    }
    for (const ExpertPart& part : parts) {
      if (part.form != PartForm::kSums || part.sums == nullptr) continue;
      Add(part.sums + row * batch.n_embd + column, count, sum);
    }
    std::copy_n(sum, count, out + row * batch.n_embd + column);
  }
}

}  // namespace

void CombineParts(const ExpertBatch& batch, std::span<const ExpertPart> parts, TeamThread thread,
                  float* out) {
  const std::size_t total = batch.num_rows * batch.n_embd;
  const std::size_t num_lines = (total + kLineFloats - 1) / kLineFloats;
  std::size_t at = num_lines * thread.index / thread.count * kLineFloats;
  const std::size_t end =
      std::min(total, num_lines * (thread.index + 1) / thread.count * kLineFloats);
  while (at < end) {
    const std::size_t row = at / batch.n_embd;
    const std::size_t row_begin = row * batch.n_embd;
    const std::size_t row_end = std::min(end, row_begin + batch.n_embd);
    CombineRow(batch, parts, row, at - row_begin, row_end - row_begin, out);
    at = row_end;
  }
}

}  // namespace moe
