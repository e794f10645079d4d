// Refused requests of a data file, for tests: "field<TAB>body" a line, "-" for no field, #
// comments.
#pragma once

#include <string>
#include <vector>

#include "base/file.h"

namespace server {

struct RequestCase {
  std::string param;
  std::string body;
};

// `name` below src/server. Empty when the file cannot be read.
inline std::vector<RequestCase> RequestCases(const std::string& name) {
  const auto text = base::ReadFile(std::string(EXPERT_SPLIT_SOURCE_DIR) + "/src/server/" + name,
                                   base::Bytes::MiB(1));
  std::vector<RequestCase> cases;
  std::size_t begin = 0;
  while (text && begin < text->size()) {
    const std::size_t end = std::min(text->find('\n', begin), text->size());
    const std::string line = text->substr(begin, end - begin);
    const std::size_t tab = line.find('\t');
    if (!line.starts_with('#') && tab != std::string::npos) {
      const std::string param = line.substr(0, tab);
      cases.push_back({param == "-" ? "" : param, line.substr(tab + 1)});
    }
    begin = end + 1;
  }
  return cases;
}

}  // namespace server
