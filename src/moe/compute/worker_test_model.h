// The small model of the tests of owners behind a connection, and what hosts it.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>

#include "gg/devices.h"
#include "moe/compute/hosted_experts.h"
#include "moe/compute/test_experts.h"

namespace moe {

inline constexpr std::size_t kLayers = 2;
inline constexpr std::size_t kExperts = 6;
inline constexpr std::size_t kUsed = 2;
inline constexpr std::size_t kMaxRows = 40;

// A model of random experts with what its file would say of it.
inline TestExpertShape LayeredShape(int type) {
  TestExpertShape shape = ShapeOfType(type);
  shape.num_layers = kLayers;
  shape.num_experts = kExperts;
  return shape;
}

struct WorkerTestModel : TestModel {
  explicit WorkerTestModel(int type) : TestModel(LayeredShape(type), kUsed) {}
};

inline gg::Device Cpu() {
  auto devices = gg::DiscoverDevices();
  EXPECT_TRUE(devices);
  return *gg::FindDevice(*devices, "cpu");
}

inline HostedExpertsOptions Hosting(const WorkerTestModel& model) {
  return {.target = "cpu",
          .device = Cpu(),
          .shape = &model.shape,
          .stacks = &model.stacks,
          .weights = model.experts->weights()};
}

}  // namespace moe
