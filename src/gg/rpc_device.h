// A device behind a ggml RPC server.
//
// ggml's client has no deadlines, and nearly every call of it ends the process when the server is
// gone or is none. So whoever uses this is a process that is there for nothing else (expert-split
// worker), and waits are bounded by whoever started that. One thread.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "gg/devices.h"

namespace gg {

// What is called before ggml ends the process, instead of its message on stderr.
void OnGgmlAbort(void (*last_words)(const char* message));

// Device `index` of the server at `endpoint` ("10.0.0.7:50052"), as Device::name `name`. One
// connection to each server is made, with the first of its devices, and kept for the life of the
// process. Precondition: DiscoverDevices was called. Errors: kUnsupported when ggml has no RPC
// backend; kDeviceFailure when the server has no such device. Ends the process (OnGgmlAbort) when
// nobody listens there or who listens answers nonsense; waits without end when nothing is answered.
base::Result<Device> ConnectRpcDevice(const std::string& endpoint, std::uint32_t index,
                                      const std::string& name);

}  // namespace gg
