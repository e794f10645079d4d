// What a model family's adapter tells the rest of the program about a model file, and the table of
// families.
//
// A family is everything that is particular to one architecture: its metadata keys, tensor names,
// forward graph and request state. The placement substrate (src/moe) never sees it; it gets the
// plain values of a ModelDescription. Nothing here loads weights. Values; any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "base/bytes.h"
#include "base/result.h"
#include "gg/gguf_file.h"
#include "moe/materialize/expert_stacks.h"
#include "moe/plan/model_shape.h"

namespace model {

// The sizes that decide how much memory the dense part takes: attention, router, shared expert,
// embeddings, output, caches and buffers, all on the primary.
struct DenseProfile {
  base::Bytes weights;  // of every tensor that the forward pass reads, experts excluded
  std::uint32_t num_vocab = 0;
  std::uint32_t n_embd = 0;
  std::uint32_t num_heads = 0;             // query heads of an attention layer
  std::uint32_t num_attention_layers = 0;  // layers that keep keys and values of every token
  std::uint32_t kv_width = 0;      // elements of one token's keys (and of its values) in a layer
  base::Bytes state_per_sequence;  // recurrent and convolution state of all layers, in F32
  std::uint32_t widest_row = 0;    // floats of a row's activations that live at once in a layer
};

// How the model shall be run.
struct ContextRequest {
  std::uint32_t context = 4096;  // tokens that one sequence can hold
  std::uint32_t num_sequences = 1;
  std::uint32_t batch_rows = 512;  // rows of one step, at most
  std::uint32_t logit_rows = 1;    // rows of one step whose logits are read
  int kv_type = 1;                 // ggml_type of the cache; 1 is F16
  bool on_cpu = false;             // as primary: its attention keeps no scores
};

// Memory of the dense part on the primary.
struct DenseNeeds {
  base::Bytes weights;
  base::Bytes kv_cache;
  base::Bytes state;    // recurrent and convolution state of every sequence
  base::Bytes compute;  // an estimate, on the high side; a reserved graph knows exactly

  base::Bytes total() const { return weights + kv_cache + state + compute; }
};

// Precondition: request.kv_type is a type of this ggml. Sums saturate.
DenseNeeds NeedsOf(const DenseProfile& dense, const ContextRequest& request);

struct ModelDescription {
  moe::ModelShape shape;     // units, and the identity that plans and profiles carry
  moe::ExpertStacks stacks;  // by moe::LayerId, like shape.layers
  DenseProfile dense;
  std::uint32_t context_length = 0;  // tokens, in training
};

class PlacedBackend;      // model/placed_backend.h
struct DenseLoadRequest;  // model/placed_backend.h

struct ModelFamily {
  std::string_view architecture;  // as in general.architecture
  base::Result<ModelDescription> (*describe)(const gg::GgufFile& file);
  // Loads the dense part. Errors: kCorruptModel, kCapacity, kDeviceFailure, kCancelled. Nullptr for
  // a family that can only be planned for.
  base::Result<std::unique_ptr<PlacedBackend>> (*load)(const DenseLoadRequest& request) = nullptr;
};

// Dispatches on general.architecture. Errors: kCorruptModel when the key is missing or names none
// of `families` (the message lists them); else those of the family's `describe`.
base::Result<ModelDescription> DescribeModel(const gg::GgufFile& file,
                                             std::span<const ModelFamily> families);

// Architecture, name, quantisation and hashes, as far as the file alone tells them; the counts of
// layers and experts are the family's to add. Errors: kCorruptModel (a key of another type).
base::Result<moe::ModelIdentity> ReadIdentity(const gg::GgufFile& file);

// The name of a general.file_type, for example "Q4_K_M" for 15; "unknown" for one not known.
std::string_view FileTypeName(std::uint32_t file_type);

}  // namespace model
