#include "cli/command.h"

namespace cli {

void AddModelOptions(CLI::App& app, ModelOptions& options) {
  app.add_option("--model,-m", options.model,
                 "GGUF file of the model; of a split model its first shard")
      ->type_name("FILE")
      ->required();
  app.add_option("--targets,-t", options.targets,
                 "where experts may live, in order of preference, each with an optional capacity: "
                 "cuda:0=20GiB,vulkan:1=50%,cpu (default: every GPU found, then cpu)")
      ->type_name("LIST")
      ->check(CLI::Validator(
          [](const std::string& list) {
            return list.empty() ? std::string(
                                      "the list is empty; name targets or leave the option "
                                      "out for every GPU found, then cpu")
                                : std::string();
          },
          ""));
}

void AddJsonOption(CLI::App& app, bool& json) {
  app.add_flag("--json", json, "print one JSON document on stdout");
}

}  // namespace cli
