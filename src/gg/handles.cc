#include "gg/handles.h"

#include <utility>
#include <vector>

#include "base/check.h"

namespace gg {
namespace {

constexpr std::size_t kMaxSchedulerBackends = 16;

}  // namespace

base::Result<Backend> Backend::Open(const Device& device) {
  ggml_backend_t handle = ggml_backend_dev_init(device.handle, nullptr);
  if (handle == nullptr) {
    return base::Fail(base::ErrorKind::kDeviceFailure,
                      "{} ({}) cannot be opened; leave it out of --targets", device.name,
                      device.description);
  }
  return Backend(handle);
}

Backend& Backend::operator=(Backend&& other) noexcept {
  std::swap(handle_, other.handle_);
  return *this;
}

Backend::~Backend() {
  if (handle_) ggml_backend_synchronize(handle_.get());
}

void Backend::SetThreads(int count) {
  ES_CHECK(count >= 1);
  ggml_backend_reg_t backend = ggml_backend_dev_backend_reg(device());
  auto set = reinterpret_cast<ggml_backend_set_n_threads_t>(
      ggml_backend_reg_get_proc_address(backend, "ggml_backend_set_n_threads"));
  if (set != nullptr) set(handle_.get(), count);
}

base::Result<Context> Context::Make(std::size_t max_tensors, std::size_t graph_size) {
  std::size_t bytes = max_tensors * ggml_tensor_overhead();
  if (graph_size > 0) bytes += ggml_graph_overhead_custom(graph_size, /*grads=*/false);
  // A context of no bytes would get ggml's default size; one tensor more costs nothing.
  bytes += ggml_tensor_overhead();
  ggml_context* handle = ggml_init({.mem_size = bytes, .mem_buffer = nullptr, .no_alloc = true});
  if (handle == nullptr) {
    return base::Fail(base::ErrorKind::kInternal, "no memory for {} tensors", max_tensors);
  }
  return Context(handle);
}

ggml_cgraph* Context::NewGraph(std::size_t size) {
  return ggml_new_graph_custom(handle_.get(), size, /*grads=*/false);
}

base::Result<Buffer> Buffer::ForContext(const Context& context, ggml_backend_buffer_type_t type) {
  const base::Bytes bytes(ggml_backend_alloc_ctx_tensors_from_buft_size(context.get(), type));
  if (bytes == base::Bytes()) {
    return base::Fail(base::ErrorKind::kInternal, "no tensor to allocate in {}",
                      ggml_backend_buft_name(type));
  }
  ggml_backend_buffer_t handle = ggml_backend_alloc_ctx_tensors_from_buft(context.get(), type);
  if (handle == nullptr) {
    return base::Fail(base::ErrorKind::kCapacity, "{} has no {} to give",
                      ggml_backend_buft_name(type), base::FormatBytes(bytes));
  }
  return Buffer(handle);
}

base::Result<Buffer> Buffer::Allocate(ggml_backend_buffer_type_t type, base::Bytes bytes) {
  ggml_backend_buffer_t handle = ggml_backend_buft_alloc_buffer(type, bytes.count());
  if (handle == nullptr) {
    return base::Fail(base::ErrorKind::kCapacity, "{} has no {} to give",
                      ggml_backend_buft_name(type), base::FormatBytes(bytes));
  }
  return Buffer(handle);
}

base::Result<Scheduler> Scheduler::Make(std::span<const ggml_backend_t> backends,
                                        std::size_t graph_size) {
  ES_CHECK(!backends.empty() && backends.size() <= kMaxSchedulerBackends);
  std::vector<ggml_backend_t> list(backends.begin(), backends.end());
  ggml_backend_sched_t handle =
      ggml_backend_sched_new(list.data(), nullptr, static_cast<int>(list.size()), graph_size,
                             /*parallel=*/false, /*op_offload=*/false);
  if (handle == nullptr) {
    return base::Fail(base::ErrorKind::kInternal, "ggml made no scheduler for {} backends",
                      list.size());
  }
  return Scheduler(handle);
}

Scheduler& Scheduler::operator=(Scheduler&& other) noexcept {
  std::swap(handle_, other.handle_);
  return *this;
}

Scheduler::~Scheduler() {
  if (handle_) ggml_backend_sched_synchronize(handle_.get());
}

}  // namespace gg
