// An owner whose worker answers anything: every step ends in a value or an error that names the
// worker.
#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "moe/ipc/worker_session.h"

namespace {

using namespace moe::ipc;

const LoadOrder kOrder = {.model = {.architecture = "examplemoe",
                                    .name = "Demo",
                                    .quantisation = "F32",
                                    .num_layers = 1,
                                    .num_experts = 2,
                                    .directory_hash = 1,
                                    .shape_hash = 2},
                          .plan_fingerprint = 77,
                          .rows = {.max_rows = 4, .num_used = 1, .n_embd = 3},
                          .owned = {1, 0}};

template <class T>
bool Ok(const base::Result<T>& result) {
  if (!result) ES_CHECK(result.error().message.starts_with("w"));
  return result.has_value();
}

void Talk(WorkerSession& session) {
  if (!Ok(session.OrderLoad(kOrder))) return;
  for (;;) {
    auto progress = session.WaitLoad();
    if (!Ok(progress)) return;
    if (!*progress) break;
  }
  while (Ok(session.StartBatch(0, 1)) && Ok(session.WaitBatch(1))) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::size_t kMaxInput = 1 << 16;  // fits the socket's buffer
  if (size > kMaxInput) return 0;
  auto ends = Channel::Pair();
  ES_CHECK(ends.has_value());
  auto& [owner, worker] = *ends;
  const auto sent = ::send(worker.descriptor(), data, size, MSG_NOSIGNAL);
  ES_CHECK(sent == static_cast<ssize_t>(size));
  ::shutdown(worker.descriptor(), SHUT_WR);
  auto session = WorkerSession::Open(std::move(owner), "w", {});
  if (Ok(session)) Talk(*session);
  return 0;
}
