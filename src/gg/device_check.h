// Does a device compute right numbers? Asked once for each device in use, before anything is placed
// on it.
//
// Drivers exist that return wrong numbers without any error, for whole operations or only where a
// matrix does not fill its last tile. One mul_mat (65 outputs, 100 rows of 256) and one mul_mat_id
// are compared with double precision. On a software Vulkan driver this takes a second or two, most
// of it compiling shaders; on a GPU some milliseconds. One thread per device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "gg/devices.h"

namespace gg {

// y[row, slot] = weights[ids[row, slot]] * x[row]: `num_used` is 1 and every id 0 for the mul_mat.
struct CheckProblem {
  std::string_view op;  // "mul_mat" or "mul_mat_id"
  std::size_t num_outputs = 0;
  std::size_t num_rows = 0;
  std::size_t row_width = 0;
  std::size_t num_experts = 0;
  std::size_t num_used = 0;
  std::vector<float> weights;     // [num_experts, num_outputs, row_width]
  std::vector<float> x;           // [num_rows, row_width]
  std::vector<std::int32_t> ids;  // [num_rows, num_used]
};

// [num_rows, num_used, num_outputs], or why there is none.
using CheckCompute =
    std::function<base::Result<std::vector<float>>(const Device& device, const CheckProblem&)>;

// Computes on the device itself. Errors: kUnsupported when it refuses the operation, kDeviceFailure
// or kCapacity when it fails, each naming the device.
base::Result<std::vector<float>> ComputeOnDevice(const Device& device, const CheckProblem& problem);

// Runs both operations through `compute`. Errors: kDeviceFailure, naming the device, the operation
// and the worst element, when the numbers are wrong or missing; what `compute` returned otherwise.
base::Result<void> CheckDevice(const Device& device, const CheckCompute& compute = ComputeOnDevice);

}  // namespace gg
