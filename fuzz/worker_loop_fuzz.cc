// A worker whose owner sends anything: the connection ends, the process does not, and the service
// is unloaded.
#include <sys/socket.h>

#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "moe/ipc/worker_loop.h"

namespace {

using namespace moe::ipc;

const moe::ModelIdentity kModel = {.architecture = "examplemoe",
                                   .name = "Demo",
                                   .quantisation = "F32",
                                   .num_layers = 1,
                                   .num_experts = 2,
                                   .directory_hash = 1,
                                   .shape_hash = 2};

class Service final : public WorkerService {
 public:
  Welcome Describe() override { return {.model = kModel, .target = "cpu"}; }
  base::Result<base::Bytes> Load(const LoadOrder& order, const std::function<void(LoadProgress)>&,
                                 std::stop_token) override {
    ES_CHECK(order.owned.size() == std::size_t{order.model.num_layers} * order.model.num_experts);
    return base::Bytes(1);
  }
  base::Result<std::uint64_t> Compute(const BatchOrder& batch, const SharedRows& rows) override {
    ES_CHECK(batch.num_rows <= rows.shape().max_rows);
    return batch.num_rows;
  }
  void Unload() override { unloaded = true; }

  bool unloaded = false;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::size_t kMaxInput = 1 << 16;  // fits the socket's buffer
  if (size > kMaxInput) return 0;
  auto ends = Channel::Pair();
  ES_CHECK(ends.has_value());
  auto& [owner, worker] = *ends;
  const auto sent = ::send(owner.descriptor(), data, size, MSG_NOSIGNAL);
  ES_CHECK(sent == static_cast<ssize_t>(size));
  ::shutdown(owner.descriptor(), SHUT_WR);
  Service service;
  static_cast<void>(ServeConnection(std::move(worker), service, {}));
  ES_CHECK(service.unloaded);
  return 0;
}
