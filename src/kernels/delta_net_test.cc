#include "kernels/delta_net.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

namespace kernels {
namespace {

// What a DeltaNet layer takes and keeps, for one sequence.
struct Layer {
  Layer(const DeltaNetShape& of, std::size_t rows) : shape(of), num_rows(rows) {
    kernel = Random(shape.taps * shape.channels(), 0.5f);
    window = Random(shape.window_size(), 1.0f);
    state = Random(shape.state_size(), 0.3f);
    mixed = Random(rows * shape.channels(), 1.0f);
    alpha = Random(rows * shape.value_heads, 1.0f);
    beta = Random(rows * shape.value_heads, 1.0f);
    gate = Random(rows * value_dim(), 1.0f);
    decay = Random(shape.value_heads, 1.0f);
    for (float& x : decay) x = -std::abs(x);
    decay_bias = Random(shape.value_heads, 1.0f);
    norm = Random(shape.head_dim, 1.0f);
  }

  std::size_t value_dim() const { return shape.value_heads * shape.head_dim; }

  std::vector<float> Random(std::size_t count, float scale) {
    std::normal_distribution<float> normal(0.0f, scale);
    std::vector<float> values(count);
    for (float& value : values) value = normal(random);
    return values;
  }

  DeltaNetShape shape;
  std::size_t num_rows;
  std::mt19937 random{7};
  std::vector<float> kernel, window, state, mixed, alpha, beta, gate, decay, decay_bias, norm;
};

struct Output {
  std::vector<float> convolved, out, window, state;
};

// In batches of `batch` rows; each call works on `heads` heads.
Output Compute(const Layer& layer, InstructionSet set, std::size_t batch, std::size_t heads) {
  const DeltaNetShape& shape = layer.shape;
  const std::size_t channels = shape.channels(), values = layer.value_dim();
  Output o{.convolved = std::vector<float>(layer.num_rows * channels),
           .out = std::vector<float>(layer.num_rows * values),
           .window = layer.window,
           .state = layer.state};
  for (std::size_t row = 0; row < layer.num_rows; row += batch) {
    const std::size_t rows = std::min(batch, layer.num_rows - row);
    const DeltaConvolution convolution{.kernel = layer.kernel.data(),
                                       .window = o.window.data(),
                                       .num_rows = rows,
                                       .in = {layer.mixed.data() + row * channels, channels},
                                       .out = {o.convolved.data() + row * channels, channels}};
    for (std::size_t h = 0; h < shape.num_heads(); h += heads) {
      DeltaConvolve(set)(shape, convolution, h, std::min(h + heads, shape.num_heads()));
    }
    const DeltaRule rule{.state = o.state.data(),
                         .num_rows = rows,
                         .qkv = {o.convolved.data() + row * channels, channels},
                         .alpha = {layer.alpha.data() + row * shape.value_heads, shape.value_heads},
                         .beta = {layer.beta.data() + row * shape.value_heads, shape.value_heads},
                         .gate = {layer.gate.data() + row * values, values},
                         .decay = layer.decay.data(),
                         .decay_bias = layer.decay_bias.data(),
                         .norm = layer.norm.data(),
                         .out = {o.out.data() + row * values, values}};
    for (std::size_t h = 0; h < shape.value_heads; h += heads) {
      RunDeltaRule(set)(shape, rule, h, std::min(h + heads, shape.value_heads));
    }
  }
  return o;
}

double Silu(double x) { return x / (1 + std::exp(-x)); }

// The formulas of the header, row by row in double precision.
class Reference {
 public:
  explicit Reference(const Layer& layer)
      : layer_(layer), state(layer.state.begin(), layer.state.end()) {
    for (std::size_t row = 0; row < layer.num_rows; ++row) {
      const std::vector<double> qkv = Convolved(row);
      for (std::size_t h = 0; h < layer.shape.value_heads; ++h) Step(row, h, qkv);
    }
  }

 private:
  double Input(std::size_t position, std::size_t channel) const {
    const DeltaNetShape& s = layer_.shape;
    if (position < s.taps - 1) return layer_.window[position * s.channels() + channel];
    return layer_.mixed[(position + 1 - s.taps) * s.channels() + channel];
  }

  std::vector<double> Convolved(std::size_t row) const {
    const DeltaNetShape& s = layer_.shape;
    std::vector<double> result(s.channels());
    for (std::size_t c = 0; c < s.channels(); ++c) {
      double sum = 0;
      for (std::size_t t = 0; t < s.taps; ++t) {
        sum += Input(row + t, c) * layer_.kernel[t * s.channels() + c];
      }
      result[c] = Silu(sum);
    }
    for (std::size_t head = 0; head < 2 * s.key_heads; ++head) {
      double squares = 0;
      double* x = result.data() + head * s.head_dim;
      for (std::size_t i = 0; i < s.head_dim; ++i) squares += x[i] * x[i];
      const double scale = head < s.key_heads ? std::sqrt(static_cast<double>(s.head_dim)) : 1;
      for (std::size_t i = 0; i < s.head_dim; ++i) {
        x[i] /= std::sqrt(squares + static_cast<double>(s.norm_epsilon)) * scale;
      }
    }
    return result;
  }

  void Step(std::size_t row, std::size_t head, const std::vector<double>& qkv) {
    const DeltaNetShape& s = layer_.shape;
    const std::size_t n = s.head_dim;
    const double* q = qkv.data() + head % s.key_heads * n;
    const double* k = q + s.key_heads * n;
    const double* v = qkv.data() + (2 * s.key_heads + head) * n;
    double* matrix = state.data() + head * n * n;
    const double a = static_cast<double>(layer_.alpha[row * s.value_heads + head]) +
                     static_cast<double>(layer_.decay_bias[head]);
    const double decay = std::exp(layer_.decay[head] * std::log1p(std::exp(a)));
    const double beta =
        1 / (1 + std::exp(-static_cast<double>(layer_.beta[row * s.value_heads + head])));
    std::vector<double> y(n);
    double squares = 0;
    for (std::size_t j = 0; j < n; ++j) {
      double held = 0;
      for (std::size_t i = 0; i < n; ++i) held += (matrix[i * n + j] *= decay) * k[i];
      for (std::size_t i = 0; i < n; ++i) {
        matrix[i * n + j] += k[i] * beta * (v[j] - held);
        y[j] += q[i] * matrix[i * n + j];
      }
      squares += y[j] * y[j];
    }
    const double length =
        std::sqrt(squares / static_cast<double>(n) + static_cast<double>(s.norm_epsilon));
    for (std::size_t j = 0; j < n; ++j) {
      out.push_back(y[j] / length * layer_.norm[j] *
                    Silu(layer_.gate[row * layer_.value_dim() + head * n + j]));
    }
  }

  const Layer& layer_;

 public:
  std::vector<double> state, out;
};

double Nmse(const std::vector<float>& ours, const std::vector<double>& reference) {
  double error = 0, power = 0;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    error += (ours[i] - reference[i]) * (ours[i] - reference[i]);
    power += reference[i] * reference[i];
  }
  return error / power;
}

class DeltaNetTest : public testing::TestWithParam<InstructionSet> {};

constexpr DeltaNetShape kShapes[] = {
    {.head_dim = 128, .key_heads = 2, .value_heads = 4, .taps = 4, .norm_epsilon = 1e-6f},
    {.head_dim = 48, .key_heads = 3, .value_heads = 3, .taps = 3, .norm_epsilon = 1e-6f},
    {.head_dim = 16, .key_heads = 1, .value_heads = 5, .taps = 2, .norm_epsilon = 1e-5f}};

TEST_P(DeltaNetTest, IsWhatTheFormulasSay) {
  for (const DeltaNetShape& shape : kShapes) {
    const Layer layer(shape, 150);
    const Output ours = Compute(layer, GetParam(), 150, 1000);
    const Reference reference(layer);
    EXPECT_LT(Nmse(ours.out, reference.out), 1e-10) << "head_dim " << shape.head_dim;
    EXPECT_LT(Nmse(ours.state, reference.state), 1e-10) << "head_dim " << shape.head_dim;
  }
}

TEST_P(DeltaNetTest, GivesTheSameBitsHoweverItIsCut) {
  for (const DeltaNetShape& shape : kShapes) {
    const Layer layer(shape, 70);
    const Output whole = Compute(layer, GetParam(), 70, 1000);
    for (const std::size_t batch : {1u, 2u, 3u, 7u, 65u}) {
      const Output cut = Compute(layer, GetParam(), batch, batch % 3 + 1);
      EXPECT_EQ(cut.out, whole.out) << "in batches of " << batch;
      EXPECT_EQ(cut.state, whole.state) << "in batches of " << batch;
      EXPECT_EQ(cut.window, whole.window) << "in batches of " << batch;
    }
  }
}

// A strong decay must not overflow, and a value that is not finite stays in its head.
TEST_P(DeltaNetTest, ExtremesStayWhereTheyBelong) {
  Layer layer(kShapes[0], 3);
  layer.alpha[0] = 1000.0f;
  layer.alpha[1] = -1000.0f;
  layer.beta[2] = -1000.0f;
  const Output fine = Compute(layer, GetParam(), 3, 1000);
  for (const float x : fine.out) ASSERT_TRUE(std::isfinite(x));
  // A channel of the last value head.
  layer.mixed[layer.shape.channels() - 1] = std::numeric_limits<float>::infinity();
  const Output broken = Compute(layer, GetParam(), 3, 1000);
  const std::size_t n = layer.shape.head_dim;
  for (std::size_t row = 0; row < 3; ++row) {
    for (std::size_t i = 0; i < layer.value_dim() - n; ++i) {
      ASSERT_EQ(broken.out[row * layer.value_dim() + i], fine.out[row * layer.value_dim() + i]);
    }
  }
  EXPECT_FALSE(std::isfinite(broken.out[layer.value_dim() - 1]));
}

INSTANTIATE_TEST_SUITE_P(Sets, DeltaNetTest, testing::ValuesIn(AvailableInstructionSets()),
                         [](const auto& set) {
                           return std::string(InstructionSetName(set.param));
                         });

}  // namespace
}  // namespace kernels
