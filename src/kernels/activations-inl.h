// Activation functions of vectors of floats, compiled once an instruction set. Internal to this
// folder.
#if defined(ES_KERNELS_ACTIVATIONS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef ES_KERNELS_ACTIVATIONS_INL_H
#undef ES_KERNELS_ACTIVATIONS_INL_H
#else
#define ES_KERNELS_ACTIVATIONS_INL_H
#endif

#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

template <class D>
HWY_INLINE hn::Vec<D> Sigmoid(D d, hn::Vec<D> x) {
  return hn::Div(hn::Set(d, 1.0f), hn::Add(hn::Set(d, 1.0f), hn::Exp(d, hn::Neg(x))));
}

// x * sigmoid(x)
template <class D>
HWY_INLINE hn::Vec<D> Silu(D d, hn::Vec<D> x) {
  return hn::Div(x, hn::Add(hn::Set(d, 1.0f), hn::Exp(d, hn::Neg(x))));
}

}  // namespace HWY_NAMESPACE
}  // namespace kernels
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
