#include "moe/compute/node_compute.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace moe {

NodeTeams::NodeTeams(std::vector<gg::NumaNode> nodes)
    : nodes_(std::move(nodes)), cpus_before_(1, 0) {
  ES_CHECK(!nodes_.empty());
  for (const gg::NumaNode& node : nodes_) {
    cpus_before_.push_back(cpus_before_.back() + std::max<std::size_t>(node.cpus.size(), 1));
  }
}

std::optional<TeamThread> NodeTeams::Share(std::size_t node, TeamThread thread) const {
  const std::size_t cpus = cpus_before_.back();
  std::size_t first = thread.count * cpus_before_[node] / cpus;
  std::size_t end = thread.count * cpus_before_[node + 1] / cpus;
  if (first == end) {
    first = std::min(first, thread.count - 1);
    end = first + 1;
  }
  if (thread.index < first || thread.index >= end) return std::nullopt;
  return TeamThread{.index = thread.index - first, .count = end - first};
}

void NodeTeams::Bind(TeamThread thread) const {
  struct Bound {
    const NodeTeams* teams;
    std::size_t index;
    std::size_t count;
    bool operator==(const Bound&) const = default;
  };
  static thread_local Bound bound = {};
  const Bound wanted = {this, thread.index, thread.count};
  if (bound == wanted) return;
  bound = wanted;
  for (std::size_t node = 0; node < nodes_.size(); ++node) {
    if (!Share(node, thread)) continue;
    // A system that refuses leaves the thread where it is: slower, not wrong.
    if (!nodes_[node].cpus.empty()) static_cast<void>(gg::RunOn(nodes_[node].cpus));
    return;
  }
}

NodeCompute::NodeCompute(std::unique_ptr<MoeExpertCompute> owner,
                         std::shared_ptr<const NodeTeams> teams, std::size_t node)
    : owner_(std::move(owner)), teams_(std::move(teams)), node_(node) {
  ES_CHECK(owner_ != nullptr && owner_->num_parts() == 1 && node_ < teams_->nodes().size());
}

void NodeCompute::Prepare(TeamThread thread) {
  teams_->Bind(thread);
  if (const auto member = teams_->Share(node_, thread)) owner_->Prepare(*member);
}

void NodeCompute::Expand(TeamThread thread) {
  if (const auto member = teams_->Share(node_, thread)) owner_->Expand(*member);
}

void NodeCompute::Reduce(TeamThread thread) {
  if (const auto member = teams_->Share(node_, thread)) owner_->Reduce(*member);
}

}  // namespace moe
