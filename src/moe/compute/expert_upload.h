// How experts' weights travel to a device: into a stack, expert after expert.
//
// One thread at a time.
#pragma once

#include <ggml.h>

#include <functional>
#include <span>

#include "base/bytes.h"
#include "moe/compute/expert_weights.h"
#include "moe/target/ids.h"

namespace moe {

enum class UploadForm {
  kRuns,   // experts that follow each other in the file in one copy, without a copy in between
  kSmall,  // the same, kSmallPiece at a time: over a network that is slow, so that it shows
           // progress
  kLarge,  // a stack in equal pieces of at most kLargePiece, however its experts lie in the file
};

// ggml's RPC client asks the server's cache for what is larger than this, by a hash over it, and
// has it written there when it is new.
inline constexpr base::Bytes kSmallPiece = base::Bytes::MiB(10);
// Bounds the host memory that a piece takes.
inline constexpr base::Bytes kLargePiece = base::Bytes::MiB(64);

// Copies `experts` of `matrix`, in that order, to the start of `stack`, a tensor with memory that
// holds them. `uploaded` (may be empty) is told the bytes of each piece once it is on its way.
// Throws what ggml or an allocation throws.
void UploadExperts(const ExpertMatrix& matrix, std::span<const ExpertId> experts,
                   ggml_tensor* stack, UploadForm form,
                   const std::function<void(base::Bytes)>& uploaded);

}  // namespace moe
