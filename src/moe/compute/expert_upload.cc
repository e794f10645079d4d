#include "moe/compute/expert_upload.h"

#include <ggml-backend.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

namespace moe {
namespace {

// A stretch of the file that is a stretch of the stack too.
struct Run {
  const std::byte* from = nullptr;
  std::size_t to = 0;  // byte of the stack
  std::size_t size = 0;
};

std::vector<Run> RunsOf(const ExpertMatrix& matrix, std::span<const ExpertId> experts) {
  std::vector<Run> runs;
  for (std::size_t i = 0; i < experts.size(); ++i) {
    if (i > 0 && experts[i].index() == experts[i - 1].index() + 1) {
      runs.back().size += matrix.expert_bytes;
    } else {
      runs.push_back({.from = matrix.expert(experts[i]),
                      .to = i * matrix.expert_bytes,
                      .size = matrix.expert_bytes});
    }
  }
  return runs;
}

// Bytes [begin, begin + piece.size()) of the stack.
void Gather(std::span<const Run> runs, std::size_t begin, std::span<std::byte> piece) {
  const std::size_t end = begin + piece.size();
  for (const Run& run : runs) {
    const std::size_t first = std::max(begin, run.to);
    const std::size_t last = std::min(end, run.to + run.size);
    if (first >= last) continue;
    std::memcpy(piece.data() + (first - begin), run.from + (first - run.to), last - first);
  }
}

}  // namespace

void UploadExperts(const ExpertMatrix& matrix, std::span<const ExpertId> experts,
                   ggml_tensor* stack, UploadForm form,
                   const std::function<void(base::Bytes)>& uploaded) {
  const auto send = [&](const std::byte* from, std::size_t to, std::size_t size) {
    ggml_backend_tensor_set(stack, from, to, size);
    if (uploaded) uploaded(base::Bytes(size));
  };
  const std::vector<Run> runs = RunsOf(matrix, experts);
  if (form != UploadForm::kLarge) {
    for (const Run& run : runs) {
      const std::size_t most =
          form == UploadForm::kSmall ? static_cast<std::size_t>(kSmallPiece.count()) : run.size;
      for (std::size_t at = 0; at < run.size; at += most) {
        send(run.from + at, run.to + at, std::min(most, run.size - at));
      }
    }
    return;
  }
  const std::size_t total = experts.size() * matrix.expert_bytes;
  const std::size_t num_pieces = (total + kLargePiece.count() - 1) / kLargePiece.count();
  std::vector<std::byte> piece;
  for (std::size_t p = 0; p < num_pieces; ++p) {
    const std::size_t begin = total / num_pieces * p;
    const std::size_t end = p + 1 == num_pieces ? total : begin + total / num_pieces;
    piece.resize(end - begin);
    Gather(runs, begin, piece);
    send(piece.data(), begin, piece.size());
  }
}

}  // namespace moe
