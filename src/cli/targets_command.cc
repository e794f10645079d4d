// expert-split targets: what this machine offers for --targets.
#include <vector>

#include "cli/command.h"
#include "cli/output.h"
#include "gg/devices.h"

namespace cli {
namespace {

Json TargetsJson(const std::vector<gg::Device>& devices) {
  Json document = Json::array();
  for (const gg::Device& device : devices) {
    document.push_back({{"name", device.name},
                        {"backend", device.backend},
                        {"description", device.description},
                        {"memory_total", device.memory_total.count()},
                        {"memory_free", device.memory_free.count()},
                        {"device_id", device.device_id}});
  }
  return document;
}

std::string TargetsTable(const std::vector<gg::Device>& devices) {
  std::vector<std::vector<std::string>> rows = {
      {"TARGET", "FREE", "TOTAL", "DEVICE", "DESCRIPTION"}};
  for (const gg::Device& device : devices) {
    rows.push_back({device.name, base::FormatBytes(device.memory_free),
                    base::FormatBytes(device.memory_total),
                    device.device_id.empty() ? "-" : device.device_id, device.description});
  }
  return FormatTable(rows, {1, 2});
}

base::Result<void> RunTargets(const Session& session, bool json) {
  auto devices = gg::DiscoverDevices({.log = session.log});
  if (!devices) return Forward(devices);
  return json ? PrintJson(TargetsJson(*devices)) : PrintText(TargetsTable(*devices));
}

}  // namespace

Command AddTargetsCommand(CLI::App& program) {
  CLI::App* app = program.add_subcommand("targets", "List the devices that can own experts");
  auto json = std::make_shared<bool>(false);
  AddJsonOption(*app, *json);
  app->footer(
      "The names are those that --targets takes. Workers, remote devices and NUMA nodes are not\n"
      "listed.\n\n"
      "Examples:\n"
      "  expert-split targets\n"
      "  expert-split targets --json\n"
      "  GGML_VK_VISIBLE_DEVICES=0,0 expert-split targets   # llvmpipe twice, to try without a "
      "GPU");
  return {app, [json](const Session& session) { return RunTargets(session, *json); }};
}

}  // namespace cli
