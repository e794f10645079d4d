// WorkerSession: a connection to a worker as seen by the process that uses it.
//
// Open reads the worker's welcome; OrderLoad and WaitLoad give it units, more than once if need be;
// StartBatch and WaitBatch run one batch at a time, whose rows the caller wrote into shared() and
// whose results it finds there. Every wait has a deadline. Whatever goes wrong, the session is of
// no more use: the worker is lost. Move-only; one thread at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "base/deadline.h"
#include "base/result.h"
#include "moe/ipc/channel.h"
#include "moe/ipc/messages.h"
#include "moe/ipc/shared_rows.h"

namespace moe::ipc {

struct WorkerTimeouts {
  std::chrono::milliseconds welcome = std::chrono::seconds(60);  // opening a device takes its time
  std::chrono::milliseconds load = std::chrono::seconds(60);     // between two signs of life
  std::chrono::milliseconds batch = std::chrono::seconds(30);    // from StartBatch to the results
};

class WorkerSession {
 public:
  // `name` is the target's, for messages. Errors: kWorkerLost when the other side is gone, speaks
  // another protocol or says nothing in time; what the worker reports instead of a welcome.
  static base::Result<WorkerSession> Open(Channel channel, std::string name,
                                          const WorkerTimeouts& timeouts);

  const Welcome& welcome() const { return welcome_; }

  // Sends the order (order.rows.form is set here) and returns; WaitLoad says how it goes. The shape
  // of the rows is the same in every order of a session. Errors: kCorruptModel naming both models
  // when the worker has another one; kIo or kCapacity when there is no shared memory; kWorkerLost.
  base::Result<void> OrderLoad(LoadOrder order);
  // The next progress, or nothing when everything is loaded. Errors: those the worker reports
  // (kCapacity, kUnsupported, ...); kWorkerLost.
  base::Result<std::optional<LoadProgress>> WaitLoad();

  // For ShutdownOnStop.
  int descriptor() const { return channel_.descriptor(); }
  // Whether the worker is gone, as far as one can know without asking it.
  bool PeerIsGone() const { return channel_.PeerIsGone(); }

  const SharedRows& shared() const { return shared_; }

  // Hands over the batch whose `num_rows` rows, ids and weights lie in shared(). Precondition:
  // loaded, at most max_rows. Errors: kWorkerLost.
  base::Result<void> StartBatch(std::uint32_t layer, std::uint32_t num_rows);
  // Waits for the results, `num_pairs` of them; keeps the core busy for a moment before it sleeps.
  // Errors: kWorkerLost.
  base::Result<void> WaitBatch(std::uint64_t num_pairs);

 private:
  WorkerSession(Channel channel, std::string name, const WorkerTimeouts& timeouts)
      : channel_(std::move(channel)), name_(std::move(name)), timeouts_(timeouts) {}

  // A frame of one of two types; a failure frame is the error it holds.
  base::Result<Frame> Receive(base::Deadline deadline, FrameType expected, FrameType other,
                              std::chrono::microseconds polling = {});
  // The error as one of this worker.
  std::unexpected<base::Error> Lost(base::Error error) const;

  Channel channel_;
  std::string name_;
  WorkerTimeouts timeouts_;
  Welcome welcome_;
  SharedRows shared_;
  std::uint64_t fingerprint_ = 0;  // of the order in progress
  std::uint64_t batch_ = 0;        // number of the last one started
  base::Deadline batch_deadline_ = base::Deadline::Never();
};

}  // namespace moe::ipc
