#include <cblas.h>
#include <omp.h>
#include <sys/mman.h>

#include <atomic>
#include <limits>
#include <new>

#include "choir/core/error.hpp"
#include "kernels/gemm/gemm.hpp"

namespace choir {
namespace {

void call_blas(const GemmArgs& args, const double* a, const double* b, double* c, double beta) {
  cblas_dgemm(CblasRowMajor, args.transpose_a ? CblasTrans : CblasNoTrans,
              args.transpose_b ? CblasTrans : CblasNoTrans, static_cast<int>(args.m),
              static_cast<int>(args.n), static_cast<int>(args.k), 1.0, a,
              static_cast<int>(args.transpose_a ? args.m : args.k), b,
              static_cast<int>(args.transpose_b ? args.k : args.n), beta, c,
              static_cast<int>(args.n));
}

void call_blas(const GemmArgs& args, const float* a, const float* b, float* c, float beta) {
  cblas_sgemm(CblasRowMajor, args.transpose_a ? CblasTrans : CblasNoTrans,
              args.transpose_b ? CblasTrans : CblasNoTrans, static_cast<int>(args.m),
              static_cast<int>(args.n), static_cast<int>(args.k), 1.0f, a,
              static_cast<int>(args.transpose_a ? args.m : args.k), b,
              static_cast<int>(args.transpose_b ? args.k : args.n), beta, c,
              static_cast<int>(args.n));
}

/// The bias is written to C first and the product is added, so that C is rounded once per term, as
/// in the other implementations.
template <class T>
void multiply(const GemmArgs& args, const T* a, const T* b, const T* bias, T* c) {
  if (bias) {
#pragma omp parallel for schedule(static)
    for (std::int64_t i = 0; i < args.m; ++i)
      for (std::int64_t j = 0; j < args.n; ++j) {
        T& element = c[i * args.n + j];
        element = args.accumulate ? element + bias[j] : bias[j];
      }
  }
  call_blas(args, a, b, c, bias || args.accumulate ? T(1) : T(0));
}

}  // namespace

void require_blas_buffers(int buffers) {
  constexpr std::size_t kBuffer = std::size_t{128} << 20;
  static std::atomic<int> mapped{1};  // one buffer is mapped when the library is loaded
  const int present = mapped.load(std::memory_order_relaxed);
  if (buffers <= present) return;
  const std::size_t bytes = static_cast<std::size_t>(buffers - present) * kBuffer;
  void* const addresses = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (addresses == MAP_FAILED) throw std::bad_alloc();
  munmap(addresses, bytes);
  mapped = buffers;
}

void gemm_blas(PlanCache& plans, const GemmArgs& args) {
  constexpr std::int64_t kLargest = std::numeric_limits<int>::max();
  CHOIR_CHECK(args.m <= kLargest && args.n <= kLargest && args.k <= kLargest,
              "{} x {} x {} is too large for CBLAS", args.m, args.n, args.k);
  // Each thread of the team needs a buffer, and so does the caller.
  if (!omp_in_parallel()) require_blas_buffers(omp_get_max_threads() + 1);
  switch (args.in) {
    case DType::f64:
      return multiply(args, static_cast<const double*>(args.a), static_cast<const double*>(args.b),
                      static_cast<const double*>(args.bias), static_cast<double*>(args.c));
    case DType::f32:
      return multiply(args, static_cast<const float*>(args.a), static_cast<const float*>(args.b),
                      static_cast<const float*>(args.bias), static_cast<float*>(args.c));
    case DType::bf16:
    case DType::f16:
      return gemm_widened(plans, args, gemm_blas);
    default:
      CHOIR_CHECK(false, "gemm of {}", name_of(args.in));
  }
}

}  // namespace choir
