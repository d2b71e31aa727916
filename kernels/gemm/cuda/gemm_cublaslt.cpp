// gemm_cuda() by cuBLASLt: sums and split sums in f32, f32 products in f32, not TF32. The algorithm
// is the first that the library's heuristic proposes, so that equal runs compute equal bits, unless
// proposals were timed and one was chosen (ops/product.hpp).
#include <algorithm>
#include <cmath>
#include <limits>

#include "choir/core/error.hpp"
#include "choir/ops/bench_operands.hpp"
#include "choir/ops/stopwatch.hpp"
#include "kernels/gemm/cuda/cublaslt_plans.hpp"

namespace choir {
namespace {

cublaslt::Plans& plans_of(Device& device) {
  return device.plans().get<cublaslt::Plans>();
}

/// A product of random numbers.
class TimedProduct {
 public:
  TimedProduct(Device& device, const ops::Product& p) : data_(device, pool_) {
    args_ = {.m = p.m, .n = p.n, .k = p.k};
    args_.transpose_a = p.transpose_a, args_.transpose_b = p.transpose_b;
    args_.accumulate = p.accumulate, args_.in = p.in, args_.out = p.out;
    args_.epilogue = p.epilogue, args_.batch = p.batch;
    args_.stride_a = p.stride_a, args_.stride_b = p.stride_b, args_.stride_c = p.stride_c;
    const auto matrices = [&p](std::int64_t stride) { return stride == 0 ? 1 : p.batch; };
    args_.a = random(p.in, matrices(p.stride_a) * p.m * p.k);
    args_.b = random(p.in, matrices(p.stride_b) * p.k * p.n);
    args_.c = random(p.out, p.batch * p.m * p.n);
    if (p.bias) args_.bias = random(p.in, p.n);
    if (p.pre_activation) args_.pre_activation = random(p.out, p.m * p.n);
  }
  const GemmArgs& args() const { return args_; }

 private:
  void* random(DType type, std::int64_t count) { return data_.normal(type, {count})[0].data; }

  ops::NormalPool pool_;
  ops::BenchOperands data_;
  GemmArgs args_;
};

}  // namespace

bool gemm_cuda_offers(const Stream& stream, const GemmArgs& args) {
  return plans_of(stream.device()).of(stream, args).chosen != nullptr;
}

void gemm_cuda(const Stream& stream, const GemmArgs& args) {
  cublaslt::Plans& plans = plans_of(stream.device());
  const cublaslt::Plan& plan = plans.of(stream, args);
  if (!plan.chosen)
    throw Error(ExitCode::other,
                fmt::format("cuBLASLt does not support {} x {} x {} of {} into {}: {}", args.m,
                            args.n, args.k, name_of(args.in), name_of(args.out), plan.refusal));
  plans.run(plan, *plan.chosen, args);
}

std::vector<double> time_cuda_proposals(const Stream& stream, const ops::Product& product) {
  const TimedProduct timed(stream.device(), product);
  cublaslt::Plans plans;  // separate plans: those of the device are made once the choice is known
  const cublaslt::Plan& plan = plans.of(stream, timed.args());
  if (!plan.chosen) return {};
  std::vector<double> seconds;
  for (const auto& way : plan.ways) {
    seconds.push_back(std::numeric_limits<double>::infinity());
    if (!way) continue;
    seconds.back() =
        ops::median_seconds(stream, 0, [&](std::int64_t) { plans.run(plan, *way, timed.args()); });
  }
  return seconds;
}

void choose_cuda_products(Device& device, const ops::ProductChoices& choices) {
  plans_of(device).prefer(choices);
}

std::string cuda_product_library() {
  return cublaslt::version_text();
}

}  // namespace choir
