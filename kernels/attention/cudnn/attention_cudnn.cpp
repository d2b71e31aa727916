// Attention by cuDNN: its graphs, a cache of their plans, and the calls. A build without cuDNN
// contains the absence instead.
#include "kernels/attention/attention_cudnn.hpp"

#include "choir_cuda_features.hpp"

#if defined(CHOIR_HAVE_CUDNN)

#include <cuda_runtime_api.h>

#include <deque>
#include <initializer_list>
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

namespace {

/// Key of a plan: everything that it depends on. Lengths never reach cuDNN.
struct Key {
  std::int64_t batch, heads, kv_heads, head_width, queries, keys;
  bool causal;
  double scale;
  DType dtype;
  AttentionLayout layout;
  friend bool operator==(const Key&, const Key&) = default;
};
Key key_of(const ops::AttentionProblem& p, const AttentionLayout& layout) {
  return {p.batch, p.heads,  p.kv_heads, p.head_width, p.queries,
          p.keys,  p.causal, p.scale,    p.dtype,      layout};
}

struct Compiled {
  Key key;
  Plan plan;
  std::string refusal;  // empty if the plan runs
};

/// All attention plans of one device, and its handle.
class Plans {
 public:
  Plans() = default;
  ~Plans() {
    if (handle_) api().destroy(handle_);
  }
  Plans(const Plans&) = delete;
  Plans& operator=(const Plans&) = delete;

  const Compiled& of(const ops::AttentionProblem& p, const AttentionLayout& layout) {
    const Key key = key_of(p, layout);
    for (const Compiled& known : compiled_)
      if (known.key == key) return known;
    if (compiled_.size() == kMost) return full_;
    compiled_.push_back({key, {}, {}});
    Compiled& made = compiled_.back();
    try {
      compile(made, p, layout);
    } catch (const Error& error) {
      made.refusal = error.what();
    }
    return made;
  }

  cudnnHandle_t handle_on(const Stream& stream) {
    auto* native = static_cast<cudaStream_t>(stream.native());
    if (!bound_ || native != stream_) check(api().set_stream(handle_, native), "a stream");
    bound_ = true, stream_ = native;
    return handle_;
  }

 private:
  // A plan takes about half a second to compile; a job with more shapes than this should use
  // buckets.
  static constexpr std::size_t kMost = 128;

  void compile(Compiled& made, const ops::AttentionProblem& p, const AttentionLayout& layout) {
    if (!handle_) check(api().create(&handle_), "a handle");
    Graph graph =
        layout.backward ? attention_backward_graph(p, layout) : attention_forward_graph(p, layout);
    made.plan = std::move(graph).compile({.handle = handle_});
    const std::int64_t wanted =
        d_q_sum_bytes(p, layout) + made.plan.workspace_bytes() + kWorkspaceBoundary;
    const std::int64_t planned = choir::cudnn::attention_workspace(p, layout);
    if (wanted > planned)
      throw Refused(
          fmt::format("cuDNN needs {} bytes of workspace, but {} are planned", wanted, planned));
  }

  cudnnHandle_t handle_ = nullptr;
  cudaStream_t stream_ = nullptr;
  bool bound_ = false;
  std::deque<Compiled> compiled_;
  const Compiled full_{
      {}, {}, fmt::format("{} cuDNN attention plans exist already: use fewer shapes", kMost)};
};

/// Looks a plan up or compiles it. Returns the reason for a refusal, or sets `compiled`.
std::string look_up(Device& device, const ops::AttentionProblem& p, const AttentionLayout& layout,
                    const Compiled*& compiled) {
  if (std::string outside = attention_outside_rules(p, layout); !outside.empty()) return outside;
  if (!absent_because().empty()) return absent_because();
  if (device.kind() != DeviceKind::cuda) return "cuDNN runs on cuda devices";
  compiled = &device.plans().get<Plans>().of(p, layout);
  return compiled->refusal;
}

const Plan& plan_for(const Stream& stream, const ops::AttentionProblem& p,
                     const AttentionLayout& layout) {
  const Compiled* compiled = nullptr;
  if (const std::string why = look_up(stream.device(), p, layout, compiled); !why.empty())
    throw Error(ExitCode::other, why, "call attention_supported() first");
  return compiled->plan;
}

void check_aligned(std::initializer_list<const void*> addresses) {
  for (const void* address : addresses)
    CHOIR_CHECK(reinterpret_cast<std::uintptr_t>(address) % 16 == 0,
                "an operand of cuDNN attention is not 16-byte aligned");
}

void check_workspace(const TensorView& workspace, const ops::AttentionProblem& p,
                     const AttentionLayout& layout) {
  const std::int64_t needed = attention_workspace(p, layout);
  CHOIR_CHECK(!workspace.empty() && static_cast<std::int64_t>(workspace.bytes()) >= needed,
              "attention workspace of {} bytes, {} needed",
              workspace.empty() ? 0 : workspace.bytes(), needed);
}

std::byte* first_boundary(const TensorView& workspace) {
  constexpr std::uintptr_t kMask = kWorkspaceBoundary - 1;
  const auto at = reinterpret_cast<std::uintptr_t>(workspace.data);
  return static_cast<std::byte*>(workspace.data) + (((at + kMask) & ~kMask) - at);
}

}  // namespace

bool attention_supported(Device& device, const ops::AttentionProblem& problem,
                         const AttentionLayout& layout, std::string* why) {
  const Compiled* compiled = nullptr;
  std::string reason = look_up(device, problem, layout, compiled);
  if (why) *why = reason;
  return reason.empty();
}

void attention_forward(const Stream& stream, const ops::AttentionForward& args,
                       const AttentionBias& bias) {
  const AttentionLayout layout = layout_of(args, bias);
  const Plan& plan = plan_for(stream, args.problem, layout);
  check_aligned({args.q.data, args.k.data, args.v.data, args.out.data, bias.data,
                 args.log_sum_exp.data, args.workspace.data});
  check_workspace(args.workspace, args.problem, layout);
  std::array<Binding, 6> bound{
      {{kUidQ, args.q.data}, {kUidK, args.k.data}, {kUidV, args.v.data}, {kUidOut, args.out.data}}};
  std::size_t count = 4;
  if (layout.log_sum_exp) bound[count++] = {kUidLogSumExp, args.log_sum_exp.data};
  if (layout.bias.present) bound[count++] = {kUidBias, const_cast<void*>(bias.data)};
  plan.execute(stream.device().plans().get<Plans>().handle_on(stream),
               std::span(bound).first(count), first_boundary(args.workspace));
}

void attention_backward(const Stream& stream, const ops::AttentionBackward& args,
                        const AttentionBias& bias) {
  const AttentionLayout layout = layout_of(args, bias);
  const Plan& plan = plan_for(stream, args.problem, layout);
  check_aligned({args.q.data, args.k.data, args.v.data, args.out.data, args.d_out.data,
                 args.d_q.data, args.d_k.data, args.d_v.data, bias.data, bias.gradient,
                 args.log_sum_exp.data, args.workspace.data});
  check_workspace(args.workspace, args.problem, layout);
  std::array<Binding, 12> bound{{{kUidQ, args.q.data},
                                 {kUidK, args.k.data},
                                 {kUidV, args.v.data},
                                 {kUidOut, args.out.data},
                                 {kUidLogSumExp, args.log_sum_exp.data},
                                 {kUidDOut, args.d_out.data},
                                 {kUidDQ, args.d_q.data},
                                 {kUidDK, args.d_k.data},
                                 {kUidDV, args.d_v.data}}};
  std::size_t count = 9;
  if (layout.bias.present) bound[count++] = {kUidBias, const_cast<void*>(bias.data)};
  if (layout.bias.gradient) bound[count++] = {kUidDBias, bias.gradient};
  std::byte* workspace = first_boundary(args.workspace);
  if (const std::int64_t sum = d_q_sum_bytes(args.problem, layout); sum > 0) {
    stream.zero(workspace, static_cast<std::size_t>(sum));
    bound[count++] = {kUidDQSum, workspace};
    workspace += sum;
  }
  plan.execute(stream.device().plans().get<Plans>().handle_on(stream),
               std::span(bound).first(count), workspace);
}

}  // namespace choir::cudnn

#else
#include "kernels/attention/attention_cudnn_cuda_absent.cpp"
#endif
