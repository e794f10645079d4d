#include "model/qwen35moe/packed_linear.h"

#include <algorithm>
#include <atomic>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"

namespace model::qwen35moe {
namespace {

// Packed bytes that one thread takes at a time.
constexpr std::size_t kPieceBytes = std::size_t{1} << 20;

}  // namespace

bool PackedLinears::Supports(const gg::GgufTensor& tensor) {
  return tensor.shape.size() == 2 && tensor.shape[1] > 0 &&
         kernels::MatrixKernel::Supports(tensor.type, tensor.shape[0]);
}

const PackedLinear* PackedLinears::Add(const gg::GgufTensor& tensor) {
  ES_CHECK(Supports(tensor) && memory_.data() == nullptr);
  auto kernel = kernels::MatrixKernel::Make(tensor.type, tensor.shape[0]);
  ES_CHECK(kernel.has_value());
  Entry& entry = matrices_.emplace_back(Entry{.linear = {.kernel = *kernel,
                                                         .num_outputs = tensor.shape[1],
                                                         .file = file_->Data(tensor).data()},
                                              .source = &tensor});
  entry.offset = total_bytes_;
  total_bytes_ += entry.linear.bytes();
  return &entry.linear;
}

base::Result<void> PackedLinears::Pack(const PackOptions& options) {
  ES_CHECK(memory_.data() == nullptr);
  if (matrices_.empty()) return {};
  auto memory = options.allocate(bytes());
  if (!memory) return base::Forward(memory);
  PackPieces(memory->data(), options);
  // Once more: packing a neighbour may have mapped pages around its own.
  for (const Entry& entry : matrices_) ReleaseSource(entry);
  if (options.stop.stop_requested()) {
    return base::Fail(base::ErrorKind::kCancelled, "packing the dense part was interrupted");
  }
  memory_ = *std::move(memory);
  for (Entry& entry : matrices_) entry.linear.packed = memory_.data() + entry.offset;
  return {};
}

std::vector<PackedLinears::Piece> PackedLinears::CutIntoPieces() const {
  std::vector<Piece> pieces;
  for (std::size_t i = 0; i < matrices_.size(); ++i) {
    const PackedLinear& linear = matrices_[i].linear;
    const std::size_t step = std::max<std::size_t>(1, kPieceBytes / linear.kernel.strip_bytes());
    for (std::size_t first = 0; first < linear.num_strips(); first += step) {
      pieces.push_back({i, first, std::min(linear.num_strips(), first + step)});
    }
  }
  return pieces;
}

base::Bytes PackedLinears::PackPiece(const Piece& piece, std::byte* base) const {
  const Entry& entry = matrices_[piece.matrix];
  const std::size_t num_rows = entry.linear.num_outputs;
  entry.linear.kernel.Pack(file_->Data(*entry.source).data(), num_rows, piece.first_strip,
                           piece.end_strip, base + entry.offset);
  // File and packed form are never resident together for more than a few pieces.
  const std::size_t row_bytes = entry.source->bytes.count() / num_rows;
  const std::size_t first = piece.first_strip * kernels::kStripRows * row_bytes;
  const std::size_t end = std::min(num_rows, piece.end_strip * kernels::kStripRows) * row_bytes;
  file_->shards()[entry.source->shard].ReleasePages(entry.source->offset + first, end - first);
  return base::Bytes(end - first);
}

void PackedLinears::PackPieces(std::byte* base, const PackOptions& options) const {
  const std::vector<Piece> pieces = CutIntoPieces();
  base::Bytes total;
  for (const Entry& entry : matrices_) total += entry.source->bytes;
  std::atomic<std::size_t> next = 0;
  std::atomic<std::uint64_t> done = 0;
  base::Bytes reported;
  const auto work = [&](bool reports) {
    while (!options.stop.stop_requested()) {
      const std::size_t at = next.fetch_add(1, std::memory_order_relaxed);
      if (at >= pieces.size()) return;
      done.fetch_add(PackPiece(pieces[at], base).count(), std::memory_order_relaxed);
      if (reports && options.progress) {
        reported = base::Bytes(done.load(std::memory_order_relaxed));
        options.progress(reported, total);
      }
    }
  };
  {
    std::vector<std::jthread> others;
    try {
      for (std::size_t i = 1; i < std::min(options.num_threads, pieces.size()); ++i) {
        others.emplace_back([&] { work(false); });
      }
    } catch (const std::system_error&) {  // those that started, and this one, do the work
    }
    work(true);
  }
  if (options.progress && reported < total && !options.stop.stop_requested()) {
    options.progress(total, total);
  }
}

void PackedLinears::ReleaseSource(const Entry& entry) const {
  file_->shards()[entry.source->shard].ReleasePages(entry.source->offset,
                                                    entry.source->bytes.count());
}

}  // namespace model::qwen35moe
