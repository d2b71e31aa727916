#pragma once
// Connectionist temporal classification: the states of an utterance are U + 1 blanks and U labels,
// blank u before label u + 1. Three steps over all rows or utterances:
// 1. of every row that counts: maximum, sum of exponentials, and of the U + 1 symbols concerned the
//    log-probabilities (emissions);
// 2. of every utterance: alpha (ln p of all that ends in a state with its frame) forward, beta (ln
// p
//    of all that follows the frame) backward, frames one after the other. Both are kept near 0 by
//    taking the largest off every kCtcRescale frames, which is summed in f64: rounding errors are
//    those of small numbers, whatever the length;
// 3. of every row: occupation = softmax over the states of alpha + beta, in which the shifts
// cancel;
//    gradient = scale (softmax - occupation of the symbol), label positions of equal symbols summed
//    in their order.
// Floor: logits read twice and written once where an utterance does not stay in a cache, else once
// and once; 2 exp a logit, and a state and frame 2 x (2 exp + log) + exp.
#include "choir/ops/ctc.hpp"
#include "kernels/cuda_kernel.hpp"

namespace choir {

/// Frames between two rescalings of alpha and beta.
inline constexpr std::int64_t kCtcRescale = 8;

/// Where things lie in the workspace, in bytes; elements of `element` bytes (4; f64: 8). Index u of
/// 0..U+1 belongs to label u; 0 and U + 1 are sentinels, emission 0 is the blank's.
struct CtcPlan {
  CtcPlan(std::int64_t batch, std::int64_t frames, std::int64_t labels, std::int64_t vocabulary,
          std::int64_t element)
      : half(labels + 2) {
    const std::int64_t rows = batch * frames;
    const auto take = [this](std::int64_t size) {
      const std::int64_t at = bytes;
      bytes += (size + 63) / 64 * 64;
      return at;
    };
    stats = take(rows * 2 * element);
    emissions = take(rows * half * element);
    alphas = take(rows * 2 * half * element);
    betas = take(rows * 2 * half * element);
    skips = take(batch * half * element);
    chains = take(batch * half * 4);
    last = take(batch * vocabulary * 4);
  }
  std::int64_t half;       ///< U + 2
  std::int64_t stats;      ///< [B*T, 2]: maximum, sum of exponentials
  std::int64_t emissions;  ///< [B*T, half]
  std::int64_t alphas;     ///< [B*T, 2, half]: blanks 0..U, labels 1..U
  std::int64_t betas;      ///< as alphas; emission of the frame itself not in it
  std::int64_t skips;      ///< [B, half]: 0, or -inf where label u repeats label u - 1
  std::int64_t chains;     ///< [B, half] i32: the next label of the same symbol, or 0; the first of
                           ///< a symbol has kCtcFirst added
  std::int64_t last;       ///< [B, vocabulary] i32: where a symbol was last seen (CPU)
  std::int64_t bytes = 0;
};
inline constexpr std::int32_t kCtcFirst = 1 << 30;

namespace cpu {
template <class T>
void ctc(const ops::Ctc& args);
template <class T>
void best_symbols(const TensorView& logits, std::int64_t vocabulary, const TensorView& best);
template <class T>
void log_softmax(const TensorView& logits, std::int64_t vocabulary);
}  // namespace cpu

namespace cuda {
CHOIR_CUDA_KERNEL void ctc(const Stream& stream, const ops::Ctc& args);
CHOIR_CUDA_KERNEL void best_symbols(const Stream& stream, const TensorView& logits,
                                    std::int64_t vocabulary, const TensorView& best);
CHOIR_CUDA_KERNEL void log_softmax(const Stream& stream, const TensorView& logits,
                                   std::int64_t vocabulary);
/// Labels of an utterance that the kernels can hold.
inline constexpr std::int64_t kCtcMostLabels = 4096;
}  // namespace cuda

namespace ref {
/// f64. No workspace.
void ctc(const ops::Ctc& args);
void best_symbols(const TensorView& logits, std::int64_t vocabulary, const TensorView& best);
void log_softmax(const TensorView& logits, std::int64_t vocabulary);
}  // namespace ref

}  // namespace choir
