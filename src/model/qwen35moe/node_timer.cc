#include "model/qwen35moe/node_timer.h"

#include <algorithm>
#include <format>
#include <string_view>

namespace model::qwen35moe {

std::string WeightKind(std::string_view name) {
  constexpr std::string_view kLayer = "blk.";
  constexpr std::string_view kWeight = ".weight";
  if (name.starts_with(kLayer)) {
    const std::size_t dot = name.find('.', kLayer.size());
    name.remove_prefix(dot == name.npos ? name.size() : dot + 1);
  }
  if (name.ends_with(kWeight)) name.remove_suffix(kWeight.size());
  return std::string(name);
}

std::string NodeKind(const ggml_tensor* node) {
  if (node->op == GGML_OP_CUSTOM) return node->name;
  for (const ggml_tensor* source : node->src) {
    if (source == nullptr || !std::string_view(source->name).ends_with(".weight")) continue;
    return std::format("{} {}", ggml_op_desc(node), WeightKind(source->name));
  }
  return ggml_op_desc(node);
}

void NodeTimer::Attach(ggml_backend_sched_t scheduler) {
  ggml_backend_sched_set_eval_callback(scheduler, &NodeTimer::OnNode, this);
  start_ = std::chrono::steady_clock::now();
}

void NodeTimer::Detach(ggml_backend_sched_t scheduler) {
  ggml_backend_sched_set_eval_callback(scheduler, nullptr, nullptr);
}

std::vector<NodeTime> NodeTimer::Times() const {
  std::vector<NodeTime> times;
  for (const auto& [what, time] : times_) times.push_back(time);
  std::ranges::sort(times, [](const NodeTime& a, const NodeTime& b) {
    return a.ms != b.ms ? a.ms > b.ms : a.what < b.what;
  });
  return times;
}

bool NodeTimer::OnNode(ggml_tensor* node, bool ask, void* self) {
  auto& timer = *static_cast<NodeTimer*>(self);
  const auto now = std::chrono::steady_clock::now();
  if (!ask) {
    NodeTime& time = timer.times_[NodeKind(node)];
    if (time.num_nodes++ == 0) time.what = NodeKind(node);
    time.ms += std::chrono::duration<double, std::milli>(now - timer.start_).count();
  }
  timer.start_ = std::chrono::steady_clock::now();
  return true;
}

}  // namespace model::qwen35moe
