// The build without CUDA: no stream of that kind can exist, so nothing here is ever reached; the
// functions exist because the op launchers name them.
#include "choir/core/error.hpp"
#include "kernels/activation.hpp"
#include "kernels/adamw.hpp"
#include "kernels/attention.hpp"
#include "kernels/batch_norm.hpp"
#include "kernels/bias_gradient.hpp"
#include "kernels/copy_blocks.hpp"
#include "kernels/copy_rows.hpp"
#include "kernels/cross_entropy.hpp"
#include "kernels/ctc.hpp"
#include "kernels/depthwise_conv.hpp"
#include "kernels/dropout.hpp"
#include "kernels/embedding.hpp"
#include "kernels/feature_statistics.hpp"
#include "kernels/glu.hpp"
#include "kernels/log_mel.hpp"
#include "kernels/norm.hpp"
#include "kernels/reduce.hpp"
#include "kernels/relative_attention.hpp"
#include "kernels/rope.hpp"
#include "kernels/running_statistics.hpp"
#include "kernels/spec_augment.hpp"
#include "kernels/split_norm.hpp"
#include "kernels/step_control.hpp"
#include "kernels/stochastic_depth.hpp"
#include "kernels/strided_conv.hpp"

namespace choir::cuda {
namespace {

[[noreturn]] void absent(const char* op) {
  throw Error(ExitCode::other, fmt::format("{}: this program was built without CUDA", op));
}

}  // namespace

void add(const Stream&, const TensorView&, const TensorView&, const TensorView&) {
  absent("add");
}
void sum_of_squares(const Stream&, const TensorView&, const TensorView&) {
  absent("sum_of_squares");
}
void tree_sum(const Stream&, const TensorView&, const TensorView&) {
  absent("tree_sum");
}
void cast(const Stream&, const TensorView&, const TensorView&) {
  absent("cast");
}
void scale(const Stream&, const TensorView&, double) {
  absent("scale");
}
void zero(const Stream&, const TensorView&) {
  absent("zero");
}
void copy(const Stream&, const TensorView&, const TensorView&) {
  absent("copy");
}
void bias_gradient(const Stream&, const TensorView&, const TensorView&, const TensorView&) {
  absent("bias_gradient");
}
void copy_rows(const Stream&, std::int64_t, std::int64_t, std::int64_t, const ops::RowBlock&,
               const ops::RowBlock&) {
  absent("copy_rows");
}
void copy_blocks(const Stream&, const ops::CopyBlocks&) {
  absent("copy_blocks");
}
void norm_forward(const Stream&, const ops::NormForward&) {
  absent("norm_forward");
}
void norm_backward(const Stream&, const ops::NormBackward&) {
  absent("norm_backward");
}
void activation_forward(const Stream&, ops::Activation, const TensorView&, const TensorView&) {
  absent("activation_forward");
}
void activation_backward(const Stream&, ops::Activation, const TensorView&, const TensorView&,
                         const TensorView&) {
  absent("activation_backward");
}
void rope_table(const Stream&, double, const TensorView&) {
  absent("rope_table");
}
void rope(const Stream&, const ops::Rope&) {
  absent("rope");
}
void dropout(const Stream&, const ops::Dropout&) {
  absent("dropout");
}
void embedding_forward(const Stream&, const ops::EmbeddingForward&) {
  absent("embedding_forward");
}
void embedding_backward(const Stream&, const ops::EmbeddingBackward&) {
  absent("embedding_backward");
}
void cross_entropy(const Stream&, const ops::CrossEntropy&) {
  absent("cross_entropy");
}
void cross_entropy_maxima(const Stream&, const ops::ParallelCrossEntropy&) {
  absent("cross_entropy_maxima");
}
void cross_entropy_sums(const Stream&, const ops::ParallelCrossEntropy&) {
  absent("cross_entropy_sums");
}
void cross_entropy_finish(const Stream&, const ops::ParallelCrossEntropy&) {
  absent("cross_entropy_finish");
}
void ctc(const Stream&, const ops::Ctc&) {
  absent("ctc");
}
void best_symbols(const Stream&, const TensorView&, std::int64_t, const TensorView&) {
  absent("best_symbols");
}
void log_softmax(const Stream&, const TensorView&, std::int64_t) {
  absent("log_softmax");
}
void log_mel(const Stream&, const ops::LogMel&) {
  absent("log_mel");
}
void normalise_features(const Stream&, const TensorView&, const std::int32_t*) {
  absent("normalise_features");
}
void spec_augment(const Stream&, const ops::SpecAugment&, const TensorView&, const std::int32_t*,
                  const std::int64_t*, PhiloxKey) {
  absent("spec_augment");
}
void adamw(const Stream&, const ops::AdamW&) {
  absent("adamw");
}
void begin_step(const Stream&, ops::StepControl*) {
  absent("begin_step");
}
void end_step(const Stream&, const ops::EndStep&) {
  absent("end_step");
}
void attention_forward(const Stream&, const ops::AttentionForward&) {
  absent("attention");
}
void attention_backward(const Stream&, const ops::AttentionBackward&) {
  absent("attention backward");
}
void strided_conv_forward(const Stream&, const ops::StridedConv&) {
  absent("strided_conv_forward");
}
void strided_conv_backward(const Stream&, const ops::StridedConvBackward&) {
  absent("strided_conv_backward");
}
void depthwise_conv_forward(const Stream&, const ops::DepthwiseConv&) {
  absent("depthwise_conv_forward");
}
void depthwise_conv_backward(const Stream&, const ops::DepthwiseConvBackward&) {
  absent("depthwise_conv_backward");
}
void glu_forward(const Stream&, const TensorView&, const TensorView&, const std::int32_t*,
                 std::int64_t) {
  absent("glu_forward");
}
void glu_backward(const Stream&, const TensorView&, const TensorView&, const TensorView&,
                  const std::int32_t*, std::int64_t) {
  absent("glu_backward");
}
void mask_frames(const Stream&, const TensorView&, const std::int32_t*, std::int64_t) {
  absent("mask_frames");
}
void batch_norm_forward(const Stream&, const ops::BatchNorm&) {
  absent("batch_norm_forward");
}
void batch_norm_backward(const Stream&, const ops::BatchNormBackward&) {
  absent("batch_norm_backward");
}

void update_running_statistics(const Stream&, const ops::RunningUpdate&) {
  absent("update_running_statistics");
}

void relative_position_tables(const Stream&, std::int64_t, const TensorView&) {
  absent("relative_position_tables");
}
void relative_positions(const Stream&, const TensorView&, const TensorView&) {
  absent("relative_positions");
}
void relative_queries(const Stream&, const ops::RelativeQueries&) {
  absent("relative_queries");
}
void relative_queries_backward(const Stream&, const ops::RelativeQueriesBackward&) {
  absent("relative_queries_backward");
}
void unshift_scores(const Stream&, const TensorView&, const TensorView&) {
  absent("unshift_scores");
}
void mask_scores(const Stream&, const ops::AttentionContext&, const TensorView&) {
  absent("mask_scores");
}
void split_norm_moments(const Stream&, const TensorView&, const TensorView&) {
  absent("split_norm_moments");
}
void split_norm_forward(const Stream&, const ops::SplitNormForward&) {
  absent("split_norm_forward");
}
void split_norm_sums(const Stream&, const ops::SplitNormBackward&) {
  absent("split_norm_sums");
}
void split_norm_backward(const Stream&, const ops::SplitNormBackward&) {
  absent("split_norm_backward");
}
void stochastic_depth_forward(const Stream&, const ops::StochasticDepth&, const TensorView&,
                              const TensorView&, const TensorView&) {
  absent("stochastic_depth_forward");
}
void stochastic_depth_backward(const Stream&, const ops::StochasticDepth&, const TensorView&,
                               const TensorView&, const TensorView&) {
  absent("stochastic_depth_backward");
}

}  // namespace choir::cuda
