#pragma once
// Connectionist temporal classification (Graves et al. 2006): the loss of label sequences without
// an alignment, and its gradient, in log space.
#include <cstdint>

#include "choir/core/tensor.hpp"
#include "choir/device/device.hpp"

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
