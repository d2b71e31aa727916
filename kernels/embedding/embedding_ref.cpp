#include "kernels/embedding/embedding.hpp"

namespace choir::ref {

void embedding_forward(const ops::EmbeddingForward& args) {
  const std::int64_t width = args.table.shape.back();
  for (std::int64_t r = 0; r < args.ids.count(); ++r)
    for (std::int64_t c = 0; c < width; ++c) {
      const std::int64_t id = args.ids.as<std::int32_t>()[r] - args.first_id;
      const bool here = id >= 0 && id < args.table.shape.rows();
      double value = here ? args.table.as<double>()[id * width + c] : 0.0;
      std::int64_t position = args.first_position + r % args.tokens;
      if (position >= args.position_end) position = args.position_end - 1;
      if (!args.positions.empty()) value += args.positions.as<double>()[position * width + c];
      double& out = args.out.as<double>()[r * width + c];
      out = args.accumulate ? out + value : value;
    }
}

void embedding_backward(const ops::EmbeddingBackward& args) {
  const std::int64_t width = args.d_out.shape.back();
  for (std::int64_t r = 0; r < args.ids.count(); ++r)
    for (std::int64_t c = 0; c < width; ++c) {
      const double g = args.d_out.as<double>()[r * width + c];
      const std::int64_t id = args.ids.as<std::int32_t>()[r] - args.first_id;
      if (id >= 0 && id < args.d_table.shape.rows()) args.d_table.as<double>()[id * width + c] += g;
      const std::int64_t position = args.first_position + r % args.tokens;
      if (!args.d_positions.empty() && position < args.position_end)
        args.d_positions.as<double>()[position * width + c] += g;
    }
}

}  // namespace choir::ref
