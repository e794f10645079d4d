// What the server's handlers share. For server/http alone; any thread.
#pragma once

#include <httplib.h>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "server/http/server.h"
#include "server/metrics.h"

namespace server {

// Requests that generate and are not answered yet.
class ActiveRequests {
 public:
  void Enter();
  void Leave();
  // True when there are none within `wait`.
  bool WaitForNone(std::chrono::milliseconds wait);

 private:
  std::mutex mutex_;
  std::condition_variable none_;
  std::size_t count_ = 0;
};

// Holds a place in ActiveRequests.
class ActiveRequest {
 public:
  explicit ActiveRequest(ActiveRequests& active) : active_(&active) { active_->Enter(); }
  ActiveRequest(const ActiveRequest&) = delete;
  ActiveRequest& operator=(const ActiveRequest&) = delete;
  ~ActiveRequest() { active_->Leave(); }

 private:
  ActiveRequests* active_;
};

struct Server::State {
  ServerOptions options;
  base::Log log;
  int port = 0;
  int listening = -1;  // `http`'s socket, its own
  HttpCounters counters;
  ActiveRequests active;
  std::atomic<bool> stopping = false;  // handlers end what they do

  // The model, or why there is none (empty `model`), or that there soon is none (`draining`).
  std::shared_ptr<const ServedModel> Model() const;
  std::string Waiting() const;
  void SetWaiting(std::string what);
  void SetModel(ServedModel served);
  std::atomic<bool> draining = false;

  httplib::Server http;
  std::thread thread;  // runs `http`

 private:
  mutable std::mutex mutex_;
  std::string waiting_ = "starting";
  std::shared_ptr<const ServedModel> model_;
};

// What a handler leaves for the request log. Shared, because a stream goes on after its handler.
struct RequestNote {
  std::string text;  // without anything of prompts or replies
};

// Registers every route of the server.
void AddStatusRoutes(httplib::Server& http, Server::State& state);
void AddGenerationRoutes(httplib::Server& http, Server::State& state);
void AddPageRoutes(httplib::Server& http);

// Answers with a JSON document.
void Answer(httplib::Response& response, int status, const Json& body);
// Answers with an error in the form that the path's protocol has.
void AnswerError(const httplib::Request& request, httplib::Response& response,
                 const ApiError& error);
// The model, or an answer that there is none yet.
std::shared_ptr<const ServedModel> ReadyModel(const Server::State& state,
                                              const httplib::Request& request,
                                              httplib::Response& response);

// 404 for a request that names another model than the one served.
ApiError UnknownModel(const std::string& asked, const std::string& served);

}  // namespace server
