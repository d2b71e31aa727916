#include "src/comm/private_buffer.hpp"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

#include "choir/comm/chunks.hpp"
#include "choir/core/clock.hpp"
#include "choir/core/error.hpp"

namespace choir {

PrivateBuffer::PrivateBuffer(std::size_t bytes) : bytes_(bytes) {
  constexpr std::size_t kHugePage = std::size_t{2} << 20;
  const std::size_t alignment = bytes >= kHugePage ? kHugePage : 64;
  const std::size_t padded = std::max<std::size_t>(1, chunk_count(bytes, 64)) * 64;
  if (posix_memalign(&data_, alignment, padded) != 0)
    throw CommError(
        "no memory for a communication buffer of " + format_bytes(static_cast<double>(bytes)),
        "use fewer ranks per node or a smaller model");
  if (alignment == kHugePage) madvise(data_, padded, MADV_HUGEPAGE);
  std::memset(data_, 0, padded);
}

PrivateBuffer::~PrivateBuffer() {
  std::free(data_);
}

}  // namespace choir
