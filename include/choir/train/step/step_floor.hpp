#pragma once
// The least time one optimizer step can take: the work that no implementation avoids, at rates
// measured on the same machine. Pure functions.
//
//   FLOPs   6 N_matmul per token: forward, input gradient and weight gradient of every product
//           (N_matmul: weights of the linear layers and the head, V C once whether tied or not),
//           and 12 D per visible (query, key) pair and head: two products forward, four backward,
//           of which causal attention sees T (T + 1) / 2 pairs.
//   bytes   AdamW reads gradient, master and two moments and writes the latter three (7 words a
//           parameter, 28 B in fp32; 24 B with bf16 masters) and the 16-bit copy (30 B); the
//           gradient norm reads each gradient once more.
//
//   floor = FLOPs / GEMM rate + bytes / memory rate
//
// Speech: three times the forward FLOPs of products, convolutions and attention, for frames that
// are not padding.
//
// Activations are not counted because they may stay in caches, nor is communication because it may
// be hidden. Kernels that skip masked work, or parameters that fit in a cache, can beat the floor
// slightly.
#include <cstdint>

#include "choir/nn/precision.hpp"

namespace choir {

/// The work of one rank in one step.
struct StepWork {
  double gemm_flops = 0;
  double attention_flops = 0;
  double optimizer_bytes = 0;
  double norm_bytes = 0;

  double flops() const { return gemm_flops + attention_flops; }
  double bytes() const { return optimizer_bytes + norm_bytes; }
};

struct StepRates {
  double flops_per_second = 0;  ///< of a large product in the compute type, per rank
  double bytes_per_second = 0;  ///< of a large copy or update in place, read + written, per rank
};

/// The work of updating `parameters` parameters, without FLOPs.
StepWork update_work(const Precision& precision, std::int64_t parameters);

double floor_seconds(const StepWork& work, const StepRates& rates);

}  // namespace choir
