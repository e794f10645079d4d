// Owners of ggml's handles: each frees what it holds, exactly once.
//
// Move-only. Destruction order matters to ggml and is the user's to keep: declare members as
// devices, backends, buffers, contexts, scheduler, so that they go in reverse. Use one object from
// one thread at a time; different backends may compute on different threads. The raw handle that
// get() lends stays valid as long as its owner.
#pragma once

#include <ggml-cpp.h>

#include <cstddef>
#include <span>

#include "base/bytes.h"
#include "base/result.h"
#include "gg/devices.h"

namespace gg {

// One stream of work on a device. A device may have several.
class Backend {
 public:
  // Errors: kDeviceFailure, naming the device.
  static base::Result<Backend> Open(const Device& device);

  Backend(Backend&&) noexcept = default;
  Backend& operator=(Backend&& other) noexcept;
  // Waits for work in flight before it frees.
  ~Backend();

  ggml_backend_t get() const { return handle_.get(); }
  ggml_backend_dev_t device() const { return ggml_backend_get_device(handle_.get()); }

  // How many threads a CPU backend computes with; no effect on others. Precondition: at least 1.
  void SetThreads(int count);

 private:
  explicit Backend(ggml_backend_t handle) : handle_(handle) {}

  ggml_backend_ptr handle_;
};

// Tensors and graphs without data: ggml's no_alloc context.
class Context {
 public:
  // Room for `max_tensors` tensors and graphs of `graph_size` nodes and leaves together (0: none).
  // ggml aborts when more are made. Errors: kInternal when the host is out of memory.
  static base::Result<Context> Make(std::size_t max_tensors, std::size_t graph_size = 0);

  ggml_context* get() const { return handle_.get(); }
  // An empty graph inside this context. Precondition: within Make's `graph_size`.
  ggml_cgraph* NewGraph(std::size_t size);

 private:
  explicit Context(ggml_context* handle) : handle_(handle) {}

  ggml_context_ptr handle_;
};

// Memory of a device. Frees itself before its backend must go.
class Buffer {
 public:
  // One buffer (or several, where the device limits their size) that holds every tensor of
  // `context` that has no memory yet. Errors: kCapacity, naming device and bytes, when it cannot be
  // had, and nothing changes; kInternal when `context` has nothing to allocate.
  static base::Result<Buffer> ForContext(const Context& context, ggml_backend_buffer_type_t type);
  // `bytes` of raw memory. Errors: kCapacity.
  static base::Result<Buffer> Allocate(ggml_backend_buffer_type_t type, base::Bytes bytes);

  ggml_backend_buffer_t get() const { return handle_.get(); }
  base::Bytes size() const { return base::Bytes(ggml_backend_buffer_get_size(handle_.get())); }

 private:
  explicit Buffer(ggml_backend_buffer_t handle) : handle_(handle) {}

  ggml_backend_buffer_ptr handle_;
};

// Runs a graph over several backends. Its backends must outlive it.
class Scheduler {
 public:
  // `backends` in order of preference, a CPU one last (ggml demands it). `graph_size` bounds nodes
  // and leaves of any graph. Operations stay where their weights are (no offload of large batches).
  // Precondition: 1 to 16 backends. Errors: kInternal when ggml refuses.
  static base::Result<Scheduler> Make(std::span<const ggml_backend_t> backends,
                                      std::size_t graph_size);

  Scheduler(Scheduler&&) noexcept = default;
  Scheduler& operator=(Scheduler&& other) noexcept;
  // Waits for work in flight before it frees.
  ~Scheduler();

  ggml_backend_sched_t get() const { return handle_.get(); }

 private:
  explicit Scheduler(ggml_backend_sched_t handle) : handle_(handle) {}

  ggml_backend_sched_ptr handle_;
};

}  // namespace gg
