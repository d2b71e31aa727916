// Products on the CPU: the choice among the libraries and our own kernels, batches, and products by
// CBLAS.

#include <cblas.h>
#include <omp.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <memory>
#include <new>
#include <set>
#include <tuple>
#include <vector>

#include "choir/core/error.hpp"
#include "kernels/cpu/parallel.hpp"
#include "kernels/gemm/gemm.hpp"
#include "kernels/gemm/packing_memory.hpp"
#include "src/device/cpu_device.hpp"

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
  static std::atomic<int> mapped{1};  // one buffer is mapped when the library is loaded
  const int present = mapped.load(std::memory_order_relaxed);
  if (buffers <= present) return;
  const std::size_t bytes = static_cast<std::size_t>(buffers - present) * ops::kBlasBuffer;
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

namespace {

/// Limits the number of threads that the libraries use.
class ThreadLimit {
 public:
  explicit ThreadLimit(int threads) { omp_set_num_threads(threads); }
  ~ThreadLimit() { omp_set_num_threads(before_); }
  ThreadLimit(const ThreadLimit&) = delete;
  ThreadLimit& operator=(const ThreadLimit&) = delete;

 private:
  int before_ = omp_get_max_threads();
};

/// True if one thread computes the product, because a fork costs as much as more threads would
/// save. Depends on the shape alone, since bits change with the number of threads.
bool is_small(const GemmArgs& args) {
  constexpr std::int64_t kSmallFlops = std::int64_t{1} << 19;
  return 2 * args.m * args.n * args.k < kSmallFlops;
}

/// True for products that are faster by CBLAS. Without AVX-512 oneDNN multiplies f32 in place,
/// while CBLAS packs it first. So CBLAS is faster for the columns of a transposed A (gradients of
/// weights), and for rows of B that are a multiple of 2 KiB apart, which on huge pages share the
/// same sets of the cache: one thread of a Zen 3, extents of 128 to 2048, 80 GFLOP/s instead of 62
/// and 76 instead of 55. Other products are not faster, or by 6 %.
bool packs_first(DType in, bool transpose_a, bool transpose_b, std::int64_t n) {
  static const bool narrow = !cpu_features().avx512;
  constexpr std::int64_t kAliases = 2048 / sizeof(float);
  return narrow && in == DType::f32 && (transpose_a || (!transpose_b && n % kAliases == 0));
}

void multiply(PlanCache& plans, const GemmArgs& args) {
  if (packs_first(args.in, args.transpose_a, args.transpose_b, args.n))
    return gemm_blas(plans, args);
  if (gemm_onednn(plans, args)) return;
  // oneDNN has no f16 product on most processors, but the fastest f32 one.
  if (args.in == DType::f16) return gemm_widened(plans, args, gemm_cpu);
  gemm_blas(plans, args);
}

/// Plans share one scratchpad, so every thread has plans of its own.
struct PlansOfThreads {
  std::vector<std::unique_ptr<PlanCache>> all;

  void reserve(int threads) {
    while (all.size() < static_cast<std::size_t>(threads))
      all.push_back(std::make_unique<PlanCache>());
  }
};

}  // namespace

void gemm_cpu(PlanCache& plans, const GemmArgs& args) {
  if (args.reads_b_once && gemm_few_rows(plans, args)) return;
  if (!is_small(args)) return multiply(plans, args);
  const ThreadLimit one(1);
  multiply(plans, args);
}

void gemm_batched_cpu(PlanCache& plans, const GemmArgs& args) {
  const int threads = omp_get_max_threads();
  if (threads == 1 || args.batch < 2 * threads || omp_in_parallel()) {
    for (std::int64_t h = 0; h < args.batch; ++h) gemm_cpu(plans, args.matrix(h));
    return;
  }
  auto& own = plans.get<PlansOfThreads>();
  own.reserve(threads);
  require_blas_buffers(2 * threads);  // buffers of the library's own teams, and one per thread here
  cpu::parallel_tasks(args.batch, [&](std::int64_t h) {
    const ThreadLimit one(1);
    multiply(*own.all[static_cast<std::size_t>(omp_get_thread_num())], args.matrix(h));
  });
}

bool ops::goes_to_blas(const Product& product) {
  const auto [in, a, b] = std::tuple(product.in, product.transpose_a, product.transpose_b);
  return packs_first(in, a, b, product.n) || !onednn_offers(in == DType::f16 ? DType::f32 : in);
}

std::size_t ops::packing_bytes(const std::set<Product>& products, int threads) {
  constexpr std::int64_t kMostOfColumn = 2048;
  std::int64_t most = 0;
  for (const Product& product : products) {
    if (!goes_to_blas(product)) continue;
    const std::int64_t element = product.in == DType::f64 ? 8 : 4;
    // The matrices of a batch are distributed over the threads, each of which packs its own.
    const std::int64_t at_once = std::min<std::int64_t>(product.batch, threads);
    most = std::max(most, at_once * product.m * std::min(kMostOfColumn, product.k * element));
  }
  return std::min(static_cast<std::size_t>(most), static_cast<std::size_t>(threads) * kBlasBuffer);
}

void ops::add_packing(MemoryPlan& plan, const std::set<Product>& products, DeviceKind kind) {
  if (kind != DeviceKind::cpu) return;
  const std::size_t bytes = packing_bytes(products, omp_get_max_threads());
  if (bytes > 0) plan.add("matrix products (packing)", bytes);
}

}  // namespace choir
