#include "choir/ops/adamw.hpp"

#include "kernels/adamw/adamw.hpp"
#include "kernels/dispatch.hpp"

namespace choir::ops {

void adamw(const Stream& stream, const AdamW& args) {
  const DType dtype = args.master.dtype, moment = sum_dtype_of(dtype);
  const std::int64_t n = args.master.count();
  CHOIR_CHECK(dtype == DType::f32 || dtype == DType::f64 || dtype == DType::bf16,
              "master weights of type {}", name_of(dtype));
  check_tensor(args.master, dtype, n, "master");
  check_tensor(args.gradient, moment, n, "gradient");
  check_tensor(args.m, moment, n, "m");
  check_tensor(args.v, moment, n, "v");
  check_optional(args.copy, args.copy.dtype == DType::f16 ? DType::f16 : DType::bf16, n, "copy");
  CHOIR_CHECK(dtype != DType::bf16 || args.copy.empty(), "bf16 masters take no copy");
  CHOIR_CHECK(args.control != nullptr, "adamw without a step control");
  CHOIR_CHECK(args.beta1 >= 0 && args.beta1 < 1 && args.beta2 >= 0 && args.beta2 < 1, "betas {} {}",
              args.beta1, args.beta2);
  CHOIR_CHECK(args.scale > 0, "learning rate scale {}", args.scale);
  const ElementNumbers& e = args.elements;
  CHOIR_CHECK(e.first >= 0 && e.column >= 0 && e.width >= 0 &&
                  (e.width == 0 || (e.column < e.width && e.stride >= e.width)),
              "elements from {}, column {} of rows of {} every {}", e.first, e.column, e.width,
              e.stride);
  stream.count(14.0 * static_cast<double>(n),
               2 * as_bytes(args.master) + 5 * as_bytes(args.gradient) + as_bytes(args.copy));
  if (on_cuda(stream)) return cuda::adamw(stream, args);
  if (!computes(stream)) return;
  cpu::adamw(args);
}

}  // namespace choir::ops
