// NodeCompute: an owner whose memory and threads are one NUMA node's (`cpu:0,cpu:1`).
//
// The team's threads are divided among the nodes of the list, in proportion to their CPUs, and each
// computes for its node alone: a thread reads the weights that lie beside it, and the nodes work at
// the same time. Forwards to the owner that it holds what its threads are to do. Threads as
// MoeExpertCompute says.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "gg/numa.h"
#include "moe/compute/expert_compute.h"

namespace moe {

// How a team is divided among nodes. Immutable; any thread.
class NodeTeams {
 public:
  // The nodes of the list, in its order; at least one.
  explicit NodeTeams(std::vector<gg::NumaNode> nodes);

  // The place of `thread` among those that compute for nodes[node]; nullopt when it has no part in
  // that. Every node has at least one thread; with fewer threads than nodes one serves several.
  std::optional<TeamThread> Share(std::size_t node, TeamThread thread) const;
  // Binds the calling thread to the CPUs of the first node that it computes for. Cheap when it is
  // bound already.
  void Bind(TeamThread thread) const;

  std::span<const gg::NumaNode> nodes() const { return nodes_; }

 private:
  std::vector<gg::NumaNode> nodes_;
  std::vector<std::size_t> cpus_before_;  // [nodes + 1]: of the nodes in front; at least 1 a node
};

class NodeCompute final : public MoeExpertCompute {
 public:
  // Preconditions: `owner` is not nullptr and has one part; `node` is a position in teams->nodes().
  NodeCompute(std::unique_ptr<MoeExpertCompute> owner, std::shared_ptr<const NodeTeams> teams,
              std::size_t node);

  base::Result<void> Begin(const ExpertBatch& batch) override { return owner_->Begin(batch); }
  void Prepare(TeamThread thread) override;
  void Expand(TeamThread thread) override;
  void Reduce(TeamThread thread) override;
  base::Result<void> Finish() override { return owner_->Finish(); }
  ExpertPart part(std::size_t index) const override { return owner_->part(index); }
  std::size_t num_parts() const override { return owner_->num_parts(); }
  std::uint64_t num_pairs(std::size_t index) const override { return owner_->num_pairs(index); }
  ExpertTimes times() const override { return owner_->times(); }

 private:
  std::unique_ptr<MoeExpertCompute> owner_;
  std::shared_ptr<const NodeTeams> teams_;
  std::size_t node_;
};

}  // namespace moe
