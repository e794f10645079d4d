// Routes that generate nothing: readiness, models, tokens, placement, metrics.
#include "server/http/server_state.h"
#include "server/openai/response.h"
#include "server/request_fields.h"

namespace server {
namespace {

constexpr std::int64_t kMaxTokenId = 0x7fffffff;

// What is wrong with targets, or nothing.
std::string LostTargets(const PlacementReport& placement) {
  std::string reasons;
  for (const TargetReport& target : placement.targets) {
    if (!target.lost.empty()) reasons += (reasons.empty() ? "" : "; ") + target.lost;
  }
  return reasons;
}

void AnswerHealth(const Server::State& state, httplib::Response& response) {
  if (state.draining) {
    Answer(response, 503, {{"status", "draining"}, {"reason", "the server is shutting down"}});
  } else if (!state.Model()) {
    Answer(response, 503, {{"status", "loading"}, {"reason", state.Waiting()}});
  } else if (const std::string reason = LostTargets(state.Model()->placement()); !reason.empty()) {
    Answer(response, 200, {{"status", "degraded"}, {"reason", reason}});
  } else {
    Answer(response, 200, {{"status", "ok"}});
  }
}

Json ModelJson(const ServedModel& model) {
  return {{"id", model.name},
          {"object", "model"},
          {"created", 0},
          {"owned_by", "expert-split"},
          {"meta",
           {{"context_length", model.engine->context_length()},
            {"vocab_size", model.vocabulary->size()}}}};
}

void AnswerModel(const ServedModel& model, const httplib::Request& request,
                 httplib::Response& response) {
  const std::string name = request.path.substr(std::string_view("/v1/models/").size());
  if (name == model.name) {
    Answer(response, 200, ModelJson(model));
    return;
  }
  AnswerError(request, response, UnknownModel(name, model.name));
}

// {"content": text} to {"tokens": [...]}
void Tokenize(const ServedModel& model, const httplib::Request& request,
              httplib::Response& response) {
  const auto body = ParseRequestBody(request.body);
  if (!body) return AnswerError(request, response, body.error());
  FirstError error;
  const RequestFields fields(*body, "", error);
  fields.Require("content");
  const auto content = fields.String("content");
  const bool add_special = fields.Boolean("add_special").value_or(false);
  const bool with_pieces = fields.Boolean("with_pieces").value_or(false);
  if (error.error()) return AnswerError(request, response, *error.error());
  const auto tokens = model.vocabulary->Tokenize(*content, add_special);
  if (!tokens) return AnswerError(request, response, FromError(tokens.error(), "content"));
  Json list = Json::array();
  for (const model::Token token : *tokens) {
    if (with_pieces) {
      list.push_back({{"id", token}, {"piece", model.vocabulary->Piece(token)}});
    } else {
      list.push_back(token);
    }
  }
  Answer(response, 200, {{"tokens", std::move(list)}});
}

// {"tokens": [...]} to {"content": text}
void Detokenize(const ServedModel& model, const httplib::Request& request,
                httplib::Response& response) {
  const auto body = ParseRequestBody(request.body);
  if (!body) return AnswerError(request, response, body.error());
  FirstError error;
  const RequestFields fields(*body, "", error);
  fields.Require("tokens");
  std::string text;
  if (const Json* tokens = fields.Array("tokens")) {
    for (std::size_t i = 0; i < tokens->size(); ++i) {
      const Json& token = (*tokens)[i];
      if (!token.is_number_unsigned() || token.get<std::uint64_t>() >= model.vocabulary->size() ||
          token.get<std::uint64_t>() > std::uint64_t{kMaxTokenId}) {
        error.Set(ElementPath("tokens", i),
                  "'tokens[{}]' is no token of the model; they are 0 to {}", i,
                  model.vocabulary->size() - 1);
        break;
      }
      text += model.vocabulary->Piece(token.get<model::Token>());
    }
  }
  if (error.error()) return AnswerError(request, response, *error.error());
  Answer(response, 200, {{"content", text}});
}

Json TargetJson(const TargetReport& target) {
  return {{"name", target.name},
          {"units", target.units},
          {"bytes", target.bytes},
          {"capacity", target.capacity ? Json(*target.capacity) : Json()},
          {"expected_share", target.expected_share},
          {"rows", target.rows},
          {"share", target.share},
          {"busy_ms", target.busy_seconds * 1e3},
          {"wait_ms", target.wait_seconds * 1e3},
          {"failures", target.failures},
          {"lost", target.lost.empty() ? Json() : Json(target.lost)}};
}

// [num_layers, num_experts] as rows.
template <class Number>
Json RowsJson(const std::vector<Number>& values, std::size_t width) {
  Json rows = Json::array();
  for (std::size_t i = 0; width > 0 && i + width <= values.size(); i += width) {
    Json row = Json::array();
    for (std::size_t k = 0; k < width; ++k) row.push_back(values[i + k]);
    rows.push_back(std::move(row));
  }
  return rows;
}

Json ActivityJson(const engine::EngineStatistics& engine) {
  return {{"slots", engine.slots},
          {"running", engine.running},
          {"queued", engine.queued},
          {"prompt_tokens", engine.prompt_tokens},
          {"cached_tokens", engine.cached_tokens},
          {"generated_tokens", engine.generated_tokens},
          {"prefill_seconds", engine.prefill_seconds},
          {"decode_seconds", engine.decode_seconds},
          {"decode_step_tokens", engine.decode_step_tokens}};
}

// null when experts stay where they are.
Json RebalanceJson(const std::optional<RebalanceReport>& rebalance) {
  if (!rebalance) return {};
  return {{"bytes_per_second", rebalance->bytes_per_second},
          {"moved_units", rebalance->moved_units},
          {"moved_bytes", rebalance->moved_bytes},
          {"failures", rebalance->failures}};
}

void AnswerPlacement(const ServedModel& model, httplib::Response& response) {
  const PlacementReport report = model.placement();
  Json targets = Json::array();
  for (const TargetReport& target : report.targets) targets.push_back(TargetJson(target));
  Answer(response, 200,
         {{"model", model.name},
          {"path", report.path},
          {"fingerprint", report.fingerprint},
          {"summary", report.summary},
          {"units", report.units},
          {"generation", report.generation},
          {"rebalance", RebalanceJson(report.rebalance)},
          {"targets", std::move(targets)},
          {"layers", RowsJson(report.owners, report.num_experts)},
          {"unit_rows", RowsJson(report.unit_rows, report.num_experts)},
          {"activity", ActivityJson(model.engine->statistics())}});
}

void AnswerMetrics(const Server::State& state, httplib::Response& response) {
  const auto model = state.Model();
  response.set_content(
      model ? MetricsText(state.counters, model->engine->statistics(), model->placement())
            : MetricsText(state.counters),
      "text/plain; version=0.0.4; charset=utf-8");
}

}  // namespace

ApiError UnknownModel(const std::string& asked, const std::string& served) {
  return {.status = 404,
          .message = "there is no model '" + asked + "' here; this server has '" + served + "'",
          .param = "model",
          .code = "model_not_found"};
}

void AddStatusRoutes(httplib::Server& http, Server::State& state) {
  using httplib::Request;
  using httplib::Response;
  // Routes that need the model.
  const auto with_model = [&state](auto handler) {
    return [&state, handler](const Request& request, Response& response) {
      if (const auto model = ReadyModel(state, request, response)) {
        handler(*model, request, response);
      }
    };
  };
  http.Get("/health",
           [&state](const Request&, Response& response) { AnswerHealth(state, response); });
  http.Get("/metrics",
           [&state](const Request&, Response& response) { AnswerMetrics(state, response); });
  http.Get("/v1/models",
           with_model([](const ServedModel& model, const Request&, Response& response) {
             Answer(response, 200, {{"object", "list"}, {"data", Json::array({ModelJson(model)})}});
           }));
  http.Get("/v1/models/.+", with_model(AnswerModel));
  http.Get("/v1/placement",
           with_model([](const ServedModel& model, const Request&, Response& response) {
             AnswerPlacement(model, response);
           }));
  http.Post("/tokenize", with_model(Tokenize));
  http.Post("/detokenize", with_model(Detokenize));
}

}  // namespace server
