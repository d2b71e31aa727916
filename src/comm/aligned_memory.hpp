#pragma once
// Zeroed blocks of ordinary memory for communication.
#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "choir/comm/chunks.hpp"
#include "choir/core/clock.hpp"
#include "choir/core/error.hpp"

namespace choir {

struct FreeMemory {
  void operator()(std::byte* memory) const { std::free(memory); }
};
using AlignedMemory = std::unique_ptr<std::byte, FreeMemory>;

/// A block aligned to 64 bytes, in huge pages if it is large. Throws CommError if there is no
/// memory. Local.
inline AlignedMemory aligned_memory(std::size_t bytes) {
  constexpr std::size_t kHugePage = std::size_t{2} << 20;
  const std::size_t alignment = bytes >= kHugePage ? kHugePage : 64;
  const std::size_t padded = std::max<std::size_t>(1, chunk_count(bytes, 64)) * 64;
  void* memory = nullptr;
  if (posix_memalign(&memory, alignment, padded) != 0)
    throw CommError(
        "no memory for a communication buffer of " + format_bytes(static_cast<double>(bytes)),
        "use fewer ranks per node or a smaller model");
  if (alignment == kHugePage) madvise(memory, padded, MADV_HUGEPAGE);
  std::memset(memory, 0, padded);
  return AlignedMemory(static_cast<std::byte*>(memory));
}

}  // namespace choir
