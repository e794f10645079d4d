// `expert-split serve` of a small model, and a client of it.
#pragma once

#include <gtest/gtest.h>
#include <httplib.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "running_program.h"
#include "support/test_models.h"

namespace test {

using Json = nlohmann::json;

inline std::vector<std::string> ServeCommand(std::vector<std::string> more,
                                             const std::string& context = "1024") {
  std::vector<std::string> words = {
      "serve",      "--model", ModelPath("tiny-f32"), "--port", "0", "--ctx", context,
      "--parallel", "2",       "--threads",           "1"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

// A running server that is ready.
class Served {
 public:
  explicit Served(std::vector<std::string> more = {"--targets", "cpu"},
                  const std::string& vulkan = kNoVulkan, const std::string& context = "1024")
      : program_(EXPERT_SPLIT_BINARY, ServeCommand(std::move(more), context), {vulkan}) {
    port_ = ServedPort(program_);
    EXPECT_NE(port_, 0) << program_.Written(Stream::kErr);
  }

  httplib::Client Client() const {
    httplib::Client client("127.0.0.1", port_);
    client.set_read_timeout(120);
    return client;
  }

  Json Post(const std::string& path, const Json& body, int status = 200) const {
    const auto result = Client().Post(path, body.dump(), "application/json");
    EXPECT_TRUE(result) << httplib::to_string(result.error());
    if (!result) return {};
    EXPECT_EQ(result->status, status) << result->body;
    return Json::parse(result->body, nullptr, false);
  }

  Json Get(const std::string& path) const {
    const auto result = Client().Get(path);
    EXPECT_TRUE(result) << httplib::to_string(result.error());
    return result ? Json::parse(result->body, nullptr, false) : Json();
  }

  RunningProgram& program() { return program_; }
  int port() const { return port_; }

 private:
  RunningProgram program_;
  int port_ = 0;
};

inline Json Chat(const std::string& text, int max_tokens = 8) {
  return {{"messages", Json::array({{{"role", "user"}, {"content", text}}})},
          {"max_tokens", max_tokens},
          {"temperature", 0},
          {"ignore_eos", true}};
}

}  // namespace test
