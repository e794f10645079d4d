#include "gg/device_check.h"

#include <ggml-backend.h>
#include <ggml.h>

#include <cmath>
#include <utility>

#include "gg/handles.h"

namespace gg {
namespace {

// Largest error of one element, as a part of the root mean square of the right values. Matrix units
// that round to 10 or 8 bits stay below 0.005; a wrong element is of the order of 1.
constexpr double kTolerance = 0.02;

// Even in [-1, 1) and the same everywhere.
class Numbers {
 public:
  float Next() {
    state_ = state_ * 1664525U + 1013904223U;
    return static_cast<float>(state_ >> 8U) / 8388608.0F - 1.0F;
  }

 private:
  std::uint32_t state_ = 1;
};

CheckProblem MakeProblem(std::string_view op, std::size_t num_experts, std::size_t num_used) {
  CheckProblem problem{.op = op,
                       .num_outputs = 65,
                       .num_rows = 100,
                       .row_width = 256,
                       .num_experts = num_experts,
                       .num_used = num_used,
                       .weights = {},
                       .x = {},
                       .ids = {}};
  Numbers numbers;
  problem.weights.resize(num_experts * problem.num_outputs * problem.row_width);
  for (float& value : problem.weights) value = numbers.Next();
  problem.x.resize(problem.num_rows * problem.row_width);
  for (float& value : problem.x) value = numbers.Next();
  for (std::size_t row = 0; row < problem.num_rows; ++row) {
    for (std::size_t slot = 0; slot < num_used; ++slot) {
      problem.ids.push_back(static_cast<std::int32_t>((row * 7 + slot * 2 + 1) % num_experts));
    }
  }
  return problem;
}

std::vector<double> Reference(const CheckProblem& problem) {
  std::vector<double> y;
  y.reserve(problem.ids.size() * problem.num_outputs);
  for (std::size_t pair = 0; pair < problem.ids.size(); ++pair) {
    const float* x = &problem.x[pair / problem.num_used * problem.row_width];
    const auto expert = static_cast<std::size_t>(problem.ids[pair]);
    for (std::size_t output = 0; output < problem.num_outputs; ++output) {
      const float* w =
          &problem.weights[(expert * problem.num_outputs + output) * problem.row_width];
      double sum = 0;
      for (std::size_t i = 0; i < problem.row_width; ++i) {
        sum += static_cast<double>(w[i]) * static_cast<double>(x[i]);
      }
      y.push_back(sum);
    }
  }
  return y;
}

base::Result<void> Compare(const Device& device, const CheckProblem& problem,
                           const std::vector<float>& actual) {
  const std::vector<double> expected = Reference(problem);
  if (actual.size() != expected.size()) {
    return base::Fail(base::ErrorKind::kDeviceFailure, "{} ({}): {} gave {} numbers instead of {}",
                      device.name, device.description, problem.op, actual.size(), expected.size());
  }
  double squares = 0;
  for (const double value : expected) squares += value * value;
  const double scale = std::sqrt(squares / static_cast<double>(expected.size()));
  std::size_t worst = 0;
  double worst_error = -1;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double error = std::abs(static_cast<double>(actual[i]) - expected[i]) / scale;
    // A NaN is worse than any number.
    if (error <= worst_error) continue;
    worst = i;
    worst_error = error;
    if (std::isnan(error)) break;
  }
  if (worst_error <= kTolerance) return {};
  return base::Fail(
      base::ErrorKind::kDeviceFailure,
      "{} ({}) computes wrong numbers: {} of {}x{}x{} gave {:.6g} instead of {:.6g} at output {} "
      "of row {}; update its driver, or leave it out of --targets",
      device.name, device.description, problem.op, problem.num_outputs, problem.num_rows,
      problem.row_width, actual[worst], expected[worst], worst % problem.num_outputs,
      worst / problem.num_outputs / problem.num_used);
}

struct Tensors {
  ggml_tensor* weights;
  ggml_tensor* x;
  ggml_tensor* ids;  // nullptr for the mul_mat
  ggml_tensor* y;
};

Tensors MakeTensors(ggml_context* context, const CheckProblem& problem) {
  const auto width = static_cast<std::int64_t>(problem.row_width);
  const auto outputs = static_cast<std::int64_t>(problem.num_outputs);
  const auto rows = static_cast<std::int64_t>(problem.num_rows);
  Tensors tensors = {};
  if (problem.op == "mul_mat") {
    tensors.weights = ggml_new_tensor_2d(context, GGML_TYPE_F32, width, outputs);
    tensors.x = ggml_new_tensor_2d(context, GGML_TYPE_F32, width, rows);
    tensors.y = ggml_mul_mat(context, tensors.weights, tensors.x);
    return tensors;
  }
  tensors.weights = ggml_new_tensor_3d(context, GGML_TYPE_F32, width, outputs,
                                       static_cast<std::int64_t>(problem.num_experts));
  tensors.x = ggml_new_tensor_3d(context, GGML_TYPE_F32, width, 1, rows);
  tensors.ids =
      ggml_new_tensor_2d(context, GGML_TYPE_I32, static_cast<std::int64_t>(problem.num_used), rows);
  tensors.y = ggml_mul_mat_id(context, tensors.weights, tensors.x, tensors.ids);
  return tensors;
}

}  // namespace

base::Result<std::vector<float>> ComputeOnDevice(const Device& device,
                                                 const CheckProblem& problem) {
  constexpr std::size_t kGraphSize = 8;
  auto backend = Backend::Open(device);
  if (!backend) return Forward(backend);
  auto context = Context::Make(/*max_tensors=*/4, kGraphSize);
  if (!context) return Forward(context);
  const Tensors tensors = MakeTensors(context->get(), problem);
  if (!ggml_backend_dev_supports_op(device.handle, tensors.y)) {
    return base::Fail(base::ErrorKind::kUnsupported,
                      "{} ({}) does not support {}; leave it out of --targets", device.name,
                      device.description, problem.op);
  }
  auto buffer = Buffer::ForContext(*context, ggml_backend_dev_buffer_type(device.handle));
  if (!buffer) return Forward(buffer);
  ggml_backend_tensor_set(tensors.weights, problem.weights.data(), 0, ggml_nbytes(tensors.weights));
  ggml_backend_tensor_set(tensors.x, problem.x.data(), 0, ggml_nbytes(tensors.x));
  if (tensors.ids != nullptr) {
    ggml_backend_tensor_set(tensors.ids, problem.ids.data(), 0, ggml_nbytes(tensors.ids));
  }
  ggml_cgraph* graph = context->NewGraph(kGraphSize);
  ggml_build_forward_expand(graph, tensors.y);
  const ggml_status status = ggml_backend_graph_compute(backend->get(), graph);
  if (status != GGML_STATUS_SUCCESS) {
    return base::Fail(base::ErrorKind::kDeviceFailure, "{} ({}): {} failed: {}", device.name,
                      device.description, problem.op, ggml_status_to_string(status));
  }
  std::vector<float> y(problem.ids.size() * problem.num_outputs);
  ggml_backend_tensor_get(tensors.y, y.data(), 0, ggml_nbytes(tensors.y));
  return y;
}

base::Result<void> CheckDevice(const Device& device, const CheckCompute& compute) {
  const std::pair<std::string_view, std::size_t> operations[] = {{"mul_mat", 1}, {"mul_mat_id", 4}};
  for (const auto& [op, num_experts] : operations) {
    const CheckProblem problem = MakeProblem(op, num_experts, num_experts > 1 ? 2 : 1);
    auto actual = compute(device, problem);
    if (!actual) return Forward(actual);
    if (auto right = Compare(device, problem, *actual); !right) return right;
  }
  return {};
}

}  // namespace gg
