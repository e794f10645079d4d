#include "gg/cpu_traits.h"

#include <dlfcn.h>
#include <ggml-backend.h>
#include <ggml-cpu.h>
#include <ggml.h>

#include <bit>
#include <memory>

namespace gg {
namespace {

using TraitsOf = const ggml_type_traits_cpu* (*)(ggml_type);

struct CloseLibrary {
  void operator()(void* handle) const { dlclose(handle); }
};

bool IsType(int type) { return type >= 0 && type < GGML_TYPE_COUNT; }

}  // namespace

base::Result<CpuTraits> CpuTraits::Loaded() {
  ggml_backend_dev_t device = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
  if (device == nullptr) {
    return base::Fail(base::ErrorKind::kUnsupported,
                      "no ggml CPU backend is loaded: load the backends first, or install the "
                      "package that holds libggml-cpu");
  }
  // Any function of the module tells which file it came from.
  void* function = ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(device),
                                                     "ggml_backend_set_n_threads");
  Dl_info info{};
  if (function == nullptr || dladdr(function, &info) == 0 || info.dli_fname == nullptr) {
    return base::Fail(base::ErrorKind::kUnsupported,
                      "cannot tell which file the ggml CPU backend was loaded from: use the "
                      "portable kernels");
  }
  // The registry keeps the module loaded; this handle only serves the lookup.
  const std::unique_ptr<void, CloseLibrary> module(dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD));
  void* traits_of = module ? dlsym(module.get(), "ggml_get_type_traits_cpu") : nullptr;
  if (traits_of == nullptr) {
    return base::Fail(base::ErrorKind::kUnsupported,
                      "{} does not export ggml_get_type_traits_cpu: use ggml 0.27 or the portable "
                      "kernels",
                      info.dli_fname);
  }
  CpuTraits traits;
  traits.traits_of_ = traits_of;
  traits.origin_ = info.dli_fname;
  return traits;
}

CpuTraits CpuTraits::Portable() {
  CpuTraits traits;
  traits.origin_ = "portable";
  return traits;
}

base::Result<CpuTypeTraits> CpuTraits::Of(int type) const {
  if (!IsType(type)) {
    return base::Fail(base::ErrorKind::kUnsupported, "tensor type {} is not one of this ggml's",
                      type);
  }
  const ggml_type weights = static_cast<ggml_type>(type);
  CpuTypeTraits result;
  result.type = type;
  result.block = static_cast<std::size_t>(ggml_blck_size(weights));
  result.block_bytes = ggml_type_size(weights);
  if (weights != GGML_TYPE_F32) result.to_float = ggml_get_type_traits(weights)->to_float;
  ggml_type dot_type = GGML_TYPE_F32;
  if (!portable()) {
    const auto traits_of = std::bit_cast<TraitsOf>(traits_of_);
    const ggml_type_traits_cpu* traits = traits_of(weights);
    result.vec_dot = traits->vec_dot;
    dot_type = traits->vec_dot_type;
    if (dot_type != GGML_TYPE_F32) result.from_float = traits_of(dot_type)->from_float;
  }
  const bool decodes = weights == GGML_TYPE_F32 || result.to_float != nullptr;
  const bool multiplies = portable() ? decodes
                                     : result.vec_dot != nullptr && (dot_type == GGML_TYPE_F32 ||
                                                                     result.from_float != nullptr);
  if (!multiplies || result.block == 0) {
    return base::Fail(base::ErrorKind::kUnsupported,
                      "the CPU cannot multiply with tensors of type {}: convert the model to "
                      "another quantisation",
                      ggml_type_name(weights) ? ggml_type_name(weights) : "(removed)");
  }
  result.dot_type = dot_type;
  result.dot_block = static_cast<std::size_t>(ggml_blck_size(dot_type));
  result.dot_block_bytes = ggml_type_size(dot_type);
  return result;
}

}  // namespace gg
