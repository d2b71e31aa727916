#include "kernels/attention/attention_cudnn.hpp"

#include "choir_cuda_features.hpp"

#if defined(CHOIR_HAVE_CUDNN)

#include <cuda_runtime_api.h>

#include <deque>
#include <initializer_list>

#include "kernels/attention/cudnn/attention_cudnn_graph.hpp"

namespace choir::cudnn {
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
