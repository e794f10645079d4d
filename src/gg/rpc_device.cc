#include "gg/rpc_device.h"

#include <ggml-backend.h>
#include <ggml-rpc.h>
#include <ggml.h>

#include <vector>

#include "gg/handles.h"

namespace gg {
namespace {

using base::ErrorKind;
using base::Fail;

constexpr base::Bytes kHoldBytes = base::Bytes(256);

}  // namespace

void OnGgmlAbort(void (*last_words)(const char* message)) { ggml_set_abort_callback(last_words); }

base::Result<Device> ConnectRpcDevice(const std::string& endpoint, std::uint32_t index,
                                      const std::string& name) {
  ggml_backend_reg_t rpc = ggml_backend_reg_by_name("RPC");
  const auto add = rpc == nullptr
                       ? nullptr
                       : reinterpret_cast<decltype(&ggml_backend_rpc_add_server)>(
                             ggml_backend_reg_get_proc_address(rpc, "ggml_backend_rpc_add_server"));
  if (add == nullptr) {
    return Fail(ErrorKind::kUnsupported,
                "ggml has no RPC backend here; install its module (libggml0-backend-rpc)");
  }
  ggml_backend_reg_t server = add(endpoint.c_str());
  if (server == nullptr) {
    return Fail(ErrorKind::kDeviceFailure, "no ggml RPC server of this version answers at {}",
                endpoint);
  }
  const std::size_t count = ggml_backend_reg_dev_count(server);
  if (index >= count) {
    return Fail(ErrorKind::kDeviceFailure, "the ggml RPC server at {} has {} devices, none with {}",
                endpoint, count, index);
  }
  Device device;
  device.name = name;
  device.backend = "rpc";
  device.index = index;
  device.handle = ggml_backend_reg_dev_get(server, index);
  ggml_backend_dev_props properties = {};
  ggml_backend_dev_get_props(device.handle, &properties);
  if (properties.description != nullptr) device.description = properties.description;
  device.memory_total = base::Bytes(properties.memory_total);
  device.memory_free = base::Bytes(properties.memory_free);
  // The client's connection is as old as the oldest buffer.
  auto hold = Buffer::Allocate(ggml_backend_dev_buffer_type(device.handle), kHoldBytes);
  if (!hold) return base::Forward(hold);
  static std::vector<Buffer>& held = *new std::vector<Buffer>;
  held.push_back(*std::move(hold));
  return device;
}

}  // namespace gg
