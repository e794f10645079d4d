// The pieces that a reply arrives in, whatever protocol they are shown in. Values.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace server {

struct ReplyDelta {
  enum class Kind {
    kReasoning,      // text
    kContent,        // text
    kToolCall,       // a call begins: call, name
    kToolArguments,  // call, text: the next part of its arguments, which together are JSON
  };
  Kind kind = Kind::kContent;
  std::string text;
  std::size_t call = 0;  // from 0, in order
  std::string name;      // of the function

  friend bool operator==(const ReplyDelta&, const ReplyDelta&) = default;
};

using ReplyDeltas = std::vector<ReplyDelta>;

}  // namespace server
