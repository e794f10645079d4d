// Targets that are only assumed, to plan for a machine that one does not have.
//
//     list = item *("," item)
//     item = target "=" SPEED "/s" ["@" SIZE]     as in cuda:0=900GB/s@24GiB
//
// The target as in a target list; SPEED (a SIZE a second) is how fast it reads expert weights, its
// memory's bandwidth; SIZE is how much memory it has in all. Pure values; any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "moe/target/capacity.h"
#include "moe/target/target_config.h"

namespace moe {

struct AssumedTarget {
  std::string name;                   // as a target list prints it
  base::Bytes bytes_per_second;       // above 0
  std::optional<base::Bytes> memory;  // in all; above 0
  bool is_cpu = false;                // `cpu`, whose memory is the host's

  friend bool operator==(const AssumedTarget&, const AssumedTarget&) = default;
};

// An empty text is an empty list. Errors: kInvalidInput, naming the item, its position, the
// offending text and what is accepted.
base::Result<std::vector<AssumedTarget>> ParseAssumedTargets(std::string_view list);

// Nullptr when the list has no such target.
const AssumedTarget* FindAssumed(const std::vector<AssumedTarget>& assumed, std::string_view name);

// What another probe sees, with the memory of assumed targets in place of the machine's. Both
// outlive it.
class AssumedMemoryProbe final : public MemoryProbe {
 public:
  AssumedMemoryProbe(MemoryProbe& machine, const std::vector<AssumedTarget>& assumed)
      : machine_(machine), assumed_(assumed) {}

  std::optional<TargetMemory> Target(const ExpertSplitTarget& target) override;
  HostMemory Host() override;
  std::vector<std::string> PresentTargets() override;

 private:
  MemoryProbe& machine_;
  const std::vector<AssumedTarget>& assumed_;
};

}  // namespace moe
