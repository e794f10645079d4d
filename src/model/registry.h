// The model families this program is built with. Any thread.
#pragma once

#include <span>

#include "base/result.h"
#include "model/family.h"

namespace model {

std::span<const ModelFamily> Families();

// DescribeModel (model/family.h) over Families().
base::Result<ModelDescription> DescribeModel(const gg::GgufFile& file);

}  // namespace model
