#pragma once
// Rows of a table by token id, plus rows of learned positions. Backward on the CPU scatters sums:
// threads share the columns and every thread processes all rows in order, so no two threads write
// one element and the order of additions never changes (no atomics, no sorting). Floor per element:
// forward 2 (3 with positions) transfers, backward 1 read and 2 of the gradient.
#include "choir/ops/embedding.hpp"
#include "kernels/cuda_kernel.hpp"

namespace choir {

namespace cpu {
template <class T>
void embedding_forward(const ops::EmbeddingForward& args);
template <class T>
void embedding_backward(const ops::EmbeddingBackward& args);
/// The smallest and largest id, to check that all ids are in the table.
struct IdRange {
  std::int32_t lowest, highest;
};
IdRange id_range(const TensorView& ids);
}  // namespace cpu

namespace cuda {
CHOIR_CUDA_KERNEL void embedding_forward(const Stream& stream, const ops::EmbeddingForward& args);
CHOIR_CUDA_KERNEL void embedding_backward(const Stream& stream, const ops::EmbeddingBackward& args);
}  // namespace cuda

namespace ref {
/// f64.
void embedding_forward(const ops::EmbeddingForward& args);
void embedding_backward(const ops::EmbeddingBackward& args);
}  // namespace ref

}  // namespace choir
