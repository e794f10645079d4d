// The worker's side of a connection: welcome, load orders, batches.
//
// Whoever connects is not trusted: what it sends is checked before the service sees it, and what is
// wrong ends the connection, never the process. One connection at a time, on the caller's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <stop_token>

#include "base/bytes.h"
#include "base/result.h"
#include "moe/ipc/channel.h"
#include "moe/ipc/messages.h"
#include "moe/ipc/shared_rows.h"

namespace moe::ipc {

// What a worker hosts.
class WorkerService {
 public:
  virtual ~WorkerService() = default;

  virtual Welcome Describe() = 0;
  // Owns the units of `order` instead of those it owns now. Checks the model. Errors: kCorruptModel
  // naming both models; kCapacity, kUnsupported, kDeviceFailure; kCancelled when `stop` is
  // requested. After an error it owns nothing.
  virtual base::Result<base::Bytes> Load(const LoadOrder& order,
                                         const std::function<void(LoadProgress)>& progress,
                                         std::stop_token stop) = 0;
  // Computes what it owns of the batch in `rows` and writes the results there; returns the number
  // of pairs. The ids and weights there are the other side's and may change at any time. Errors:
  // kInvalidInput when the batch does not fit the model; those of the compute object.
  virtual base::Result<std::uint64_t> Compute(const BatchOrder& batch, const SharedRows& rows) = 0;
  // Owns nothing any more.
  virtual void Unload() = 0;
};

// Serves until the other side closes the connection; then, and after an error, the service is
// unloaded. Errors: kCancelled once `stop` is requested; what the other side did wrong or the
// service could not do (which the other side is told).
base::Result<void> ServeConnection(Channel channel, WorkerService& service, std::stop_token stop);

}  // namespace moe::ipc
