#include "moe/target/unsupported.h"

#include <set>
#include <utility>

#include "base/quote.h"

namespace moe {

base::Result<void> RefuseUnsupported(const ExpertSplitTargetConfig& config) {
  std::set<std::pair<std::string, std::uint16_t>> servers;
  for (std::size_t i = 0; i < config.size(); ++i) {
    const ExpertSplitTarget& target = config.targets()[i];
    if (target.inner_place != TargetPlace::kRpc) continue;
    if (servers.emplace(target.host, target.port).second) continue;
    return base::Fail(base::ErrorKind::kUnsupported,
                      "target list item {} {}: a ggml RPC server serves one connection, and this "
                      "list has one to {}:{} already; start a second server there, with another "
                      "port, for its other device",
                      i + 1, base::Quote(target.name), target.host, target.port);
  }
  return {};
}

}  // namespace moe
