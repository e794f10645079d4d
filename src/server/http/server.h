// The HTTP server: routes, keys, readiness, logging.
//
// It listens from the moment it is made, so that /health can say what is being waited for while the
// model loads, and serves once it is given a model. Handlers run on the library's threads; the
// methods here may be called from any one thread at a time. docs/http_api.md describes the routes.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "base/log.h"
#include "base/result.h"
#include "engine/engine.h"
#include "model/text/chat_template.h"
#include "model/text/vocabulary.h"
#include "server/chat/prompt.h"
#include "server/placement_report.h"

namespace server {

struct ServerOptions {
  std::string host = "127.0.0.1";
  int port = 8080;          // 0: any free one
  std::string api_key;      // empty: none is asked for
  std::string cors_origin;  // "*" or one origin that browsers may call from; empty: none
  std::size_t max_body_bytes = std::size_t{32} << 20;
  std::size_t max_connections = 512;
};

// What there is to serve. Everything pointed to outlives the server.
struct ServedModel {
  std::string name;  // what clients call it
  engine::Engine* engine = nullptr;
  const model::Vocabulary* vocabulary = nullptr;
  const model::ChatTemplate* chat = nullptr;
  std::function<PlacementReport()> placement;  // called from any thread
  SchemaToGrammar schema_to_grammar;           // called from any thread
};

class Server {
 public:
  // Errors: kIo when the port is in use or may not be had, kInvalidInput for a host that is no
  // address of this machine; naming both and the remedy.
  static base::Result<std::unique_ptr<Server>> Listen(ServerOptions options, base::Log log);

  // Ends what still runs and closes every connection.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // "http://127.0.0.1:8080"
  std::string address() const;
  int port() const;

  // What clients that come before the model are told: "loading cuda:0".
  void SetLoading(std::string what);
  // From now on requests are served.
  void Serve(ServedModel model);
  // From now on requests that generate are refused, with status 503. Waits until the running ones
  // have been answered, at most for `wait`. True when they have.
  bool Drain(std::chrono::milliseconds wait);

  struct State;  // for server/http alone

 private:
  explicit Server(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

}  // namespace server
