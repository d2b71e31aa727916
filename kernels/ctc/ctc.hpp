#pragma once
// Connectionist temporal classification (Graves et al. 2006): the loss of label sequences without
// an alignment, and its gradient, in log space. The states of an utterance are U + 1 blanks and U
// labels, with blank u before label u + 1. Three steps over all rows or utterances:
// 1. for every valid row: maximum, sum of exponentials, and the log-probabilities of the U + 1
// relevant symbols (emissions);
// 2. for every utterance: alpha (ln p of all paths that end in a state, including its frame)
// forward and beta (ln p of all continuations after the frame) backward, one frame after the other.
// Both are kept near 0 by subtracting the maximum every kCtcRescale frames, which is summed in f64:
// rounding errors are those of small numbers, whatever the length;
// 3. for every row: occupation = softmax over the states of alpha + beta, in which the shifts
// cancel; gradient = scale (softmax - occupation of the symbol), with label positions of equal
// symbols summed in their order. Floor: logits are read twice and written once if an utterance does
// not stay in a cache, otherwise read once and written once; 2 exp per logit, and 2 x (2 exp + log)
// + exp per state and frame.

#include <cstdint>

#include "choir/core/tensor.hpp"
#include "choir/device/device.hpp"
#include "kernels/cuda_kernel.hpp"

namespace choir::ops {

/// losses[b] = -ln p(labels_b | logits_b), including the softmax over the vocabulary; the blank is
/// the last symbol, vocabulary - 1. If no path exists (frames < labels + repeats) the loss is
/// infinite, or 0 with zero_infinity, and so is its gradient. A row of 0 frames and 0 labels costs
/// 0. With `write_gradient` the logits are overwritten by d(scale * sum of losses)/d logits = scale
/// (softmax - occupation), 0 at invalid frames and in padding columns; if the loss is infinite and
/// zero_infinity off, the gradient is NaN at valid frames. Labels and lengths out of range are
/// refused if the host can see them; otherwise the loss is NaN.
struct Ctc {
  TensorView logits;  ///< [B*T, V'] compute type; columns at or beyond `vocabulary` are padding
  const std::int32_t* frame_lengths = nullptr;  ///< [B] device memory
  TensorView labels;                            ///< [B, U] i32, < vocabulary - 1; padding -1
  const std::int32_t* label_lengths = nullptr;  ///< [B] device memory
  TensorView losses;                            ///< [B] f32 (f64 for f64)
  std::int64_t vocabulary = 0;                  ///< symbols, including the blank
  double scale = 1.0;
  const double* device_scale = nullptr;  ///< device scalar that multiplies `scale`; nullptr: 1
  bool write_gradient = true;
  bool zero_infinity = true;
  TensorView workspace;  ///< u8, ctc_workspace bytes
};

/// Bytes for logits of `dtype`; the same on every device.
std::int64_t ctc_workspace(const Stream& stream, std::int64_t batch, std::int64_t frames,
                           std::int64_t labels, std::int64_t vocabulary, DType dtype = DType::f64);
/// Deterministic; the results of an utterance do not depend on its padding or position in the
/// batch. Sums are in f32 (f64 for f64). A GPU takes at most 4096 labels per utterance (U).
void ctc(const Stream& stream, const Ctc& args);

/// best[r] = the symbol of the largest logit of row r (the first of equals; a NaN is never the
/// largest), i32 [N].
void best_symbols(const Stream& stream, const TensorView& logits, std::int64_t vocabulary,
                  const TensorView& best);
/// In place: replaces logits [N, V'] by log-probabilities over the first `vocabulary` columns.
void log_softmax(const Stream& stream, const TensorView& logits, std::int64_t vocabulary);

}  // namespace choir::ops

namespace choir {

/// Number of frames between two rescalings of alpha and beta.
inline constexpr std::int64_t kCtcRescale = 8;

/// Byte offsets in the workspace; elements have `element` bytes (4; f64: 8). Index u of 0..U+1
/// belongs to label u; 0 and U + 1 are sentinels, and emission 0 is the blank's.
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
  std::int64_t betas;      ///< as alphas, but without the emission of the frame itself
  std::int64_t skips;      ///< [B, half]: 0, or -inf if label u repeats label u - 1
  std::int64_t chains;     ///< [B, half] i32: the next label of the same symbol, or 0; kCtcFirst is
                           ///< added for the first label of a symbol
  std::int64_t last;       ///< [B, vocabulary] i32: last position of a symbol (CPU)
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
/// The maximum number of labels per utterance for the kernels.
inline constexpr std::int64_t kCtcMostLabels = 4096;
}  // namespace cuda

namespace ref {
/// f64. No workspace.
void ctc(const ops::Ctc& args);
void best_symbols(const TensorView& logits, std::int64_t vocabulary, const TensorView& best);
void log_softmax(const TensorView& logits, std::int64_t vocabulary);
}  // namespace ref

}  // namespace choir
