// The model families this program is built with. Any thread.
#pragma once

#include <memory>
#include <span>

#include "base/result.h"
#include "model/family.h"
#include "model/placed_backend.h"

namespace model {

std::span<const ModelFamily> Families();

// DescribeModel (model/family.h) over Families().
base::Result<ModelDescription> DescribeModel(const gg::GgufFile& file);

// The dense part of a model that DescribeModel accepted, by its family's `load`.
base::Result<std::unique_ptr<PlacedBackend>> LoadDense(const DenseLoadRequest& request);

}  // namespace model
