#include "moe/ipc/worker_session.h"

#include <format>
#include <utility>

#include "base/quote.h"

namespace moe::ipc {
namespace {

using base::ErrorKind;
using base::Fail;

// How long WaitBatch keeps the core busy: longer than a short batch takes, shorter than what a
// worker that has much to do would lose by it.
constexpr std::chrono::microseconds kPolling(50);

std::string Describe(const ModelIdentity& model) {
  return std::format("{} {} {} with {} layers of {} experts, directory {:016x}",
                     base::Quote(model.architecture), base::Quote(model.name),
                     base::Quote(model.quantisation), model.num_layers, model.num_experts,
                     model.directory_hash);
}

}  // namespace

std::unexpected<base::Error> WorkerSession::Lost(base::Error error) const {
  if (error.kind == ErrorKind::kTimeout) error.kind = ErrorKind::kWorkerLost;
  return Fail(error.kind, "{}: {}", name_, error.message);
}

base::Result<Frame> WorkerSession::Receive(base::Deadline deadline, FrameType expected,
                                           FrameType other, std::chrono::microseconds polling) {
  auto frame = channel_.Receive(deadline, polling);
  if (!frame) return Lost(std::move(frame.error()));
  if (frame->type == FrameType::kFailure) {
    auto failure = DecodeFailure(frame->payload);
    if (!failure) return Lost(std::move(failure.error()));
    return Lost(std::move(*failure));
  }
  if (frame->type != expected && frame->type != other) {
    return Lost(
        {ErrorKind::kWorkerLost, std::format("sent a {} frame where {} was due",
                                             FrameTypeName(frame->type), FrameTypeName(expected))});
  }
  return frame;
}

base::Result<WorkerSession> WorkerSession::Open(Channel channel, std::string name,
                                                const WorkerTimeouts& timeouts) {
  WorkerSession session(std::move(channel), std::move(name), timeouts);
  auto frame = session.Receive(base::Deadline::After(timeouts.welcome), FrameType::kWelcome,
                               FrameType::kWelcome);
  if (!frame) return base::Forward(frame);
  auto welcome = DecodeWelcome(frame->payload);
  if (!welcome) return session.Lost(std::move(welcome.error()));
  session.welcome_ = std::move(*welcome);
  return session;
}

base::Result<void> WorkerSession::OrderLoad(LoadOrder order) {
  if (welcome_.model != order.model) {
    return Fail(ErrorKind::kCorruptModel,
                "{} has the model {}, not {}; start it with the same file", name_,
                Describe(welcome_.model), Describe(order.model));
  }
  order.rows.form = welcome_.form;
  int descriptor = -1;
  if (!shared_.mapped()) {
    auto shared = SharedRows::Create(order.rows);
    if (!shared) return base::Forward(shared);
    shared_ = std::move(*shared);
    descriptor = shared_.descriptor();
  }
  fingerprint_ = order.plan_fingerprint;
  auto sent = channel_.Send(FrameType::kLoad, Encode(order), base::Deadline::After(timeouts_.load),
                            descriptor);
  if (!sent) return Lost(std::move(sent.error()));
  return {};
}

base::Result<std::optional<LoadProgress>> WorkerSession::WaitLoad() {
  auto frame =
      Receive(base::Deadline::After(timeouts_.load), FrameType::kReady, FrameType::kProgress);
  if (!frame) return base::Forward(frame);
  if (frame->type == FrameType::kProgress) {
    auto progress = DecodeLoadProgress(frame->payload);
    if (!progress) return Lost(std::move(progress.error()));
    return std::optional<LoadProgress>(*progress);
  }
  auto ready = DecodeReady(frame->payload);
  if (!ready) return Lost(std::move(ready.error()));
  if (ready->plan_fingerprint != fingerprint_) {
    return Lost(
        {ErrorKind::kWorkerLost, std::format("is ready for the plan {:016x}, not for {:016x}",
                                             ready->plan_fingerprint, fingerprint_)});
  }
  return std::optional<LoadProgress>();
}

base::Result<void> WorkerSession::StartBatch(std::uint32_t layer, std::uint32_t num_rows) {
  batch_deadline_ = base::Deadline::After(timeouts_.batch);
  ++batch_;
  shared_.PublishRequest(batch_);
  auto sent = channel_.Send(
      FrameType::kBatch, Encode(BatchOrder{.number = batch_, .layer = layer, .num_rows = num_rows}),
      batch_deadline_);
  if (!sent) return Lost(std::move(sent.error()));
  return {};
}

base::Result<void> WorkerSession::WaitBatch(std::uint64_t num_pairs) {
  auto frame = Receive(batch_deadline_, FrameType::kDone, FrameType::kDone, kPolling);
  if (!frame) return base::Forward(frame);
  auto done = DecodeBatchDone(frame->payload);
  if (!done) return Lost(std::move(done.error()));
  if (done->number != batch_ || done->num_pairs != num_pairs || !shared_.SeesReply(batch_)) {
    return Lost({ErrorKind::kWorkerLost,
                 std::format("answered batch {} with {} expert rows where batch {} with {} was due",
                             done->number, done->num_pairs, batch_, num_pairs)});
  }
  return {};
}

}  // namespace moe::ipc
