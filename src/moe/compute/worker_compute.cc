#include "moe/compute/worker_compute.h"

#include <algorithm>
#include <format>
#include <utility>

namespace moe {
namespace {

using base::ErrorKind;
using base::Fail;

}  // namespace

WorkerCompute::WorkerCompute(std::string name, ipc::WorkerSession session,
                             std::shared_ptr<WorkerChild> child)
    : name_(std::move(name)),
      welcome_(session.welcome()),
      child_(std::move(child)),
      session_(std::move(session)) {}

std::unexpected<base::Error> WorkerCompute::Lose(base::Error error) {
  session_.reset();
  if (child_ != nullptr && error.kind != ErrorKind::kCapacity) {
    const std::string how = child_->End();
    if (!how.empty()) error.message += std::format(" (its process {})", how);
  }
  child_.reset();
  lost_ = std::move(error);
  return std::unexpected(*lost_);
}

base::Result<void> WorkerCompute::OrderLoad(const ExpertSplitRuntime& runtime, TargetId target,
                                            ipc::LoadOrder order) {
  if (lost_) return std::unexpected(*lost_);
  num_experts_ = runtime.num_experts();
  owned_.assign(runtime.num_layers() * num_experts_, 0);
  for (std::size_t l = 0; l < runtime.num_layers(); ++l) {
    for (const ExpertId expert : runtime.experts(LayerId(l), target)) {
      owned_[l * num_experts_ + expert.index()] = 1;
    }
  }
  order.owned = owned_;
  order.plan_fingerprint = runtime.plan_fingerprint();
  if (auto sent = session_->OrderLoad(std::move(order)); !sent)
    return Lose(std::move(sent.error()));
  return {};
}

base::Result<std::optional<ipc::LoadProgress>> WorkerCompute::WaitLoad() {
  if (lost_) return std::unexpected(*lost_);
  auto progress = session_->WaitLoad();
  if (!progress) return Lose(std::move(progress.error()));
  return progress;
}

bool WorkerCompute::NoticeLoss() {
  if (session_ && session_->PeerIsGone()) {
    static_cast<void>(Lose(
        {ErrorKind::kWorkerLost, std::format("{}: the other side closed the connection", name_)}));
  }
  return lost_.has_value();
}

std::size_t WorkerCompute::FindPairs(const ExpertBatch& batch) {
  const std::span<const std::uint8_t> owned =
      std::span(owned_).subspan(batch.layer.index() * num_experts_, num_experts_);
  const float* const results = session_->shared().results();
  pairs_.assign(batch.num_rows * batch.num_used, nullptr);
  std::size_t count = 0;
  for (std::size_t pair = 0; pair < pairs_.size(); ++pair) {
    if (owned[static_cast<std::size_t>(batch.ids[pair])] == 0) continue;
    pairs_[pair] = results + count * batch.n_embd;
    ++count;
  }
  return count;
}

base::Result<void> WorkerCompute::Begin(const ExpertBatch& batch) {
  num_batch_pairs_ = 0;
  if (lost_) return std::unexpected(*lost_);
  const ipc::SharedRows& shared = session_->shared();
  if (!shared.mapped() || batch.num_rows > shared.shape().max_rows ||
      batch.num_used != shared.shape().num_used || batch.n_embd != shared.shape().n_embd ||
      (batch.layer.index() + 1) * num_experts_ > owned_.size()) {
    return Fail(ErrorKind::kInternal,
                "a batch of {} rows of layer {} does not fit what {} was loaded for",
                batch.num_rows, batch.layer.value, name_);
  }
  const std::size_t count = FindPairs(batch);
  if (count == 0) return {};
  std::copy_n(batch.rows, batch.num_rows * batch.n_embd, shared.rows());
  std::copy_n(batch.ids, pairs_.size(), shared.ids());
  std::copy_n(batch.weights, pairs_.size(), shared.weights());
  auto started =
      session_->StartBatch(batch.layer.value, static_cast<std::uint32_t>(batch.num_rows));
  if (!started) return Lose({ErrorKind::kWorkerLost, std::move(started.error().message)});
  num_batch_pairs_ = count;
  return {};
}

base::Result<void> WorkerCompute::Finish() {
  if (num_batch_pairs_ == 0) return {};
  auto done = session_->WaitBatch(num_batch_pairs_);
  if (!done) {
    num_batch_pairs_ = 0;
    return Lose({ErrorKind::kWorkerLost, std::move(done.error().message)});
  }
  num_pairs_.fetch_add(num_batch_pairs_, std::memory_order_relaxed);
  return {};
}

ExpertPart WorkerCompute::part(std::size_t) const {
  const bool pairs = welcome_.form == ipc::ResultForm::kPairs;
  ExpertPart part{.form = pairs ? PartForm::kPairs : PartForm::kSums};
  if (num_batch_pairs_ == 0) return part;
  if (pairs) {
    part.pairs = pairs_.data();
  } else {
    part.sums = session_->shared().results();
  }
  return part;
}

}  // namespace moe
