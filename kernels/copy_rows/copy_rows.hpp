#pragma once
// Copies of rows between two strided memory areas on the GPU; the CPU uses one memcpy per row.
// Floor: 2 transfers.
#include "choir/ops/copy_rows.hpp"
#include "kernels/cuda_kernel.hpp"

namespace choir::cuda {

/// Elements of `unit` bytes.
CHOIR_CUDA_KERNEL void copy_rows(const Stream& stream, std::int64_t unit, std::int64_t rows,
                                 std::int64_t width, const ops::RowBlock& from,
                                 const ops::RowBlock& to, const std::int32_t* further);

}  // namespace choir::cuda
