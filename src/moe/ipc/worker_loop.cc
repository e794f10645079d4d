#include "moe/ipc/worker_loop.h"

#include <chrono>
#include <optional>
#include <utility>

namespace moe::ipc {
namespace {

using base::Deadline;
using base::ErrorKind;
using base::Fail;

constexpr std::chrono::seconds kSendTime(30);
constexpr std::chrono::milliseconds kProgressEvery(100);

class Connection {
 public:
  Connection(Channel channel, WorkerService& service)
      : channel_(std::move(channel)), service_(service) {}

  base::Result<void> Serve(std::stop_token stop);

 private:
  base::Result<void> Send(FrameType type, std::span<const std::byte> payload) {
    return channel_.Send(type, payload, Deadline::After(kSendTime));
  }
  base::Result<void> Answer(const Frame& frame, const std::stop_token& stop);
  base::Result<void> Load(const LoadOrder& order, const std::stop_token& stop);
  base::Result<void> Compute(const BatchOrder& order);

  Channel channel_;
  WorkerService& service_;
  SharedRows rows_;
  bool loaded_ = false;
  std::uint64_t batch_ = 0;  // number of the last one
};

base::Result<void> Connection::Load(const LoadOrder& order, const std::stop_token& stop) {
  loaded_ = false;
  if (!rows_.mapped()) {
    auto rows = SharedRows::Map(channel_.TakeDescriptor(), order.rows);
    if (!rows) return base::Forward(rows);
    rows_ = std::move(*rows);
  } else if (rows_.shape() != order.rows) {
    return Fail(ErrorKind::kInvalidInput, "a load order changes the shape of the rows");
  }
  // Nobody is left to load for once progress cannot be told.
  std::stop_source given_up;
  const std::stop_callback forward(stop, [&given_up] { given_up.request_stop(); });
  auto last = Deadline::Clock::now();
  const auto progress = [&](LoadProgress now) {
    if (channel_.PeerIsGone()) given_up.request_stop();
    // The other side may be waiting for another worker, for minutes.
    if (Deadline::Clock::now() - last < kProgressEvery || !channel_.HasRoom()) return;
    last = Deadline::Clock::now();
    if (!Send(FrameType::kProgress, Encode(now))) given_up.request_stop();
  };
  auto bytes = service_.Load(order, progress, given_up.get_token());
  if (!bytes) return base::Forward(bytes);
  loaded_ = true;
  return Send(FrameType::kReady,
              Encode(Ready{.plan_fingerprint = order.plan_fingerprint, .bytes = *bytes}));
}

base::Result<void> Connection::Compute(const BatchOrder& order) {
  if (!loaded_) return Fail(ErrorKind::kInvalidInput, "a batch came before a load order");
  if (order.number != batch_ + 1 || !rows_.SeesRequest(order.number)) {
    return Fail(ErrorKind::kInvalidInput, "batch {} came where batch {} was due", order.number,
                batch_ + 1);
  }
  if (order.num_rows > rows_.shape().max_rows) {
    return Fail(ErrorKind::kInvalidInput, "a batch has {} rows, more than {}", order.num_rows,
                rows_.shape().max_rows);
  }
  batch_ = order.number;
  auto pairs = service_.Compute(order, rows_);
  if (!pairs) return base::Forward(pairs);
  rows_.PublishReply(order.number);
  return Send(FrameType::kDone, Encode(BatchDone{.number = order.number, .num_pairs = *pairs}));
}

base::Result<void> Connection::Answer(const Frame& frame, const std::stop_token& stop) {
  if (frame.type == FrameType::kBatch) {
    auto order = DecodeBatchOrder(frame.payload);
    if (!order) return base::Forward(order);
    return Compute(*order);
  }
  if (frame.type == FrameType::kLoad) {
    auto order = DecodeLoadOrder(frame.payload);
    if (!order) return base::Forward(order);
    return Load(*order, stop);
  }
  return Fail(ErrorKind::kInvalidInput, "a worker takes no {} frame", FrameTypeName(frame.type));
}

base::Result<void> Connection::Serve(std::stop_token stop) {
  const std::stop_callback on_stop(stop, [this] { channel_.Shutdown(); });
  if (auto sent = Send(FrameType::kWelcome, Encode(service_.Describe())); !sent) return sent;
  for (;;) {
    auto frame = channel_.Receive(Deadline::Never());
    if (stop.stop_requested()) return Fail(ErrorKind::kCancelled, "stopped");
    if (!frame) {
      if (channel_.closed_in_order()) return {};
      return base::Forward(frame);
    }
    auto answered = Answer(*frame, stop);
    if (answered) continue;
    if (stop.stop_requested()) return Fail(ErrorKind::kCancelled, "stopped");
    // It may be gone already.
    static_cast<void>(Send(FrameType::kFailure, Encode(answered.error())));
    return answered;
  }
}

}  // namespace

base::Result<void> ServeConnection(Channel channel, WorkerService& service, std::stop_token stop) {
  auto served = Connection(std::move(channel), service).Serve(std::move(stop));
  service.Unload();
  return served;
}

}  // namespace moe::ipc
