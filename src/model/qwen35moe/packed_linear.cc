#include "model/qwen35moe/packed_linear.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <system_error>
#include <thread>
#include <vector>

#include "base/check.h"

namespace model::qwen35moe {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
// Packed bytes that one thread takes at a time.
constexpr std::size_t kPieceBytes = std::size_t{1} << 20;

constexpr std::size_t RoundUp(std::size_t value, std::size_t step) {
  return (value + step - 1) / step * step;
}

// Strips of one matrix that one thread packs in one go.
struct Piece {
  std::size_t matrix = 0;
  std::size_t first_strip = 0;
  std::size_t end_strip = 0;
};

}  // namespace

void UnmapMemory::operator()(std::byte* address) const { ::munmap(address, size); }

bool PackedLinears::Supports(const gg::GgufTensor& tensor) {
  return tensor.shape.size() == 2 && tensor.shape[1] > 0 &&
         kernels::MatrixKernel::Supports(tensor.type, tensor.shape[0]);
}

const PackedLinear* PackedLinears::Add(const gg::GgufTensor& tensor) {
  ES_CHECK(Supports(tensor) && memory_ == nullptr);
  auto kernel = kernels::MatrixKernel::Make(tensor.type, tensor.shape[0]);
  ES_CHECK(kernel.has_value());
  Entry& entry = matrices_.emplace_back(
      Entry{.linear = {.kernel = *kernel, .num_outputs = tensor.shape[1]}, .source = &tensor});
  entry.offset = total_bytes_;
  total_bytes_ += entry.linear.bytes();
  return &entry.linear;
}

base::Result<void> PackedLinears::Pack(std::size_t num_threads) {
  ES_CHECK(memory_ == nullptr);
  if (matrices_.empty()) return {};
  // Room to start at a huge page.
  const std::size_t size = RoundUp(total_bytes_, kHugePage) + kHugePage;
  void* mapped = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) {
    return base::Fail(base::ErrorKind::kCapacity, "{}: no memory to repack {} of the dense part",
                      file_->name(), base::FormatBytes(bytes()));
  }
  // Where the kernel has no huge pages, small ones do as well.
  static_cast<void>(::madvise(mapped, size, MADV_HUGEPAGE));
  memory_ = {static_cast<std::byte*>(mapped), UnmapMemory{size}};
  const auto address = reinterpret_cast<std::uintptr_t>(mapped);
  std::byte* base = memory_.get() + (RoundUp(address, kHugePage) - address);
  PackPieces(base, num_threads);
  for (Entry& entry : matrices_) {
    entry.linear.packed = base + entry.offset;
    // Once more: packing a neighbour may have mapped pages around its own.
    ReleaseSource(entry);
  }
  return {};
}

void PackedLinears::PackPieces(std::byte* base, std::size_t num_threads) const {
  std::vector<Piece> pieces;
  std::vector<std::atomic<std::size_t>> pieces_left(matrices_.size());
  for (std::size_t i = 0; i < matrices_.size(); ++i) {
    const PackedLinear& linear = matrices_[i].linear;
    const std::size_t step = std::max<std::size_t>(1, kPieceBytes / linear.kernel.strip_bytes());
    for (std::size_t first = 0; first < linear.num_strips(); first += step) {
      pieces.push_back({i, first, std::min(linear.num_strips(), first + step)});
      ++pieces_left[i];
    }
  }
  std::atomic<std::size_t> next = 0;
  const auto work = [&] {
    for (std::size_t at = next++; at < pieces.size(); at = next++) {
      const Piece& piece = pieces[at];
      const Entry& entry = matrices_[piece.matrix];
      entry.linear.kernel.Pack(file_->Data(*entry.source).data(), entry.linear.num_outputs,
                               piece.first_strip, piece.end_strip, base + entry.offset);
      // File and packed form are never resident together for more than a few matrices.
      if (--pieces_left[piece.matrix] == 0) ReleaseSource(entry);
    }
  };
  std::vector<std::jthread> others;
  for (std::size_t i = 1; i < std::min(num_threads, pieces.size()); ++i) {
    try {
      others.emplace_back(work);
    } catch (const std::system_error&) {
      break;  // fewer threads do the same work
    }
  }
  work();
}

void PackedLinears::ReleaseSource(const Entry& entry) const {
  file_->shards()[entry.source->shard].ReleasePages(entry.source->offset,
                                                    entry.source->bytes.count());
}

}  // namespace model::qwen35moe
