// expert-split worker: hosts one target for another process.
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <format>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "base/quote.h"
#include "base/unique_fd.h"
#include "cli/command.h"
#include "cli/device_targets.h"
#include "cli/exit_status.h"
#include "cli/interrupt.h"
#include "cli/placement.h"
#include "gg/device_check.h"
#include "gg/devices.h"
#include "gg/numa.h"
#include "gg/rpc_device.h"
#include "model/map_experts.h"
#include "model/registry.h"
#include "moe/compute/hosted_experts.h"
#include "moe/ipc/channel.h"
#include "moe/ipc/frame.h"
#include "moe/ipc/messages.h"
#include "moe/ipc/socket_path.h"
#include "moe/ipc/worker_loop.h"

namespace cli {
namespace {

constexpr std::chrono::seconds kTimeToTell(5);

struct WorkerOptions {
  std::string model;
  std::vector<std::string> targets;
  std::string listen;
  std::string group;
  bool rpc_cache = false;
  // Of the process that started this one: a connection for each target.
  std::vector<int> sockets;
};

// What the services refer to; they go last.
struct Hosted {
  gg::GgufFile file;
  model::ModelDescription description;
  std::vector<std::unique_ptr<moe::HostedExperts>> services;  // [targets]
};

// The one target of the list; a remote device, which no list consists of alone, before `cpu`.
base::Result<moe::ExpertSplitTargetConfig> ParseTarget(const std::string& text) {
  const bool remote = text.starts_with("rpc:");
  auto config = moe::ExpertSplitTargetConfig::Parse(remote ? text + ",cpu" : text);
  if (config && config->size() == (remote ? 2 : 1) &&
      config->targets()[0].capacity == moe::TargetCapacity{} &&
      (remote || config->targets()[0].can_be_primary())) {
    return config;
  }
  return base::Fail(base::ErrorKind::kInvalidInput,
                    "--target {}: a worker hosts cpu, cpu:NODE, one device of this machine, as in "
                    "cuda:0, or rpc:HOST:PORT; capacities belong into the --targets of who uses it",
                    base::Quote(text));
}

// ggml's RPC client ends the process when nobody answers. Until this worker has said what it is, it
// says that instead; later the end of the connection does.
struct LastWords {
  std::vector<int> descriptors;
  std::vector<std::byte> text;
};
LastWords last_words;

void SayLastWords(const char*) {
  for (const int descriptor : last_words.descriptors) {
    [[maybe_unused]] const ssize_t written =
        ::write(descriptor, last_words.text.data(), last_words.text.size());
  }
  ::_exit(kExitRunTime);
}

base::Result<gg::Device> ConnectRpc(const WorkerOptions& options,
                                    const moe::ExpertSplitTarget& target) {
  const std::string server = std::format("{}:{}", target.host, target.port);
  const base::Error nobody{
      .kind = base::ErrorKind::kWorkerLost,
      .message =
          std::format("no ggml RPC server answers at {}; start ggml-rpc-server there", server)};
  const auto on_terminal = [](std::string_view message) {
    const std::string line = std::format("expert-split: error: {}\n", message);
    const auto bytes = std::as_bytes(std::span(line));
    last_words = {{STDERR_FILENO}, {bytes.begin(), bytes.end()}};
  };
  const bool has_parent = !options.sockets.empty();
  if (has_parent) {
    last_words = {options.sockets, moe::ipc::EncodeFrame(moe::ipc::FrameType::kFailure, 0,
                                                         moe::ipc::Encode(nobody))};
  } else {
    on_terminal(nobody.message);
  }
  gg::OnGgmlAbort(SayLastWords);
  auto device = gg::ConnectRpcDevice(server, target.index, target.name);
  last_words = {};
  if (!has_parent) on_terminal(std::format("the ggml RPC server at {} is gone", server));
  return device;
}

base::Result<gg::Device> FindTarget(const Session& session, const WorkerOptions& options,
                                    const moe::ExpertSplitTargetConfig& config) {
  const moe::ExpertSplitTarget& target = config.targets()[0];
  // What ggml says of a server that is gone, who uses this worker says better.
  const bool remote = target.place == moe::TargetPlace::kRpc;
  auto devices = gg::DiscoverDevices({.log = remote ? base::Log() : session.log});
  if (!devices) return base::Forward(devices);
  if (remote) return ConnectRpc(options, target);
  auto resolved = ResolveDevices(config, *devices);
  if (!resolved) return base::Forward(resolved);
  return *resolved->front();
}

// This thread, and those that it starts from now on.
void RunOnNode(const Session& session, std::uint32_t index) {
  const std::vector<gg::NumaNode> nodes = gg::NumaNodes();
  const auto node = std::ranges::find(nodes, index, &gg::NumaNode::index);
  if (node != nodes.end() && (node->cpus.empty() || gg::RunOn(node->cpus))) return;
  session.log.Warning("the system does not bind this worker to NUMA node {}", index);
}

base::Result<std::unique_ptr<moe::HostedExperts>> Host(const Session& session,
                                                       const WorkerOptions& options,
                                                       const std::string& text,
                                                       const Hosted& model) {
  auto config = ParseTarget(text);
  if (!config) return base::Forward(config);
  auto device = FindTarget(session, options, *config);
  if (!device) return base::Forward(device);
  if (!device->is_cpu()) {
    if (auto right = gg::CheckDevice(*device); !right) return base::Forward(right);
  }
  const moe::ExpertSplitTarget& target = config->targets()[0];
  std::optional<std::uint32_t> node;
  if (target.place == moe::TargetPlace::kNuma) {
    node = target.index;
    RunOnNode(session, target.index);
  }
  moe::UploadForm upload = moe::UploadForm::kRuns;
  if (target.place == moe::TargetPlace::kRpc) {
    upload = options.rpc_cache ? moe::UploadForm::kLarge : moe::UploadForm::kSmall;
  }
  return std::make_unique<moe::HostedExperts>(
      moe::HostedExpertsOptions{.target = target.name,
                                .device = *std::move(device),
                                .numa_node = node,
                                .shape = &model.description.shape,
                                .stacks = &model.description.stacks,
                                .file = &model.file,
                                .weights = model::MapExperts(model.file, model.description),
                                .upload = upload,
                                .log = session.log});
}

base::Result<std::unique_ptr<Hosted>> Prepare(const Session& session,
                                              const WorkerOptions& options) {
  // A fault of the command line comes before any work.
  for (const std::string& target : options.targets) {
    if (auto config = ParseTarget(target); !config) return base::Forward(config);
  }
  auto file = gg::GgufFile::Open(options.model);
  if (!file) return base::Forward(file);
  auto description = model::DescribeModel(*file);
  if (!description) return base::Forward(description);
  auto hosted = std::make_unique<Hosted>(std::move(*file), std::move(*description));
  for (const std::string& target : options.targets) {
    auto service = Host(session, options, target, *hosted);
    if (!service) return base::Forward(service);
    hosted->services.push_back(std::move(*service));
  }
  return hosted;
}

// For the process that started this one, over the sockets that it left here. What goes wrong is
// told there and by nobody else; the other side decides what to make of it.
base::Result<void> ServeParent(const Session& session, const WorkerOptions& options) {
  // Ctrl-C is for the parent, which closes the connections when it is done.
  std::signal(SIGINT, SIG_IGN);
  std::vector<moe::ipc::Channel> channels;
  for (const int socket : options.sockets) channels.emplace_back(base::UniqueFd(socket));
  auto hosted = Prepare(session, options);
  if (!hosted) {
    for (moe::ipc::Channel& channel : channels) {
      static_cast<void>(channel.Send(moe::ipc::FrameType::kFailure,
                                     moe::ipc::Encode(hosted.error()),
                                     base::Deadline::After(kTimeToTell)));
    }
    return {};
  }
  const auto serve = [&](std::size_t i) {
    static_cast<void>(
        moe::ipc::ServeConnection(std::move(channels[i]), *(*hosted)->services[i], {}));
  };
  std::vector<std::jthread> others;
  for (std::size_t i = 1; i < channels.size(); ++i) others.emplace_back(serve, i);
  serve(0);
  return {};
}

// For whoever connects, one after another.
base::Result<void> ServePath(const Session& session, const WorkerOptions& options) {
  auto hosted = Prepare(session, options);
  if (!hosted) return base::Forward(hosted);
  GracefulInterrupt interrupt(GracefulInterrupt::Signals::kInterruptAndTerminate);
  const auto stopped = [&]() -> base::Result<void> {
    if (interrupt.terminated()) return {};
    return std::unexpected(Interrupted());
  };
  auto listener = moe::ipc::Listener::Open(options.listen, options.group);
  if (!listener) return base::Forward(listener);
  session.log.Info("worker {} listens on {}", options.targets[0], base::Quote(options.listen));
  for (;;) {
    auto channel = listener->Accept(interrupt.token());
    if (!channel && channel.error().kind == base::ErrorKind::kCancelled) return stopped();
    if (!channel) return base::Forward(channel);
    auto served =
        moe::ipc::ServeConnection(std::move(*channel), *(*hosted)->services[0], interrupt.token());
    if (interrupt.token().stop_requested()) return stopped();
    if (!served) session.log.Warning("a connection was ended: {}", served.error().message);
  }
}

base::Result<void> Run(const Session& session, const WorkerOptions& options) {
  if (!options.sockets.empty()) {
    if (options.sockets.size() == options.targets.size()) return ServeParent(session, options);
    return base::Fail(base::ErrorKind::kInvalidInput, "{} sockets for {} targets",
                      options.sockets.size(), options.targets.size());
  }
  if (options.targets.size() > 1) {
    return base::Fail(base::ErrorKind::kInvalidInput,
                      "--target is given {} times; start a worker for each",
                      options.targets.size());
  }
  if (options.listen.empty()) {
    return base::Fail(base::ErrorKind::kInvalidInput,
                      "--listen is missing: give the absolute path of a socket to make, as in "
                      "--listen /run/user/1000/worker.sock");
  }
  return ServePath(session, options);
}

}  // namespace

Command AddWorkerCommand(CLI::App& program) {
  CLI::App* app =
      program.add_subcommand("worker", "Host one target for an expert-split of another process");
  auto options = std::make_shared<WorkerOptions>();
  app->add_option("--model,-m", options->model,
                  "GGUF file of the model: the same file that the other process has")
      ->type_name("FILE")
      ->required();
  app->add_option(
         "--target,-t", options->targets,
         "what computes: cpu, the NUMA node cpu:0, a device such as cuda:0, or a remote one "
         "such as rpc:10.0.0.7:50052")
      ->type_name("TARGET")
      ->allow_extra_args(false)
      ->required();
  auto* listen = app->add_option("--listen", options->listen,
                                 "socket to make, for unix:PATH in the other's --targets")
                     ->type_name("PATH");
  app->add_option("--group", options->group,
                  "group whose members may connect too (default: this user alone)")
      ->type_name("NAME")
      ->needs(listen);
  // How run and serve start one themselves.
  app->add_option("--socket", options->sockets)
      ->group("")
      ->allow_extra_args(false)
      ->excludes(listen);
  AddRpcCacheOption(*app, options->rpc_cache);
  app->footer(
      "One process at a time connects; what the worker owns is loaded then and freed when that\n"
      "process goes. Ctrl-C and SIGTERM end the worker and remove the socket. run and serve start\n"
      "workers themselves for worker(TARGET).\n\n"
      "Examples:\n"
      "  expert-split worker --model M.gguf --target cuda:0 --listen /run/user/1000/w.sock\n"
      "  expert-split run --model M.gguf --targets unix:/run/user/1000/w.sock=8GiB,cpu -p Hi");
  return {app, [options](const Session& session) { return Run(session, *options); }};
}

}  // namespace cli
