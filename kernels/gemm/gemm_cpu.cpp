#include <omp.h>

#include <memory>
#include <vector>

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

void multiply(PlanCache& plans, const GemmArgs& args) {
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
  cpu::parallel_tasks(args.batch, [&](std::int64_t h) {
    const ThreadLimit one(1);
    multiply(*own.all[static_cast<std::size_t>(omp_get_thread_num())], args.matrix(h));
  });
}

}  // namespace choir
