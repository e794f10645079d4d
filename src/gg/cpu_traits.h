// How this machine's CPU multiplies rows of each weight type.
//
// ggml's CPU backend is a module that is picked for the machine's instruction set when backends are
// loaded; its dot products are exported by that module alone. CpuTraits finds them in the module
// that is loaded. Without one (another build of ggml, a symbol that went away) the portable traits
// decode rows to floats instead: slow, always right. Values; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/result.h"

namespace gg {

// One weight type. A vector is converted to `dot_type` once and then multiplied with many rows.
struct CpuTypeTraits {
  // As ggml declares them: one dot product of `n` elements into *s (count = 1, strides unused), and
  // the conversion of `n` floats.
  using VecDot = void (*)(int n, float* s, std::size_t s_stride, const void* row,
                          std::size_t row_stride, const void* vector, std::size_t vector_stride,
                          int count);
  using FromFloat = void (*)(const float* in, void* out, std::int64_t n);
  using ToFloat = void (*)(const void* in, float* out, std::int64_t n);

  int type = 0;                 // a ggml_type
  std::size_t block = 1;        // elements of one block of `type`; row widths are multiples
  std::size_t block_bytes = 4;  // bytes of one block
  int dot_type = 0;             // a ggml_type: how vectors are stored
  std::size_t dot_block = 1;    // elements of one block of `dot_type`; row widths are multiples
  std::size_t dot_block_bytes = 4;
  VecDot vec_dot = nullptr;        // nullptr in portable traits
  FromFloat from_float = nullptr;  // to dot_type; nullptr when that is float
  ToFloat to_float = nullptr;      // decodes `type`; nullptr when that is float
};

class CpuTraits {
 public:
  // Those of the loaded CPU backend. Errors: kUnsupported when no CPU backend is loaded yet, or
  // when its module does not export its traits; the message says which and what to do.
  static base::Result<CpuTraits> Loaded();
  // Decoding to float; needs no backend.
  static CpuTraits Portable();

  // Errors: kUnsupported naming the type when rows of it cannot be multiplied.
  base::Result<CpuTypeTraits> Of(int type) const;

  bool portable() const { return traits_of_ == nullptr; }
  // File of the module, or "portable"; for logs.
  const std::string& origin() const { return origin_; }

 private:
  CpuTraits() = default;

  const void* traits_of_ = nullptr;  // ggml_get_type_traits_cpu of the module
  std::string origin_;
};

}  // namespace gg
