#include "choir_cuda_features.hpp"

#if defined(CHOIR_HAVE_CUDNN)

#include <limits>

#include "kernels/attention/cudnn/attention_cudnn_graph.hpp"

namespace choir::cudnn {
namespace {

using Node = Graph::Node;
using Strides = AttentionLayout::Strides;

cudnnDataType_t type_of(DType type) {
  return type == DType::f16 ? CUDNN_DATA_HALF : CUDNN_DATA_BFLOAT16;
}

/// Builds the part common to forward and backward: operands and masked scores.
class Builder {
 public:
  Builder(const ops::AttentionProblem& problem, const AttentionLayout& strides)
      : p(problem), layout(strides), type(type_of(problem.dtype)) {}

  /// [B, heads, positions, D] through strides.
  Node rows(std::int64_t uid, const Strides& at, std::int64_t heads, std::int64_t positions) {
    return graph.memory(uid, type, {p.batch, heads, positions, p.head_width},
                        {at.batch, p.head_width, at.position, 1});
  }
  /// The same memory viewed as [B, heads, D, positions].
  Node columns(std::int64_t uid, const Strides& at, std::int64_t heads, std::int64_t positions) {
    return graph.memory(uid, type, {p.batch, heads, p.head_width, positions},
                        {at.batch, p.head_width, 1, at.position});
  }
  /// One f32 per query: the bound tensor `uid`, or a tensor between operations.
  Node statistic(std::int64_t uid = 0) {
    const Extents extents{p.batch, p.heads, p.queries, 1};
    return uid ? graph.memory(uid, CUDNN_DATA_FLOAT, extents, packed_strides(extents))
               : graph.between(CUDNN_DATA_FLOAT, extents, packed_strides(extents));
  }
  Node multiply(Node x, Node by) { return graph.pointwise({CUDNN_POINTWISE_MUL, x, by}); }
  Node subtract(Node x, Node what) { return graph.pointwise({CUDNN_POINTWISE_SUB, x, what}); }

  Extents bias_extents() const {
    return {layout.bias.batch ? p.batch : 1, layout.bias.head ? p.heads : 1, p.queries, p.keys};
  }

  Node scores(Node q, Node k_columns) {
    Node s = graph.matmul(q, k_columns);
    s = multiply(s, graph.constant(static_cast<float>(p.scale)));
    if (layout.bias.present) {
      const AttentionLayout::Bias& b = layout.bias;
      const Extents extents = bias_extents();
      // The stride of a dimension of extent 1 is never used, but cuDNN requires it to be positive.
      const std::int64_t head = b.head ? b.head : p.queries * b.row;
      const Extents strides{b.batch ? b.batch : extents[1] * head, head, b.row, 1};
      s = graph.pointwise({CUDNN_POINTWISE_ADD, s, graph.memory(kUidBias, type, extents, strides)});
    }
    return p.causal ? masked(s) : s;
  }

  Graph graph;
  const ops::AttentionProblem& p;
  const AttentionLayout& layout;
  cudnnDataType_t type;

 private:
  Node index(Node s, int dim) {
    return graph.pointwise(
        {.mode = CUDNN_POINTWISE_GEN_INDEX, .x = s, .dim = dim, .precision = CUDNN_DATA_INT32});
  }
  /// Masks S: query i sees keys 0 .. Tk - Tq + i.
  Node masked(Node s) {
    Node row = index(s, 2);
    if (p.keys != p.queries) {
      const auto shift = [&](cudnnPointwiseMode_t mode, std::int64_t by) {
        row = graph.pointwise({.mode = mode,
                               .x = row,
                               .b = graph.constant(static_cast<std::int32_t>(by)),
                               .precision = CUDNN_DATA_INT32});
      };
      shift(CUDNN_POINTWISE_ADD, p.keys);  // in two steps, as cuDNN's pattern requires
      shift(CUDNN_POINTWISE_SUB, p.queries);
    }
    const Node column = index(s, 3);
    const Node seen = graph.pointwise(
        {.mode = CUDNN_POINTWISE_CMP_GE, .x = row, .b = column, .precision = CUDNN_DATA_BOOLEAN});
    return graph.pointwise({.mode = CUDNN_POINTWISE_BINARY_SELECT,
                            .x = s,
                            .b = graph.constant(std::numeric_limits<float>::lowest()),
                            .t = seen});
  }
};

/// Transposes a [B, H, Tq, Tk] matrix between operations, of the operands' type.
Node transposed(Builder& b, Node x) {
  const ops::AttentionProblem& p = b.p;
  const Extents extents{p.batch, p.heads, p.keys, p.queries};
  const Extents strides{p.heads * p.queries * p.keys, p.queries * p.keys, 1, p.keys};
  return b.graph.reshape(x, b.graph.between(b.type, extents, strides));
}

/// `into` [B, Hkv, Tk, D] = A^T X for every query head, summed over the heads of a group.
void key_gradient(Builder& b, Node a_transposed, Node x, Node into) {
  const ops::AttentionProblem& p = b.p;
  if (p.heads == p.kv_heads) {
    b.graph.matmul(a_transposed, x, into);
    return;
  }
  const Extents extents{p.batch, p.heads, p.keys, p.head_width};
  const Node per_head = b.graph.between(b.type, extents, packed_strides(extents));
  b.graph.matmul(a_transposed, x, per_head);
  b.graph.reduce(CUDNN_REDUCE_TENSOR_ADD, per_head, into);
}

}  // namespace

Graph attention_forward_graph(const ops::AttentionProblem& p, const AttentionLayout& layout) {
  Builder b(p, layout);
  Graph& graph = b.graph;
  const Node q = b.rows(kUidQ, layout.q, p.heads, p.queries);
  const Node k = b.columns(kUidK, layout.k, p.kv_heads, p.keys);
  const Node v = b.rows(kUidV, layout.v, p.kv_heads, p.keys);
  const Node out = b.rows(kUidOut, layout.out, p.heads, p.queries);
  const Node s = b.scores(q, k);
  const Node most = graph.reduce(CUDNN_REDUCE_TENSOR_MAX, s, b.statistic());
  const Node e = graph.pointwise({CUDNN_POINTWISE_EXP, b.subtract(s, most)});
  const Node sum = graph.reduce(CUDNN_REDUCE_TENSOR_ADD, e, b.statistic());
  if (layout.log_sum_exp)
    graph.pointwise({.mode = CUDNN_POINTWISE_ADD,
                     .x = most,
                     .b = graph.pointwise({CUDNN_POINTWISE_LOG, sum}),
                     .into = b.statistic(kUidLogSumExp)});
  const Extents extents{p.batch, p.heads, p.queries, p.keys};
  const Node weights =
      graph.pointwise({.mode = CUDNN_POINTWISE_DIV,
                       .x = e,
                       .b = sum,
                       .into = graph.between(b.type, extents, packed_strides(extents))});
  graph.matmul(weights, v, out);
  return std::move(b.graph);
}

Graph attention_backward_graph(const ops::AttentionProblem& p, const AttentionLayout& layout) {
  Builder b(p, layout);
  Graph& graph = b.graph;
  const Node q = b.rows(kUidQ, layout.q, p.heads, p.queries);
  const Node k = b.columns(kUidK, layout.k, p.kv_heads, p.keys);
  const Node v = b.columns(kUidV, layout.v, p.kv_heads, p.keys);
  const Node out = b.rows(kUidOut, layout.out, p.heads, p.queries);
  const Node d_out = b.rows(kUidDOut, layout.d_out, p.heads, p.queries);
  const Node d_q = b.rows(kUidDQ, layout.d_q, p.heads, p.queries);
  const Node d_k = b.rows(kUidDK, layout.d_k, p.kv_heads, p.keys);
  const Node d_v = b.rows(kUidDV, layout.d_v, p.kv_heads, p.keys);
  const Node one = graph.constant(1.0f);  // the place of the dropout scale; part of the pattern

  const Node product = graph.reduce(CUDNN_REDUCE_TENSOR_ADD, b.multiply(d_out, out), b.statistic());
  const Node delta = b.multiply(product, one);

  const Node s = b.subtract(b.scores(q, k), b.statistic(kUidLogSumExp));
  const Node weights = graph.pointwise({CUDNN_POINTWISE_EXP, s});
  key_gradient(b, transposed(b, weights), d_out, d_v);

  const Node d_weights = b.multiply(graph.matmul(d_out, v), one);
  const Node d_s = b.multiply(b.subtract(d_weights, delta), weights);
  if (layout.bias.gradient)
    graph.reduce(
        CUDNN_REDUCE_TENSOR_ADD, d_s,
        graph.memory(kUidDBias, b.type, b.bias_extents(), packed_strides(b.bias_extents())));
  const Node scaled = b.multiply(d_s, graph.constant(static_cast<float>(p.scale)));
  key_gradient(b, transposed(b, scaled), q, d_k);

  const Extents k_rows{p.batch, p.kv_heads, p.keys, p.head_width};
  const Node k_again = graph.reshape(
      k, graph.between(b.type, k_rows, {layout.k.batch, p.head_width, layout.k.position, 1}));
  if (d_q_sum_bytes(p, layout) == 0) {
    graph.matmul(scaled, k_again, d_q);
    return std::move(b.graph);
  }
  const Extents extents{p.batch, p.heads, p.queries, p.head_width};
  const Node sum =
      graph.memory(kUidDQSum, CUDNN_DATA_FLOAT, extents, packed_strides(extents), true);
  graph.matmul(scaled, k_again, sum);
  graph.pointwise({.mode = CUDNN_POINTWISE_IDENTITY, .x = sum, .into = d_q});
  return std::move(b.graph);
}

}  // namespace choir::cudnn

#endif
