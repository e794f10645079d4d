#include "server/metrics.h"

#include <format>
#include <string_view>
#include <vector>

namespace server {
namespace {

std::string Escaped(std::string_view label) {
  std::string text;
  for (const char c : label) {
    if (c == '\\' || c == '"') text += '\\';
    if (c == '\n') {
      text += "\\n";
    } else {
      text += c;
    }
  }
  return text;
}

using Labels = std::vector<std::pair<std::string_view, std::string>>;

class Writer {
 public:
  void Family(std::string_view name, std::string_view type, std::string_view help) {
    name_ = name;
    text_ += std::format("# HELP expert_split_{} {}\n# TYPE expert_split_{} {}\n", name, help, name,
                         type);
  }

  template <class Number>
  void Sample(Number value, const Labels& labels = {}, std::string_view suffix = "") {
    std::string inside;
    for (const auto& [key, label] : labels) {
      inside += std::format("{}{}=\"{}\"", inside.empty() ? "" : ",", key, Escaped(label));
    }
    text_ += std::format("expert_split_{}{}{}{}{} {}\n", name_, suffix, inside.empty() ? "" : "{",
                         inside, inside.empty() ? "" : "}", value);
  }

  template <class Number>
  void Single(std::string_view name, std::string_view type, std::string_view help, Number value) {
    Family(name, type, help);
    Sample(value);
  }

  void Histogram(std::string_view name, std::string_view help,
                 const engine::DurationHistogram& histogram) {
    Family(name, "histogram", help);
    std::uint64_t below = 0;
    for (std::size_t i = 0; i < histogram.kBounds.size(); ++i) {
      below += histogram.counts()[i];
      Sample(below, {{"le", std::format("{}", histogram.kBounds[i])}}, "_bucket");
    }
    Sample(histogram.count(), {{"le", "+Inf"}}, "_bucket");
    Sample(histogram.sum_seconds(), {}, "_sum");
    Sample(histogram.count(), {}, "_count");
  }

  const std::string& text() const { return text_; }

 private:
  std::string text_;
  std::string_view name_;
};

void WriteHttp(Writer& out, const HttpCounters& http) {
  out.Family("http_responses_total", "counter", "Answers by route and status code.");
  for (const auto& [key, count] : http.counts()) {
    out.Sample(count, {{"route", key.first}, {"code", std::format("{}", key.second)}});
  }
}

void WriteRequests(Writer& out, const engine::EngineStatistics& engine) {
  out.Family("requests_finished_total", "counter", "Generations by how they ended.");
  for (std::size_t i = 0; i < engine::kNumFinishReasons; ++i) {
    const auto reason = static_cast<engine::FinishReason>(i);
    out.Sample(engine.finished[i], {{"reason", std::string(engine::FinishReasonName(reason))}});
  }
  out.Single("requests_refused_total", "counter",
             "Generations refused because the queue was full or the server shut down.",
             engine.refused);
  out.Single("requests_running", "gauge", "Generations that have a slot.", engine.running);
  out.Single("requests_queued", "gauge", "Generations that wait for a slot.", engine.queued);
  out.Single("slots", "gauge", "Sequences that can run at the same time.", engine.slots);
  out.Histogram("time_to_first_token_seconds",
                "From a request's arrival to its first generated token.",
                engine.time_to_first_token);
  out.Histogram("queue_time_seconds", "From a request's arrival to its slot.", engine.queue_time);
}

void WriteTokens(Writer& out, const engine::EngineStatistics& engine) {
  out.Single("prompt_tokens_total", "counter", "Prompt tokens computed.", engine.prompt_tokens);
  out.Single("prompt_tokens_cached_total", "counter",
             "Prompt tokens reused from an earlier request instead of computed.",
             engine.cached_tokens);
  out.Single("generated_tokens_total", "counter", "Tokens generated.", engine.generated_tokens);
  out.Single("prefix_cache_hits_total", "counter", "Requests that reused a part of their prompt.",
             engine.prefix_hits);
  out.Single("prefix_cache_misses_total", "counter", "Requests that reused nothing.",
             engine.prefix_misses);
  out.Single("prefix_checkpoints", "gauge", "States kept to go back to.", engine.checkpoints);
  out.Single("prefix_checkpoint_bytes", "gauge", "Memory of those states.",
             engine.checkpoint_bytes);
}

void WriteSteps(Writer& out, const engine::EngineStatistics& engine) {
  out.Single("steps_total", "counter", "Batches computed.", engine.steps);
  out.Single("step_rows_total", "counter", "Rows of all batches.", engine.step_rows);
  out.Single("last_batch_rows", "gauge", "Rows of the last batch.", engine.last_batch_rows);
  out.Single("prefill_seconds_total", "counter", "Time of batches with prompt rows.",
             engine.prefill_seconds);
  out.Single("decode_seconds_total", "counter", "Time of batches that only generate.",
             engine.decode_seconds);
  out.Single("decode_step_tokens_total", "counter",
             "Tokens of the batches that decode_seconds_total times.", engine.decode_step_tokens);
}

template <class Value>
void WriteTargets(Writer& out, const PlacementReport& placement, std::string_view name,
                  std::string_view type, std::string_view help, Value TargetReport::* member) {
  out.Family(name, type, help);
  for (const TargetReport& target : placement.targets) {
    out.Sample(target.*member, {{"target", target.name}});
  }
}

void WritePlacement(Writer& out, const PlacementReport& placement) {
  out.Family("placement_info", "gauge", "The placement in force, as labels; always 1.");
  out.Sample(1, {{"path", placement.path}, {"fingerprint", placement.fingerprint}});
  out.Single("placement_generation", "gauge", "Placements that were in force before this one.",
             placement.generation);
  const RebalanceReport rebalance = placement.rebalance.value_or(RebalanceReport());
  out.Single("rebalance_moved_units_total", "counter",
             "Experts that have another owner because the traffic moved.", rebalance.moved_units);
  out.Single("rebalance_moved_bytes_total", "counter", "Bytes that were loaded for that.",
             rebalance.moved_bytes);
  out.Single("rebalance_failures_total", "counter", "Moves of experts that failed.",
             rebalance.failures);
  WriteTargets(out, placement, "target_units", "gauge", "Experts that the target owns.",
               &TargetReport::units);
  WriteTargets(out, placement, "target_bytes", "gauge", "Bytes of those experts.",
               &TargetReport::bytes);
  out.Family("target_capacity_bytes", "gauge",
             "Bytes of experts that the target may own; absent when unbounded.");
  for (const TargetReport& target : placement.targets) {
    if (target.capacity) out.Sample(*target.capacity, {{"target", target.name}});
  }
  WriteTargets(out, placement, "target_expected_share_ratio", "gauge",
               "Share of the routed traffic that the plan expects, 0 to 1.",
               &TargetReport::expected_share);
  WriteTargets(out, placement, "target_share_ratio", "gauge",
               "Share of the routed traffic since the start, 0 to 1.", &TargetReport::share);
  WriteTargets(out, placement, "target_rows_total", "counter",
               "Rows that the target's experts computed.", &TargetReport::rows);
  WriteTargets(out, placement, "target_busy_seconds_total", "counter",
               "Time that the target computed experts.", &TargetReport::busy_seconds);
  WriteTargets(out, placement, "target_wait_seconds_total", "counter",
               "Time that others waited for the target.", &TargetReport::wait_seconds);
  WriteTargets(out, placement, "target_failures_total", "counter", "Times that the target failed.",
               &TargetReport::failures);
}

}  // namespace

void HttpCounters::Add(const std::string& route, int status) {
  const std::scoped_lock lock(mutex_);
  ++counts_[{route, status}];
}

std::map<std::pair<std::string, int>, std::uint64_t> HttpCounters::counts() const {
  const std::scoped_lock lock(mutex_);
  return counts_;
}

std::string MetricsText(const HttpCounters& http) {
  Writer out;
  WriteHttp(out, http);
  return out.text();
}

std::string MetricsText(const HttpCounters& http, const engine::EngineStatistics& engine,
                        const PlacementReport& placement) {
  Writer out;
  WriteHttp(out, http);
  WriteRequests(out, engine);
  WriteTokens(out, engine);
  WriteSteps(out, engine);
  WritePlacement(out, placement);
  return out.text();
}

}  // namespace server
