#include "kernels/packed_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>

namespace kernels {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

}  // namespace

void PackedMemory::Unmap::operator()(std::byte* mapping) const { ::munmap(mapping, size); }

base::Result<PackedMemory> PackedMemory::Allocate(base::Bytes size) {
  // Room to start at a huge page; a sum that saturates is refused by the kernel.
  const std::size_t mapped = (size + base::Bytes(kHugePage)).count();
  void* mapping =
      ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) {
    return base::Fail(base::ErrorKind::kCapacity, "no memory for {} of packed weights",
                      base::FormatBytes(size));
  }
  PackedMemory memory;
  memory.mapping_ = {static_cast<std::byte*>(mapping), Unmap{mapped}};
  // Where the kernel has no huge pages, small ones do as well.
  static_cast<void>(::madvise(mapping, mapped, MADV_HUGEPAGE));
  return memory;
}

void PackedMemory::GiveBack(const std::byte* first, base::Bytes size) {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto address = reinterpret_cast<std::uintptr_t>(first);
  const std::uintptr_t begin = (address + page - 1) / page * page;
  const std::uintptr_t end = (address + size.count()) / page * page;
  if (begin >= end) return;
  static_cast<void>(::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED));
}

std::byte* PackedMemory::data() const {
  const auto address = reinterpret_cast<std::uintptr_t>(mapping_.get());
  return mapping_.get() + (kHugePage - address % kHugePage) % kHugePage;
}

}  // namespace kernels
