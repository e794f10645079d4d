#include "moe/ipc/shared_rows.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace moe::ipc {
namespace {

using base::Bytes;
using base::ErrorKind;
using base::Fail;

constexpr std::uint64_t kAlignment = 64;
constexpr std::size_t kRequestAt = 0;
// A cache line of its own: the two sides write one word each.
constexpr std::size_t kReplyAt = kAlignment;
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;

static_assert(std::atomic_ref<std::uint64_t>::is_always_lock_free, "shared by two processes");

// Offsets of the arrays in the file.
struct Layout {
  explicit Layout(const RowsShape& shape) {
    const std::uint64_t max_rows = shape.max_rows;
    const std::uint64_t pairs = max_rows * shape.num_used;
    rows = Place(2 * kAlignment, 0);
    ids = Place(rows, max_rows * shape.n_embd);
    weights = Place(ids, pairs);
    results = Place(weights, pairs);
    const std::uint64_t vectors = shape.form == ResultForm::kPairs ? pairs : max_rows;
    end = results + sizeof(float) * vectors * shape.n_embd;
  }

  // Where the next array begins behind `count` words of four bytes at `from`.
  static std::uint64_t Place(std::uint64_t from, std::uint64_t count) {
    return (from + sizeof(float) * count + kAlignment - 1) / kAlignment * kAlignment;
  }

  std::uint64_t rows = 0;
  std::uint64_t ids = 0;
  std::uint64_t weights = 0;
  std::uint64_t results = 0;
  std::uint64_t end = 0;
};

}  // namespace

Bytes SharedRows::Size(const RowsShape& shape) { return Bytes(Layout(shape).end); }

base::Result<SharedRows> SharedRows::Create(const RowsShape& shape) {
  const Bytes size = Size(shape);
  base::UniqueFd file(::memfd_create("expert-split-rows", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file.valid() || ::ftruncate(file.get(), static_cast<off_t>(size.count())) != 0 ||
      ::fcntl(file.get(), F_ADD_SEALS, kSeals | F_SEAL_SEAL) != 0) {
    return Fail(ErrorKind::kIo, "cannot make {} of shared memory: {}", base::FormatBytes(size),
                std::strerror(errno));
  }
  return MapSized(std::move(file), shape);
}

base::Result<SharedRows> SharedRows::Map(base::UniqueFd file, const RowsShape& shape) {
  const std::uint64_t size = Size(shape).count();
  struct stat status = {};
  if (!file.valid() || ::fstat(file.get(), &status) != 0) {
    return Fail(ErrorKind::kWorkerLost, "the other side passed no shared memory");
  }
  if (static_cast<std::uint64_t>(status.st_size) != size) {
    return Fail(ErrorKind::kWorkerLost, "the shared memory has {} bytes instead of {}",
                status.st_size, size);
  }
  const int seals = ::fcntl(file.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals) {
    return Fail(ErrorKind::kWorkerLost, "the shared memory is not sealed against changes of size");
  }
  return MapSized(std::move(file), shape);
}

base::Result<SharedRows> SharedRows::MapSized(base::UniqueFd file, const RowsShape& shape) {
  SharedRows shared;
  shared.size_ = static_cast<std::size_t>(Size(shape).count());
  void* memory = ::mmap(nullptr, shared.size_, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (memory == MAP_FAILED) {
    return Fail(ErrorKind::kIo, "cannot map {} of shared memory: {}",
                base::FormatBytes(Size(shape)), std::strerror(errno));
  }
  shared.memory_ = static_cast<std::byte*>(memory);
  shared.file_ = std::move(file);
  shared.shape_ = shape;
  return shared;
}

SharedRows::SharedRows(SharedRows&& other) noexcept
    : file_(std::move(other.file_)),
      memory_(std::exchange(other.memory_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      shape_(other.shape_) {}

SharedRows& SharedRows::operator=(SharedRows&& other) noexcept {
  std::swap(file_, other.file_);
  std::swap(memory_, other.memory_);
  std::swap(size_, other.size_);
  std::swap(shape_, other.shape_);
  return *this;
}

SharedRows::~SharedRows() {
  if (memory_ != nullptr) ::munmap(memory_, size_);
}

template <class T>
T* SharedRows::At(std::uint64_t offset) const {
  return reinterpret_cast<T*>(memory_ + offset);
}

float* SharedRows::rows() const { return At<float>(Layout(shape_).rows); }
std::int32_t* SharedRows::ids() const { return At<std::int32_t>(Layout(shape_).ids); }
float* SharedRows::weights() const { return At<float>(Layout(shape_).weights); }
float* SharedRows::results() const { return At<float>(Layout(shape_).results); }

std::atomic_ref<std::uint64_t> SharedRows::Word(std::size_t offset) const {
  return std::atomic_ref<std::uint64_t>(*At<std::uint64_t>(offset));
}

void SharedRows::PublishRequest(std::uint64_t number) const {
  Word(kRequestAt).store(number, std::memory_order_release);
}
void SharedRows::PublishReply(std::uint64_t number) const {
  Word(kReplyAt).store(number, std::memory_order_release);
}
bool SharedRows::SeesRequest(std::uint64_t number) const {
  return Word(kRequestAt).load(std::memory_order_acquire) == number;
}
bool SharedRows::SeesReply(std::uint64_t number) const {
  return Word(kReplyAt).load(std::memory_order_acquire) == number;
}

}  // namespace moe::ipc
