#include "kernels/attention/attention_cudnn.hpp"

namespace choir::cudnn {
namespace {

constexpr std::int64_t kVector = 8;  // elements of 2 bytes in a 16-byte load

AttentionLayout::Strides strides_of(const ops::AttentionOperand& x) {
  return {x.batch_stride, x.position_stride};
}
AttentionLayout::Bias strides_of(const AttentionBias& bias, bool backward) {
  if (bias.data == nullptr) return {};
  return {.present = true,
          .gradient = backward && bias.gradient != nullptr,
          .batch = bias.batch_stride,
          .head = bias.head_stride,
          .row = bias.row_stride};
}

bool vectors(const AttentionLayout::Strides& at) {
  return at.position > 0 && at.position % kVector == 0 && at.batch % kVector == 0;
}

std::int64_t round_up(std::int64_t n, std::int64_t to) {
  return (n + to - 1) / to * to;
}

}  // namespace

AttentionLayout layout_of(const ops::AttentionForward& args, const AttentionBias& bias) {
  AttentionLayout layout;
  layout.log_sum_exp = !args.log_sum_exp.empty();
  layout.q = strides_of(args.q), layout.k = strides_of(args.k), layout.v = strides_of(args.v);
  layout.out = strides_of(args.out);
  layout.bias = strides_of(bias, false);
  return layout;
}

AttentionLayout layout_of(const ops::AttentionBackward& args, const AttentionBias& bias) {
  AttentionLayout layout;
  layout.backward = true;
  layout.deterministic = args.problem.deterministic;
  layout.q = strides_of(args.q), layout.k = strides_of(args.k), layout.v = strides_of(args.v);
  layout.out = strides_of(args.out), layout.d_out = strides_of(args.d_out);
  layout.d_q = strides_of(args.d_q), layout.d_k = strides_of(args.d_k);
  layout.d_v = strides_of(args.d_v);
  layout.bias = strides_of(bias, true);
  return layout;
}

std::string attention_outside_rules(const ops::AttentionProblem& p, const AttentionLayout& layout) {
  if (p.dtype != DType::bf16 && p.dtype != DType::f16)
    return fmt::format("cuDNN attention supports bf16 and f16, not {}", name_of(p.dtype));
  if (p.lengths != nullptr)
    return "cuDNN attention does not support lengths: a sample of length 0 would not give 0";
  if (p.divided()) return "cuDNN attention does not support several documents in a sequence";
  if (p.windowed()) return "cuDNN attention does not support a sliding window";
  if (p.softcap > 0) return "cuDNN attention does not support a soft cap";
  if (p.queries == 1)
    return "cuDNN attention is not used for one query: every length of the cache would be a new "
           "plan";
  if (p.head_width % kVector != 0)
    return fmt::format("cuDNN attention supports head widths that are multiples of 8, not {}",
                       p.head_width);
  if (!vectors(layout.q) || !vectors(layout.k) || !vectors(layout.v) || !vectors(layout.out))
    return "cuDNN attention requires row strides of q, k, v and out that are multiples of 8";
  if (layout.backward && (!vectors(layout.d_out) || !vectors(layout.d_q) || !vectors(layout.d_k) ||
                          !vectors(layout.d_v)))
    return "cuDNN attention requires row strides of gradients that are multiples of 8";
  if (layout.bias.present && (layout.bias.row <= 0 || layout.bias.row % kVector != 0 ||
                              layout.bias.head % kVector != 0 || layout.bias.batch % kVector != 0))
    return "cuDNN attention requires strides of a bias that are multiples of 8";
  return {};
}

std::int64_t d_q_sum_bytes(const ops::AttentionProblem& p, const AttentionLayout& layout) {
  // The gradient of a bias is only available from the algorithm that stores dS.
  if (!layout.backward || layout.deterministic || layout.bias.gradient) return 0;
  return round_up(
      p.batch * p.heads * p.queries * p.head_width * static_cast<std::int64_t>(sizeof(float)),
      kWorkspaceBoundary);
}

std::int64_t attention_workspace(const ops::AttentionProblem& p, const AttentionLayout& layout) {
  constexpr std::int64_t kTile = 128, kSmall = 1024;  // tile edges; counters
  if (!layout.backward) return kSmall + kWorkspaceBoundary;
  const std::int64_t unit = static_cast<std::int64_t>(size_of(p.dtype)), heads = p.batch * p.heads;
  const std::int64_t rows = round_up(p.queries, kTile), columns = round_up(p.keys, kTile);
  const std::int64_t delta = heads * rows * static_cast<std::int64_t>(sizeof(float));
  const std::int64_t groups = p.heads == p.kv_heads ? 0 : 2 * heads * columns * p.head_width * unit;
  // Either dS, or our f32 sum of dQ and (sm_80 only) one of cuDNN's own.
  const std::int64_t sum = d_q_sum_bytes(p, layout);
  const std::int64_t gathered =
      sum == 0 ? heads * rows * columns * unit
               : sum + heads * rows * p.head_width * static_cast<std::int64_t>(sizeof(float));
  return round_up(delta + groups + gathered + kSmall, kWorkspaceBoundary) + kWorkspaceBoundary;
}

}  // namespace choir::cudnn
