#pragma once
// The memory in which CBLAS packs operands of products on the CPU, which no plan of tensors shows.
//
// OpenBLAS maps a buffer of 128 MiB for each thread and keeps it. It copies a panel of one operand
// there, a part of each of its columns: GEMM_Q elements, 384 (Zen, Haswell) or 512 (Skylake-X) in
// f32, 256 or fewer in f64, so at most 2 KiB. In row-major order that operand is A, and its columns
// are the rows of C. The threads of a product divide the rows, so its panels together take at most
//
//   min(2 KiB, k elements) m       bytes of a product C [m, n] with inner extent k
//
// which the largest product touches once and for all; the other operand's panels fit a cache. The
// gradient of a head of 128,256 entries takes 188 MiB (measured: 189 on Zen, 253 of at most 250.5 +
// caches on Skylake-X; 128,256 x 512, k = 1,024, two threads).
//
// oneDNN's memory is its scratchpad, a few MiB, which is not counted.

#include <cstddef>
#include <set>

#include "choir/core/memory_plan.hpp"
#include "choir/device/device.hpp"
#include "kernels/gemm/gemm.hpp"

namespace choir::ops {

/// OpenBLAS's buffer of a thread (BUFFER_SIZE of its x86-64 builds).
inline constexpr std::size_t kBlasBuffer = std::size_t{128} << 20;

/// True if the CPU device computes this product by CBLAS, with this processor and these libraries.
bool goes_to_blas(const Product& product);

/// Bytes in which CBLAS packs the operands of these products with this number of threads, at most;
/// 0 if none of them goes there. Local.
std::size_t packing_bytes(const std::set<Product>& products, int threads);

/// Adds this memory to the plan of a rank that computes these products with the threads of the
/// caller on a device of this kind. The engine does not own it, so its own count of memory lacks
/// the entry.
void add_packing(MemoryPlan& plan, const std::set<Product>& products, DeviceKind kind);

}  // namespace choir::ops
