#include "choir/ops/adamw.hpp"

#include "kernels/adamw.hpp"
#include "src/ops/dispatch.hpp"

namespace choir::ops {

void adamw(const Stream& stream, const AdamW& args) {
  const DType dtype = args.master.dtype;
  const std::int64_t n = args.master.count();
  CHOIR_CHECK(dtype == DType::f32 || dtype == DType::f64, "master weights hold {}", name_of(dtype));
  check_tensor(args.master, dtype, n, "master");
  check_tensor(args.gradient, dtype, n, "gradient");
  check_tensor(args.m, dtype, n, "m");
  check_tensor(args.v, dtype, n, "v");
  check_optional(args.copy, DType::bf16, n, "copy");
  CHOIR_CHECK(args.step >= 1, "steps are counted from 1, not {}", args.step);
  CHOIR_CHECK(args.beta1 >= 0 && args.beta1 < 1 && args.beta2 >= 0 && args.beta2 < 1, "betas {} {}",
              args.beta1, args.beta2);
  stream.count(14.0 * static_cast<double>(n), 7 * as_bytes(args.master) + as_bytes(args.copy));
  if (!computes(stream)) return;
  dtype == DType::f64 ? cpu::adamw<double>(args) : cpu::adamw<float>(args);
}

}  // namespace choir::ops
