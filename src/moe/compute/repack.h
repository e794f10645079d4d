// Whether weights that the CPU computes with are copied at load into the layout of its kernels
// (kernels/matrix_kernel.h). One choice for the dense part and the experts. A value.
#pragma once

namespace moe {

// The bit rule holds in either layout, but the layouts may differ from each other in bits.
enum class Repack {
  kAuto,  // where the copy fits in the host's available memory with room to spare
  kOff,   // weights are used where the file is mapped
};

}  // namespace moe
