#include "kernels/splice/splice.hpp"

namespace choir::ref {

void splice_forward(const ops::SpliceForward& args) {
  const std::int64_t width = args.out.shape.back();
  for (std::int64_t r = 0; r < args.index.count(); ++r)
    for (std::int64_t a = 0; a < args.audio.shape.rows(); ++a)
      if (args.index.as<std::int32_t>()[r] == -1 - (args.first_audio + a))
        for (std::int64_t c = 0; c < width; ++c)
          args.out.as<double>()[r * width + c] += args.audio.as<double>()[a * width + c];
}

void splice_backward(const ops::SpliceBackward& args) {
  const std::int64_t width = args.d_out.shape.back();
  for (std::int64_t a = 0; a < args.d_audio.shape.rows(); ++a)
    for (std::int64_t c = 0; c < width; ++c) {
      double& sum = args.d_audio.as<double>()[a * width + c];
      sum = 0;
      for (std::int64_t r = 0; r < args.index.count(); ++r)
        if (args.index.as<std::int32_t>()[r] == -1 - (args.first_audio + a))
          sum += args.d_out.as<double>()[r * width + c];
    }
}

}  // namespace choir::ref
