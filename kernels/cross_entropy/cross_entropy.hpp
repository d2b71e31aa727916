#pragma once
// Softmax cross-entropy over rows of V logits, loss and gradient in one visit per row, for a whole
// vocabulary or for one that is divided among ranks. Pass 1 reads the row once from memory: blocks
// that fit L1 give their maximum, then their sum of exponentials; the running sum is rescaled when
// the maximum rises (online softmax, Milakov & Gimelshein 2018). Pass 2 reads the row from L2 and
// replaces it by (softmax - 1{target}) scale. loss = log(sum) - (z_target - max), which stays
// accurate for logits of any size. With a vocabulary divided among ranks the passes are two calls
// with reductions in between. Floor per logit: one read and one write; 2 exp = 40 FLOP.

#include "choir/core/tensor.hpp"
#include "choir/device/device.hpp"
#include "kernels/cuda_kernel.hpp"

namespace choir::ops {

/// A function of every logit z before the softmax: scale z or, with a soft cap c, c tanh(scale z /
/// c), whose slope is scale (1 - (value / c)^2). -inf stays -inf.
struct LogitMap {
  double scale = 1;    ///< positive
  double softcap = 0;  ///< 0: none
  bool none() const { return scale == 1 && softcap == 0; }
};
/// Replaces logits by their values. Nothing is queued if the map is none.
void map_logits(const Stream& stream, const LogitMap& map, const TensorView& logits);

/// losses[r] = -sum over c of q[c] log softmax(logits[r])[c], 0 if the target is negative
/// (ignored). q is 1 at the target; with label smoothing e it is (1 - e) [c is the target] + e / V,
/// where V is the vocabulary (Szegedy et al. 2016, "Rethinking the Inception architecture";
/// PyTorch. To give the target 1 - e in total, as Megatron-LM does, smooth by e V / (V - 1)). With
/// s = logit - max:
///   loss = log(sum exp s) - (1 - e) s[target] - e mean(s).
/// With `weights` w the loss and gradient of row r are multiplied by w[r]; a row of weight 0 is
/// ignored like one without a target. With `write_gradient` the logits are overwritten by d(scale *
/// sum of losses)/d logits = scale w (softmax - q).
///
/// With `z_loss` z the gradient is that of losses + z w lse^2, where lse = max + log(sum exp s):
///   scale w (softmax (1 + 2 z lse) - q),
/// and w lse^2 itself, without z, is written to `z_losses`; `losses` stay the same (the auxiliary
/// loss of PaLM, Chowdhery et al. 2022). It draws lse to 0, so that the logits of a row do not
/// drift together.
struct CrossEntropy {
  TensorView logits;   ///< [N, V']; columns at or beyond `vocabulary` are padding: they are never
                       ///< counted, and their gradient is 0
  TensorView targets;  ///< [N] i32. A target beyond the vocabulary is refused if the host can see
                       ///< it; otherwise the loss is NaN
  TensorView losses;   ///< [N] f32 (f64 for f64)
  std::int64_t vocabulary = 0;
  double scale = 1.0;                    ///< 1 / number of valid tokens of the global batch
  const double* device_scale = nullptr;  ///< device scalar that multiplies `scale`; nullptr: 1
  bool write_gradient = true;
  double label_smoothing = 0;  ///< in [0, 1)
  TensorView weights{};        ///< [N] f32; empty: 1 for each row
  double z_loss = 0;           ///< z, at least 0
  TensorView z_losses{};       ///< [N] as losses; empty: not written
  LogitMap map{};              ///< losses are those of its values, and the gradient is that of z
};

void cross_entropy(const Stream& stream, const CrossEntropy& args);

/// The same for one rank's columns [first_column, first_column + n) of the vocabulary. The caller
/// makes three calls with two reductions over the ranks between them; logits are never gathered:
///   cross_entropy_maxima();  all-reduce `maxima` (max);
///   cross_entropy_sums();    all-reduce `sums` (sum);
///   cross_entropy_finish().
/// All calls take the same arguments, and all ranks get the same losses. V is the whole vocabulary
/// in all formulas, including label smoothing.
struct ParallelCrossEntropy {
  TensorView logits;            ///< [N, n]; overwritten by the gradient in the last call
  TensorView targets;           ///< [N] i32, columns of the whole vocabulary
  TensorView losses;            ///< [N], written by the last call
  std::int64_t vocabulary = 0;  ///< columns at or beyond it are padding, possibly all of a rank
  std::int64_t first_column = 0;
  double scale = 1.0;
  const double* device_scale = nullptr;
  bool write_gradient = true;
  double label_smoothing = 0;
  TensorView local_maxima;  ///< [N] as losses: this rank's maxima, kept from the first call to the
                            ///< second
  TensorView maxima;        ///< [N]
  TensorView sums;          ///< [N, sums_per_row()]: of exp s, s of the target, of s
  TensorView weights{};     ///< [N] f32, equal on every rank; empty: 1 for each row
  double z_loss = 0;        ///< as in CrossEntropy
  TensorView z_losses{};    ///< [N], written by the last call; equal on every rank
  LogitMap map{};           ///< as in CrossEntropy
  /// Numbers per row that are reduced over the ranks: 2, or 3 with label smoothing.
  std::int64_t sums_per_row() const { return label_smoothing > 0 ? 3 : 2; }
};

void cross_entropy_maxima(const Stream& stream, const ParallelCrossEntropy& args);
void cross_entropy_sums(const Stream& stream, const ParallelCrossEntropy& args);
void cross_entropy_finish(const Stream& stream, const ParallelCrossEntropy& args);

}  // namespace choir::ops

namespace choir {

namespace cpu {
template <class T>
void cross_entropy(const ops::CrossEntropy& args);
template <class T>
void cross_entropy_maxima(const ops::ParallelCrossEntropy& args);
template <class T>
void cross_entropy_sums(const ops::ParallelCrossEntropy& args);
template <class T>
void cross_entropy_finish(const ops::ParallelCrossEntropy& args);
template <class T>
void map_logits(const ops::LogitMap& map, const TensorView& logits);
}  // namespace cpu

namespace cuda {
CHOIR_CUDA_KERNEL void cross_entropy(const Stream& stream, const ops::CrossEntropy& args);
CHOIR_CUDA_KERNEL void cross_entropy_maxima(const Stream& stream,
                                            const ops::ParallelCrossEntropy& args);
CHOIR_CUDA_KERNEL void cross_entropy_sums(const Stream& stream,
                                          const ops::ParallelCrossEntropy& args);
CHOIR_CUDA_KERNEL void cross_entropy_finish(const Stream& stream,
                                            const ops::ParallelCrossEntropy& args);
CHOIR_CUDA_KERNEL void map_logits(const Stream& stream, const ops::LogitMap& map,
                                  const TensorView& logits);
}  // namespace cuda

namespace ref {
/// f64. A divided vocabulary has no separate reference; it must agree with this one over the joined
/// columns.
void cross_entropy(const ops::CrossEntropy& args);
void map_logits(const ops::LogitMap& map, const TensorView& logits);
}  // namespace ref

}  // namespace choir
