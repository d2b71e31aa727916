#include "choir/ops/lars.hpp"

#include "kernels/dispatch.hpp"
#include "kernels/lars/lars.hpp"

namespace choir::ops {

void trust_ratios(const Stream& stream, const TrustRatios& args) {
  const std::int64_t chunks = args.weight_sums.count(), n = args.begins.count() - 1;
  check_tensor(args.weight_sums, DType::f64, chunks, "weight sums");
  check_tensor(args.gradient_sums, DType::f64, chunks, "gradient sums");
  check_tensor(args.begins, DType::i64, n + 1, "begins");
  check_tensor(args.ratios, DType::f64, 2 * n, "ratios");
  CHOIR_CHECK(args.control != nullptr, "trust ratios without a step control");
  CHOIR_CHECK(args.coefficient > 0 && args.decay >= 0 && args.epsilon > 0,
              "coefficient {}, decay {}, epsilon {}", args.coefficient, args.decay, args.epsilon);
  stream.count(2.0 * static_cast<double>(chunks), 2 * as_bytes(args.weight_sums));
  if (on_cuda(stream)) return cuda::trust_ratios(stream, args);
  if (!computes(stream)) return;
  cpu::trust_ratios(args);
}

void lars(const Stream& stream, const Lars& args) {
  const DType dtype = args.master.dtype;
  const std::int64_t n = args.master.count();
  CHOIR_CHECK(dtype == DType::f32 || dtype == DType::f64, "master weights of type {}",
              name_of(dtype));
  check_tensor(args.master, dtype, n, "master");
  check_tensor(args.gradient, dtype, n, "gradient");
  check_tensor(args.velocity, dtype, n, "velocity");
  check_optional(args.copy, args.copy.dtype == DType::f16 ? DType::f16 : DType::bf16, n, "copy");
  CHOIR_CHECK(args.control != nullptr, "lars without a step control");
  CHOIR_CHECK(args.momentum >= 0 && args.momentum < 1, "momentum {}", args.momentum);
  CHOIR_CHECK(args.scale > 0, "learning rate scale {}", args.scale);
  stream.count(6.0 * static_cast<double>(n), 5 * as_bytes(args.master) + as_bytes(args.copy));
  if (on_cuda(stream)) return cuda::lars(stream, args);
  if (!computes(stream)) return;
  cpu::lars(args);
}

}  // namespace choir::ops
