#include "choir/core/error.hpp"
#include "choir/device/cpu_device.hpp"
#include "kernels/attention/attention.hpp"

#if defined(__linux__) && defined(__x86_64__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace choir {
namespace {

/// Requests the 8 KiB of tile state, which Linux grants once per process and only on request.
bool request_tiles() {
#if defined(__linux__) && defined(__x86_64__)
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  const CpuFeatures& cpu = cpu_features();
  return cpu.amx_bf16 && cpu.avx512_bf16 &&
         syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

void check_tiles(const ops::AttentionProblem& problem) {
  CHOIR_CHECK(amx_available(), "attention with AMX tiles, which this process may not use");
  CHOIR_CHECK(!problem.biased, "attention with AMX tiles does not support a bias");
  CHOIR_CHECK(!problem.windowed(), "attention with AMX tiles does not support a window");
  CHOIR_CHECK(!problem.divided(), "attention with AMX tiles does not support documents");
}

}  // namespace

bool amx_available() {
  static const bool available = request_tiles();
  return available;
}

AttentionKernel attention_kernel(const ops::AttentionProblem& problem) {
  // Attention of a few queries to a cache is bound by reading it, and tiles would be mostly
  // padding.
  constexpr std::int64_t kFewQueries = 8;
  const bool tiles = problem.dtype == DType::bf16 && problem.queries >= kFewQueries &&
                     !problem.biased && !problem.windowed() && !problem.divided() &&
                     amx_available();
  return tiles ? AttentionKernel::amx : AttentionKernel::simd;
}

std::int64_t attention_workspace_cpu(AttentionKernel kernel, const ops::AttentionProblem& problem,
                                     bool backward, int threads) {
  if (kernel == AttentionKernel::amx)
    return backward ? attention_backward_amx_bytes(problem, threads)
                    : attention_forward_amx_bytes(problem, threads);
  if (!backward && attention_of_one_query(problem))
    return attention_one_query_simd_bytes(problem, threads);
  return backward ? attention_backward_simd_bytes(problem, threads)
                  : attention_forward_simd_bytes(problem, threads);
}

void attention_forward_cpu(AttentionKernel kernel, const ops::AttentionForward& args, int threads) {
  if (kernel == AttentionKernel::simd)
    return attention_of_one_query(args.problem) ? attention_one_query_simd(args, threads)
                                                : attention_forward_simd(args, threads);
  check_tiles(args.problem);
  attention_forward_amx(args, threads);
}

void attention_backward_cpu(AttentionKernel kernel, const ops::AttentionBackward& args,
                            int threads) {
  if (kernel == AttentionKernel::simd) return attention_backward_simd(args, threads);
  check_tiles(args.problem);
  attention_backward_amx(args, threads);
}

}  // namespace choir
