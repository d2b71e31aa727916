#include "choir/ops/clip.hpp"

#include <algorithm>
#include <cmath>

namespace choir::ops {

void clip_factor(const Stream& stream, const TensorView& square_sum, double max_norm,
                 const TensorView& norm, const TensorView& factor) {
  if (stream.kind() == DeviceKind::null) return;
  CHOIR_CHECK(stream.kind() == DeviceKind::cpu, "clip_factor has no {} form",
              name_of(stream.kind()));
  const double length = std::sqrt(square_sum.as<double>()[0]);
  norm.as<double>()[0] = length;
  double& f = factor.as<double>()[0];
  if (!std::isfinite(length))
    f = 0;
  else
    f = max_norm > 0 ? std::min(1.0, max_norm / (length + 1e-6)) : 1.0;
}

}  // namespace choir::ops
