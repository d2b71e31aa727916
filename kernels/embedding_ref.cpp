#include "kernels/embedding.hpp"

namespace choir::ref {

void embedding_forward(const ops::EmbeddingForward& args) {
  const std::int64_t width = args.table.shape.back();
  for (std::int64_t r = 0; r < args.ids.count(); ++r)
    for (std::int64_t c = 0; c < width; ++c) {
      double value = args.table.as<double>()[args.ids.as<std::int32_t>()[r] * width + c];
      if (!args.positions.empty())
        value += args.positions.as<double>()[(args.first_position + r % args.tokens) * width + c];
      args.out.as<double>()[r * width + c] = value;
    }
}

void embedding_backward(const ops::EmbeddingBackward& args) {
  const std::int64_t width = args.d_out.shape.back();
  for (std::int64_t r = 0; r < args.ids.count(); ++r)
    for (std::int64_t c = 0; c < width; ++c) {
      const double g = args.d_out.as<double>()[r * width + c];
      args.d_table.as<double>()[args.ids.as<std::int32_t>()[r] * width + c] += g;
      if (!args.d_positions.empty())
        args.d_positions.as<double>()[r % args.tokens * width + c] += g;
    }
}

}  // namespace choir::ref
