#include <omp.h>

#include <memory>
#include <vector>

#include "choir/device/cpu_device.hpp"
#include "kernels/cpu/parallel.hpp"
#include "kernels/gemm/gemm.hpp"

namespace choir {
namespace {

/// What the libraries ask for how many threads to take.
class ThreadLimit {
 public:
  explicit ThreadLimit(int threads) { omp_set_num_threads(threads); }
  ~ThreadLimit() { omp_set_num_threads(before_); }
  ThreadLimit(const ThreadLimit&) = delete;
  ThreadLimit& operator=(const ThreadLimit&) = delete;

 private:
  int before_ = omp_get_max_threads();
};

/// A product of fewer FLOPs takes one thread: a fork costs as much as the others would save. Of the
/// shape alone, since bits change with the threads.
bool is_small(const GemmArgs& args) {
  constexpr std::int64_t kSmallFlops = std::int64_t{1} << 19;
  return 2 * args.m * args.n * args.k < kSmallFlops;
}

/// Where there is no AVX-512, oneDNN multiplies f32 where it lies, and CBLAS packs it first. So the
/// columns of a transposed A (gradients of weights), and rows of B that are a multiple of 2 KiB
/// apart, which on huge pages meet in the same sets of the cache, are faster by CBLAS: one thread
/// of a Zen 3, extents of 128 to 2048, 80 GFLOP/s for 62 and 76 for 55. Others are not, or by 6 %.
bool packs_first(const GemmArgs& args) {
  static const bool narrow = !cpu_features().avx512;
  constexpr std::int64_t kAliases = 2048 / sizeof(float);
  return narrow && args.in == DType::f32 &&
         (args.transpose_a || (!args.transpose_b && args.n % kAliases == 0));
}

void multiply(PlanCache& plans, const GemmArgs& args) {
  if (packs_first(args)) return gemm_blas(plans, args);
  if (gemm_onednn(plans, args)) return;
  // oneDNN has no f16 product on most processors, but the fastest f32 one.
  if (args.in == DType::f16) return gemm_widened(plans, args, gemm_cpu);
  gemm_blas(plans, args);
}

/// Plans have one scratchpad, so that every thread has plans of its own.
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
  require_blas_buffers(2 * threads);  // those of teams of the library itself, and one for each here
  cpu::parallel_tasks(args.batch, [&](std::int64_t h) {
    const ThreadLimit one(1);
    multiply(*own.all[static_cast<std::size_t>(omp_get_thread_num())], args.matrix(h));
  });
}

}  // namespace choir
