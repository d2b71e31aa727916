#include "choir/ops/running_statistics.hpp"

#include "kernels/dispatch.hpp"
#include "kernels/running_statistics/running_statistics.hpp"

namespace choir::ops {

void update_running_statistics(const Stream& stream, const RunningUpdate& args) {
  const DType dtype = args.mean.dtype;
  const std::int64_t count = args.frames.count(), width = args.mean.count();
  CHOIR_CHECK(dtype == DType::f64 || dtype == DType::f32, "running statistics of type {}",
              name_of(dtype));
  check_tensor(args.mean, dtype, width, "mean");
  check_tensor(args.variance, dtype, width, "variance");
  check_tensor(args.frames, dtype, count, "frames");
  check_tensor(args.records, dtype, 2 * count * width, "records");
  CHOIR_CHECK(args.momentum >= 0 && args.momentum <= 1, "momentum {}", args.momentum);
  stream.count(3 * static_cast<double>(args.records.count()),
               as_bytes(args.records) + as_bytes(args.frames) + 4 * as_bytes(args.mean));
  if (on_cuda(stream)) return cuda::update_running_statistics(stream, args);
  if (!computes(stream)) return;
  if (dtype == DType::f64)
    cpu::update_running_statistics<double>(args);
  else
    cpu::update_running_statistics<float>(args);
}

}  // namespace choir::ops
