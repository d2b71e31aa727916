#include "choir/ops/copy_rows.hpp"

#include <cstring>

#include "kernels/copy_rows/copy_rows.hpp"
#include "kernels/dispatch.hpp"

namespace choir::ops {

void copy_rows(const Stream& stream, DType dtype, std::int64_t rows, std::int64_t width,
               const RowBlock& from, const RowBlock& to, const std::int32_t* further) {
  const std::size_t unit = size_of(dtype);
  const std::size_t bytes = static_cast<std::size_t>(width) * unit;
  stream.count(0, 2.0 * static_cast<double>(bytes) * static_cast<double>(rows));
  if (on_cuda(stream))
    return cuda::copy_rows(stream, static_cast<std::int64_t>(unit), rows, width, from, to, further);
  if (!computes(stream)) return;
  CHOIR_CHECK(!further, "a row offset in device memory is for the CUDA device only");
  const auto* source = static_cast<const std::byte*>(from.data);
  auto* target = static_cast<std::byte*>(to.data);
  for (std::int64_t r = 0; r < rows; ++r)
    std::memcpy(target + static_cast<std::size_t>(r * to.stride) * unit,
                source + static_cast<std::size_t>(r * from.stride) * unit, bytes);
}

}  // namespace choir::ops
