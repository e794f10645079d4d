#include "gg/rpc_device.h"

#include <dlfcn.h>
#include <ggml-backend.h>
#include <ggml-cpp.h>
#include <ggml-rpc.h>
#include <ggml.h>

#include <map>

namespace gg {
namespace {

using base::ErrorKind;
using base::Fail;

// The module's own functions: those of ggml-rpc.h that the registry does not hand out are found
// beside one that it does.
struct RpcModule {
  decltype(&ggml_backend_rpc_add_server) add_server = nullptr;
  decltype(&ggml_backend_rpc_init) init = nullptr;
};

RpcModule FindModule() {
  RpcModule module;
  ggml_backend_reg_t rpc = ggml_backend_reg_by_name("RPC");
  if (rpc == nullptr) return module;
  module.add_server = reinterpret_cast<decltype(module.add_server)>(
      ggml_backend_reg_get_proc_address(rpc, "ggml_backend_rpc_add_server"));
  Dl_info info = {};
  if (module.add_server == nullptr ||
      ::dladdr(reinterpret_cast<void*>(module.add_server), &info) == 0) {
    return module;
  }
  // Loaded already, and never unloaded: the handle need not be kept.
  if (void* const library = ::dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD)) {
    module.init =
        reinterpret_cast<decltype(module.init)>(::dlsym(library, "ggml_backend_rpc_init"));
    ::dlclose(library);
  }
  return module;
}

// The client closes a connection when no backend or buffer uses it, so the first device's backend
// is made before anything else is asked and never freed.
void KeepConnection(const RpcModule& module, const std::string& endpoint) {
  static std::map<std::string, ggml_backend_ptr>& connections =
      *new std::map<std::string, ggml_backend_ptr>;
  ggml_backend_ptr& kept = connections[endpoint];
  if (kept == nullptr) kept.reset(module.init(endpoint.c_str(), 0));
}

}  // namespace

void OnGgmlAbort(void (*last_words)(const char* message)) { ggml_set_abort_callback(last_words); }

base::Result<Device> ConnectRpcDevice(const std::string& endpoint, std::uint32_t index,
                                      const std::string& name) {
  const RpcModule module = FindModule();
  if (module.add_server == nullptr || module.init == nullptr) {
    return Fail(ErrorKind::kUnsupported,
                "ggml has no RPC backend here; install its module (libggml0-backend-rpc)");
  }
  KeepConnection(module, endpoint);
  ggml_backend_reg_t server = module.add_server(endpoint.c_str());
  if (server == nullptr) {
    return Fail(ErrorKind::kDeviceFailure, "the ggml RPC server at {} has no devices", endpoint);
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
  return device;
}

}  // namespace gg
