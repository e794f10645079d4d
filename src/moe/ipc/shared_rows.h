// SharedRows: the memory in which a batch and its results lie, shared by two processes.
//
// An anonymous file (memfd) that the owner of a worker makes, seals against any change of size and
// passes over the channel. Both sides compute the layout from the same RowsShape and check the
// file's size and seals against it; nothing in the memory says where anything is.
//
// Ordering. The owner writes rows, ids and weights, then stores the batch's number in the request
// word with release order, then sends the batch frame. The worker receives the frame and loads the
// word with acquire order: when it reads that number, it sees everything written before. Results go
// back the same way over the reply word. Each array is written by one side only, between those two
// points; the socket only wakes the other side and carries no ordering.
//
// Threads: one on each side, as the ordering says. Move-only.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/bytes.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "moe/ipc/messages.h"

namespace moe::ipc {

class SharedRows {
 public:
  // Size of the file for `shape`.
  static base::Bytes Size(const RowsShape& shape);

  // Makes and seals the file. Errors: kCapacity or kIo when the system refuses it.
  static base::Result<SharedRows> Create(const RowsShape& shape);
  // Maps a file that was received. Errors: kWorkerLost when it has another size than `shape` says
  // or lacks a seal; kIo when it cannot be mapped.
  static base::Result<SharedRows> Map(base::UniqueFd file, const RowsShape& shape);

  SharedRows() = default;
  SharedRows(SharedRows&& other) noexcept;
  SharedRows& operator=(SharedRows&& other) noexcept;
  SharedRows(const SharedRows&) = delete;
  SharedRows& operator=(const SharedRows&) = delete;
  ~SharedRows();

  bool mapped() const { return memory_ != nullptr; }
  const RowsShape& shape() const { return shape_; }
  // To be passed to the other side; owned by this.
  int descriptor() const { return file_.get(); }

  float* rows() const;        // [max_rows, n_embd]
  std::int32_t* ids() const;  // [max_rows, num_used]
  float* weights() const;     // [max_rows, num_used]
  // kPairs: [max_rows * num_used, n_embd], the first of them used; kSums: [max_rows, n_embd].
  float* results() const;

  // Owner, after it wrote batch `number`; worker, after it wrote the results.
  void PublishRequest(std::uint64_t number) const;
  void PublishReply(std::uint64_t number) const;
  // Whether that was published; then what was written before it can be read.
  bool SeesRequest(std::uint64_t number) const;
  bool SeesReply(std::uint64_t number) const;

 private:
  static base::Result<SharedRows> MapSized(base::UniqueFd file, const RowsShape& shape);
  std::atomic_ref<std::uint64_t> Word(std::size_t offset) const;
  template <class T>
  T* At(std::uint64_t offset) const;

  base::UniqueFd file_;
  std::byte* memory_ = nullptr;
  std::size_t size_ = 0;
  RowsShape shape_;
};

}  // namespace moe::ipc
