// The page: / and the files that it asks for, from inside the program.
#include "server/http/page_files.h"
#include "server/http/server_state.h"

namespace server {
namespace {

const char* ContentType(std::string_view name) {
  if (name.ends_with(".html")) return "text/html; charset=utf-8";
  if (name.ends_with(".css")) return "text/css; charset=utf-8";
  return "text/javascript; charset=utf-8";
}

// Nothing from elsewhere: scripts that a model's answer might smuggle in do not run.
constexpr const char* kPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src "
    "'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'";

void AnswerFile(const PageFile& file, httplib::Response& response) {
  response.set_header("Content-Security-Policy", kPolicy);
  response.set_header("X-Content-Type-Options", "nosniff");
  response.set_header("Referrer-Policy", "no-referrer");
  // The program may be a newer one next time.
  response.set_header("Cache-Control", "no-cache");
  response.set_content(file.content.data(), file.content.size(), ContentType(file.name));
}

}  // namespace

void AddPageRoutes(httplib::Server& http) {
  for (const PageFile& file : PageFiles()) {
    const std::string path = file.name == "index.html" ? "/" : "/page/" + std::string(file.name);
    http.Get(path, [&file](const httplib::Request&, httplib::Response& response) {
      AnswerFile(file, response);
    });
  }
  http.Get("/favicon.ico",
           [](const httplib::Request&, httplib::Response& response) { response.status = 204; });
}

}  // namespace server
