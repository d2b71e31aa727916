// Tests of attention by cuDNN, on the stand-in for the library: the contents of the graphs, and how
// they are bound, planned and refused.
#include <dlfcn.h>

#include <cmath>

#include "kernels/attention/attention_cudnn.hpp"
#include "kernels/attention/cudnn/cudnn_backend.hpp"
#include "test/unit/ops/attention_case.hpp"
#include "test/vendor/pretend_cuda.hpp"

namespace choir {
namespace {

/// Checks ||a - b|| <= limit ||b|| over elements that the reference wrote; the others must stay
/// untouched.
void expect_close_norm(const HostTensor& a, const HostTensor& b, double limit,
                       const std::string& what) {
  double error = 0, size = 0;
  for (std::int64_t i = 0; i < a.count(); ++i) {
    if (std::isnan(b[i])) {
      EXPECT_TRUE(std::isnan(a[i])) << what << ": wrote element " << i;
      continue;
    }
    error += (a[i] - b[i]) * (a[i] - b[i]), size += b[i] * b[i];
  }
  EXPECT_LE(std::sqrt(error), limit * std::sqrt(size)) << what;
  EXPECT_GT(size, 0) << what;
}

/// A workspace as an arena may give it: behind `skew` bytes of other owners.
struct Workspace {
  Workspace(const ops::AttentionProblem& p, const cudnn::AttentionLayout& layout)
      : bytes(cudnn::attention_workspace(p, layout)), all(DType::u8, {2 * kSkew + bytes}) {}
  operator TensorView() const {  // NOLINT: an argument like any other
    const auto at = reinterpret_cast<std::uintptr_t>(all.data());
    const auto behind = static_cast<std::int64_t>((at + kSkew - 1) / kSkew * kSkew - at);
    return all.view().reshaped({all.count()}).slice(behind + kArena, bytes);
  }
  static constexpr std::int64_t kSkew = 256, kArena = 64;
  std::int64_t bytes;
  HostTensor all;
};

void run_forward(PretendCuda& device, const AttentionTensors& t,
                 const cudnn::AttentionBias& bias = {}) {
  ops::AttentionForward args = t.forward();
  const Workspace workspace(args.problem, cudnn::layout_of(args, bias));
  args.workspace = workspace;
  cudnn::attention_forward(Stream(device), args, bias);
  EXPECT_TRUE(workspace.all.guard_intact() && t.out.guard_intact() && t.log_sum_exp.guard_intact());
}

void run_backward(PretendCuda& device, const AttentionTensors& t, bool deterministic,
                  const cudnn::AttentionBias& bias = {}) {
  ops::AttentionBackward args = t.backward();
  args.problem.deterministic = deterministic;
  const Workspace workspace(args.problem, cudnn::layout_of(args, bias));
  args.workspace = workspace;
  cudnn::attention_backward(Stream(device), args, bias);
  EXPECT_TRUE(workspace.all.guard_intact() && t.d_q.guard_intact() && t.d_kv.guard_intact());
}

/// Probabilities and their gradients are rounded to the type of the operands before the next
/// product, and the stored `out` is read: 1.5 roundings, as in the bf16 kernels of the CPU.
double limit_of(const AttentionCase& c) {
  return 1.5 * unit_roundoff(c.dtype) + 0x1p-18;
}

void compare(PretendCuda& device, const AttentionCase& c) {
  const std::string what = name_of(c);
  for (const bool deterministic : {true, false}) {
    const AttentionTensors t(c, 1), exact = t.exact();
    run_forward(device, t);
    ref::attention_forward(exact.forward());
    expect_close_norm(t.out, exact.out, limit_of(c), "out " + what);
    for (std::int64_t i = 0; i < t.log_sum_exp.count(); ++i)
      EXPECT_NEAR(t.log_sum_exp[i], exact.log_sum_exp[i], 1e-5) << "natural logarithm " << what;
    run_backward(device, t, deterministic);
    ref::attention_backward(exact.backward());
    expect_close_norm(t.d_q, exact.d_q, limit_of(c), "d_q " + what);
    if (t.d_kv.count() > 0) expect_norm(t.d_kv, exact.d_kv, limit_of(c), "d_kv " + what);
  }
}

TEST(AttentionCudnn, GraphsSayWhatTheReferenceComputes) {
  PretendCuda device;
  for (const DType type : {DType::bf16, DType::f16})
    for (const bool causal : {true, false})
      for (const std::int64_t groups : {4, 2, 1}) {
        AttentionCase c{
            .heads = 4, .kv_heads = groups, .width = 8, .causal = causal, .dtype = type};
        c.queries = c.keys = 19;
        compare(device, c);
        c.keys = 27;  // the last query sees all of them
        compare(device, c);
      }
}

// A caller that needs no equal bits gets the form that does not keep dS, in the memory planned for
// it.
TEST(AttentionCudnn, TheOpTakesTheFormThatTheProblemAsksFor) {
  PretendCuda device;
  const Stream stream(device);
  AttentionCase c{.heads = 2, .kv_heads = 2, .width = 8, .causal = true, .dtype = DType::bf16};
  c.queries = c.keys = 300;
  std::array<std::int64_t, 2> planned{};
  for (const bool deterministic : {true, false}) {
    const AttentionTensors t(c, 1), exact = t.exact();
    run_forward(device, t);
    ref::attention_forward(exact.forward());
    ops::AttentionBackward args = t.backward();
    args.problem.deterministic = deterministic;
    args.problem.implementation = ops::AttentionImplementation::cudnn;
    const std::int64_t bytes = ops::attention_workspace(stream, args.problem, true);
    const HostTensor workspace(DType::u8, {bytes});
    args.workspace = workspace.view();
    ops::attention_backward(stream, args);
    ref::attention_backward(exact.backward());
    expect_close_norm(t.d_q, exact.d_q, limit_of(c), "d_q");
    EXPECT_TRUE(workspace.guard_intact());
    planned[deterministic ? 1 : 0] = bytes;
  }
  EXPECT_LT(planned[0], planned[1] - 2 * 2 * 300 * 300 / 2) << "dS is not planned for";
}

TEST(AttentionCudnn, WithoutStatisticsTheOutputIsTheSame) {
  PretendCuda device;
  const AttentionCase c{.width = 16, .queries = 9, .keys = 9, .dtype = DType::bf16};
  const AttentionTensors first(c, 1);
  AttentionTensors second(c, 1);
  run_forward(device, first);
  second.log_sum_exp = HostTensor();
  run_forward(device, second);
  EXPECT_TRUE(first.out.same_bits(second.out));
}

/// softmax(scale q k^T + bias) v and d bias for the rows of a bias, one sample and head, in f64.
struct Biased {
  std::vector<double> out, d_bias;
  Biased(const AttentionTensors& t, const HostTensor& bias, std::int64_t head,
         std::int64_t bias_row, std::int64_t bias_at) {
    const ops::AttentionProblem p = t.problem();
    const std::int64_t row = 3 * p.heads * p.head_width, mine = head * p.head_width;
    const auto q = [&](std::int64_t i, std::int64_t part, std::int64_t d) {
      return t.q[i * row + part * p.heads * p.head_width + mine + d];
    };
    for (std::int64_t i = 0; i < p.queries; ++i) {
      std::vector<double> weight(static_cast<std::size_t>(p.keys)), slope = weight;
      double sum = 0, mean = 0;
      for (std::size_t j = 0; j < weight.size(); ++j) {
        const auto key = static_cast<std::int64_t>(j);
        double s = 0;
        for (std::int64_t d = 0; d < p.head_width; ++d) {
          s += p.scale * q(i, 0, d) * q(key, 1, d);
          slope[j] += t.d_out[i * p.heads * p.head_width + mine + d] * q(key, 2, d);
        }
        sum += weight[j] = std::exp(s + bias[bias_at + i * bias_row + key]);
      }
      for (double& w : weight) w /= sum;
      for (std::size_t j = 0; j < weight.size(); ++j) mean += weight[j] * slope[j];
      for (std::size_t j = 0; j < weight.size(); ++j)
        d_bias.push_back(weight[j] * (slope[j] - mean));
      for (std::int64_t d = 0; d < p.head_width; ++d) {
        double o = 0;
        for (std::size_t j = 0; j < weight.size(); ++j)
          o += weight[j] * q(static_cast<std::int64_t>(j), 2, d);
        out.push_back(o);
      }
    }
  }
};

TEST(AttentionCudnn, BiasThroughStridesAndItsGradient) {
  PretendCuda device;
  AttentionCase c{.batch = 1, .heads = 2, .kv_heads = 2, .width = 8, .causal = false};
  c.dtype = DType::bf16, c.queries = c.keys = 11;
  const AttentionTensors t(c, 1);
  // Two heads; rows are 24 apart, longer than the part that is read, and start 8 elements in:
  // rel-shift.
  const std::int64_t row = 24, head = 11 * row, at = 8;
  const HostTensor memory = HostTensor::normal(c.dtype, {2 * head + 16}, 7);
  HostTensor gradient(c.dtype, {1, 2, 11, 11});
  const cudnn::AttentionBias bias{.data = static_cast<bf16*>(memory.data()) + at,
                                  .head_stride = head,
                                  .row_stride = row,
                                  .gradient = gradient.data()};
  run_forward(device, t, bias);
  run_backward(device, t, true, bias);
  double error = 0, size = 0, gradient_error = 0, gradient_size = 0;
  for (std::int64_t h = 0; h < 2; ++h) {
    const Biased exact(t, memory, h, row, at + h * head);
    for (std::int64_t i = 0; i < 11 * 8; ++i) {
      const double e = exact.out[static_cast<std::size_t>(i)];
      const double a = t.out[i / 8 * 16 + h * 8 + i % 8];
      error += (a - e) * (a - e), size += e * e;
    }
    for (std::int64_t i = 0; i < 11 * 11; ++i) {
      const double e = exact.d_bias[static_cast<std::size_t>(i)], a = gradient[h * 11 * 11 + i];
      gradient_error += (a - e) * (a - e), gradient_size += e * e;
    }
  }
  EXPECT_LE(std::sqrt(error), limit_of(c) * std::sqrt(size));
  EXPECT_LE(std::sqrt(gradient_error), limit_of(c) * std::sqrt(gradient_size));
}

TEST(AttentionCudnn, CompilesAProblemOnce) {
  const auto plans = reinterpret_cast<int (*)()>(
      dlsym(dlopen("libcudnn.so.9", RTLD_NOW | RTLD_NOLOAD), "fake_cudnn_plans"));
  ASSERT_NE(plans, nullptr) << "not the stand-in: " << cudnn::version_text();
  PretendCuda device;
  AttentionCase c{.width = 8, .queries = 5, .keys = 5, .dtype = DType::bf16};
  const AttentionTensors first(c, 1), second(c, 2);
  const int before = plans();
  for (const AttentionTensors* t : {&first, &second, &first}) run_forward(device, *t);
  EXPECT_EQ(plans(), before + 1);
  run_backward(device, first, true);
  run_backward(device, first, false);
  EXPECT_EQ(plans(), before + 3);
  c.keys = 8;
  run_forward(device, AttentionTensors(c, 1));
  EXPECT_EQ(plans(), before + 4);
}

TEST(AttentionCudnn, SaysWhyNot) {
  PretendCuda device;
  CpuDevice cpu;
  const auto why = [&](Device& on, const AttentionCase& c) {
    const ops::AttentionForward args = AttentionTensors(c, 1).forward();
    std::string reason;
    const bool taken =
        cudnn::attention_supported(on, args.problem, cudnn::layout_of(args), &reason);
    EXPECT_EQ(taken, reason.empty());
    return reason;
  };
  const auto contains = [](const std::string& text, const char* words) {
    return text.find(words) != std::string::npos;
  };
  const AttentionCase good{.width = 8, .queries = 5, .keys = 5, .dtype = DType::bf16};
  EXPECT_EQ(why(device, good), "");
  EXPECT_TRUE(contains(why(cpu, good), "cuda devices"));
  AttentionCase c = good;
  c.dtype = DType::f32;
  EXPECT_TRUE(contains(why(device, c), "f32"));
  c = good, c.width = 12;
  EXPECT_TRUE(contains(why(device, c), "12"));
  c = good, c.queries = 1;
  EXPECT_TRUE(contains(why(device, c), "one query"));
  c = good, c.lengths = {3, 4};
  EXPECT_TRUE(contains(why(device, c), "lengths"));
  EXPECT_THROW(run_forward(device, AttentionTensors(c, 1)), Error);
  ops::AttentionForward crooked = AttentionTensors(good, 1).forward();
  crooked.q.data = static_cast<bf16*>(crooked.q.data) + 1;
  EXPECT_THROW(cudnn::attention_forward(Stream(device), crooked), Error);
}

TEST(AttentionCudnn, HasAtMostSoManyPlans) {
  PretendCuda device;
  std::string why;
  AttentionCase c{.width = 8, .dtype = DType::bf16};
  int taken = 0;
  for (c.queries = c.keys = 2; c.queries < 200; ++c.queries, ++c.keys) {
    const ops::AttentionForward args = AttentionTensors(c, 1).forward();
    taken += cudnn::attention_supported(device, args.problem, cudnn::layout_of(args), &why);
  }
  EXPECT_EQ(taken, 128);
  EXPECT_NE(why.find("128 cuDNN attention plans"), std::string::npos) << why;
}

}  // namespace
}  // namespace choir
