#include "server/http/server.h"

#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <utility>

#include "base/quote.h"
#include "server/anthropic/response.h"
#include "server/http/connection_threads.h"
#include "server/http/server_state.h"
#include "server/openai/response.h"

namespace server {
namespace {

constexpr int kKeepAliveSeconds = 30;
constexpr int kReadSeconds = 60;
constexpr int kWriteSeconds = 30;
constexpr int kBacklog = 512;

bool IsAnthropic(const std::string& path) { return path.starts_with("/v1/messages"); }

// Compares all of both, so that the time tells nothing of where they differ.
bool SameKey(std::string_view given, std::string_view key) {
  unsigned difference = given.size() == key.size() ? 0 : 1;
  for (std::size_t i = 0; i < given.size(); ++i) {
    difference |= static_cast<unsigned char>(given[i] ^ key[i % key.size()]);
  }
  return difference == 0;
}

bool HasKey(const httplib::Request& request, const std::string& key) {
  constexpr std::string_view kBearer = "Bearer ";
  const std::string authorization = request.get_header_value("Authorization");
  if (authorization.starts_with(kBearer)) {
    return SameKey(std::string_view(authorization).substr(kBearer.size()), key);
  }
  return SameKey(request.get_header_value("x-api-key"), key);
}

// The page itself and whether the server is up are nobody's secret.
bool IsOpen(const httplib::Request& request) {
  return request.method == "OPTIONS" || request.path == "/health" || request.path == "/" ||
         request.path.starts_with("/page/") || request.path == "/favicon.ico";
}

// Asked every second by pages and monitors.
bool IsPolled(const std::string& path) {
  return path == "/health" || path == "/metrics" || path == "/v1/placement";
}

void SetCors(const std::string& origin, httplib::Response& response) {
  response.set_header("Access-Control-Allow-Origin", origin);
  response.set_header("Vary", "Origin");
}

void AnswerPreflight(const std::string& origin, httplib::Response& response) {
  SetCors(origin, response);
  response.set_header("Access-Control-Allow-Methods", "GET, POST, OPTIONS");
  response.set_header("Access-Control-Allow-Headers",
                      "Authorization, Content-Type, x-api-key, anthropic-version, anthropic-beta, "
                      "anthropic-dangerous-direct-browser-access, x-stainless-arch, "
                      "x-stainless-lang, x-stainless-os, x-stainless-package-version, "
                      "x-stainless-retry-count, x-stainless-runtime, x-stainless-runtime-version, "
                      "x-stainless-timeout, x-stainless-helper-method");
  response.set_header("Access-Control-Max-Age", "600");
  response.status = 204;
}

// What the library itself found wrong: no such route, too large a body, a malformed request.
ApiError LibraryError(const httplib::Request& request, int status, const ServerOptions& options) {
  switch (status) {
    case 404:
      return {.status = 404,
              .message = "there is no " + request.method + " " + base::Quote(request.path) +
                         " here; docs/http_api.md lists the routes"};
    case 413:
      return {.status = 413,
              .message = "the request body is larger than " +
                         std::to_string(options.max_body_bytes) + " bytes"};
    default:
      return {.status = status, .message = httplib::status_message(status)};
  }
}

double MillisecondsOf(const httplib::Request& request) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() -
                                                   request.start_time_)
      .count();
}

void LogRequest(Server::State& state, const httplib::Request& request,
                const httplib::Response& response) {
  const bool known = !request.matched_route.empty();
  state.counters.Add(known ? request.matched_route : "other", response.status);
  const auto* note = response.user_data.get<std::shared_ptr<RequestNote>>("note");
  const std::string text = note != nullptr && !(*note)->text.empty() ? ": " + (*note)->text : "";
  const std::string path = known ? request.matched_route : base::Quote(request.path);
  if (IsPolled(request.path)) {
    state.log.Debug("{} {} {}", request.method, path, response.status);
  } else {
    state.log.Info("{} {} {} in {:.0f} ms{}", request.method, path, response.status,
                   MillisecondsOf(request), text);
  }
}

void SetHandlers(Server::State& state) {
  httplib::Server& http = state.http;
  http.set_pre_request_handler(
      [&state](const httplib::Request& request, httplib::Response& response) {
        if (state.options.api_key.empty() || IsOpen(request) ||
            HasKey(request, state.options.api_key)) {
          return httplib::Server::HandlerResponse::Unhandled;
        }
        AnswerError(request, response, WrongKey());
        return httplib::Server::HandlerResponse::Handled;
      });
  http.set_exception_handler([&state](const httplib::Request& request, httplib::Response& response,
                                      std::exception_ptr thrown) {
    std::string what = "internal fault";
    try {
      std::rethrow_exception(thrown);
    } catch (const std::exception& error) {
      what = std::string("internal fault: ") + error.what();
    } catch (...) {
    }
    state.log.Warning("{} {}: {}", request.method, request.path, what);
    AnswerError(request, response, {.status = 500, .message = what});
  });
  http.set_error_handler([&state](const httplib::Request& request, httplib::Response& response) {
    if (!response.body.empty()) return httplib::Server::HandlerResponse::Unhandled;
    AnswerError(request, response, LibraryError(request, response.status, state.options));
    return httplib::Server::HandlerResponse::Handled;
  });
  if (!state.options.cors_origin.empty()) {
    http.set_post_routing_handler([&state](const httplib::Request&, httplib::Response& response) {
      SetCors(state.options.cors_origin, response);
    });
    http.Options(".*", [&state](const httplib::Request&, httplib::Response& response) {
      AnswerPreflight(state.options.cors_origin, response);
    });
  }
  http.set_logger([&state](const httplib::Request& request, const httplib::Response& response) {
    LogRequest(state, request, response);
  });
}

void Configure(Server::State& state) {
  httplib::Server& http = state.http;
  const std::size_t most = state.options.max_connections;
  http.new_task_queue = [most] { return new ConnectionThreads(most); };
  http.set_payload_max_length(state.options.max_body_bytes);
  http.set_keep_alive_timeout(kKeepAliveSeconds);
  http.set_keep_alive_max_count(100'000);
  http.set_read_timeout(kReadSeconds);
  http.set_write_timeout(kWriteSeconds);
  http.set_tcp_nodelay(true);
  // The library's own default lets a second server share the port.
  http.set_socket_options([&state](int socket) {
    const int on = 1;
    ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    state.listening = socket;
  });
}

std::unexpected<base::Error> ListenError(const ServerOptions& options, int error) {
  if (error == EADDRINUSE) {
    return base::Fail(base::ErrorKind::kIo,
                      "port {} of {} is in use; stop the program that has it or give another "
                      "--port",
                      options.port, options.host);
  }
  if (error == EACCES || error == EPERM) {
    return base::Fail(base::ErrorKind::kIo,
                      "port {} of {} may not be used: {}; give a --port above 1023", options.port,
                      options.host, std::strerror(error));
  }
  return base::Fail(base::ErrorKind::kInvalidInput,
                    "--host {}: cannot listen there; give an address of this machine, such as "
                    "127.0.0.1 or 0.0.0.0",
                    base::Quote(options.host));
}

}  // namespace

void ActiveRequests::Enter() {
  const std::scoped_lock lock(mutex_);
  ++count_;
}

void ActiveRequests::Leave() {
  {
    const std::scoped_lock lock(mutex_);
    --count_;
  }
  none_.notify_all();
}

bool ActiveRequests::WaitForNone(std::chrono::milliseconds wait) {
  std::unique_lock lock(mutex_);
  return none_.wait_for(lock, wait, [this] { return count_ == 0; });
}

std::shared_ptr<const ServedModel> Server::State::Model() const {
  const std::scoped_lock lock(mutex_);
  return model_;
}

std::string Server::State::Waiting() const {
  const std::scoped_lock lock(mutex_);
  return waiting_;
}

void Server::State::SetWaiting(std::string what) {
  const std::scoped_lock lock(mutex_);
  waiting_ = std::move(what);
}

void Server::State::SetModel(ServedModel served) {
  const std::scoped_lock lock(mutex_);
  model_ = std::make_shared<const ServedModel>(std::move(served));
}

void Answer(httplib::Response& response, int status, const Json& body) {
  response.status = status;
  response.set_content(Dump(body) + "\n", "application/json");
}

void AnswerError(const httplib::Request& request, httplib::Response& response,
                 const ApiError& error) {
  if (error.retry_after_seconds > 0) {
    response.set_header("Retry-After", std::to_string(error.retry_after_seconds));
  }
  Answer(response, error.status,
         IsAnthropic(request.path) ? anthropic::ErrorBody(error) : openai::ErrorBody(error));
}

std::shared_ptr<const ServedModel> ReadyModel(const Server::State& state,
                                              const httplib::Request& request,
                                              httplib::Response& response) {
  auto model = state.Model();
  if (!model) AnswerError(request, response, NotReady("not ready: " + state.Waiting()));
  return model;
}

Server::Server(std::unique_ptr<State> state) : state_(std::move(state)) {}

base::Result<std::unique_ptr<Server>> Server::Listen(ServerOptions options, base::Log log) {
  auto state = std::make_unique<State>();
  state->options = std::move(options);
  state->log = std::move(log);
  Configure(*state);
  SetHandlers(*state);
  AddStatusRoutes(state->http, *state);
  AddGenerationRoutes(state->http, *state);
  AddPageRoutes(state->http);
  errno = 0;
  const ServerOptions& wanted = state->options;
  if (wanted.port == 0) {
    state->port = state->http.bind_to_any_port(wanted.host);
  } else {
    state->port = state->http.bind_to_port(wanted.host, wanted.port) ? wanted.port : -1;
  }
  if (state->port <= 0) return ListenError(wanted, errno);
  // The library's own backlog is 5: of many clients that come at once some would wait a second.
  ::listen(state->listening, kBacklog);
  State* running = state.get();
  state->thread = std::thread([running] {
    try {
      if (!running->http.listen_after_bind() && !running->stopping) {
        running->log.Warning("the HTTP server ended by itself");
      }
    } catch (const std::exception& error) {
      running->log.Warning("the HTTP server ended: {}", error.what());
    }
  });
  state->http.wait_until_ready();
  return std::unique_ptr<Server>(new Server(std::move(state)));
}

Server::~Server() {
  state_->stopping = true;
  state_->http.stop();
  if (state_->thread.joinable()) state_->thread.join();
}

std::string Server::address() const {
  const std::string& host = state_->options.host;
  const bool v6 = host.find(':') != std::string::npos;
  return std::format("http://{}{}{}:{}", v6 ? "[" : "", host, v6 ? "]" : "", state_->port);
}

int Server::port() const { return state_->port; }

void Server::SetLoading(std::string what) { state_->SetWaiting(std::move(what)); }

void Server::Serve(ServedModel model) { state_->SetModel(std::move(model)); }

bool Server::Drain(std::chrono::milliseconds wait) {
  const auto deadline = std::chrono::steady_clock::now() + wait;
  state_->draining = true;
  const auto model = state_->Model();
  bool all = !model || model->engine->Drain(wait);
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
      deadline - std::chrono::steady_clock::now());
  all = state_->active.WaitForNone(std::max(left, std::chrono::milliseconds(0))) && all;
  return all;
}

}  // namespace server
