#include <cmath>
#include <limits>

#include "kernels/relative_attention/relative_attention.hpp"

namespace choir::ref {

void relative_positions(const TensorView& out) {
  const std::int64_t tokens = (out.shape[0] + 1) / 2, width = out.shape.back();
  for (std::int64_t k = 0; k < out.shape[0]; ++k)
    for (std::int64_t c = 0; c < width; ++c) {
      const double angle =
          static_cast<double>(tokens - 1 - k) *
          std::pow(10000.0, -static_cast<double>(c / 2 * 2) / static_cast<double>(width));
      out.as<double>()[k * width + c] = c % 2 == 0 ? std::sin(angle) : std::cos(angle);
    }
}

void relative_queries(const ops::RelativeQueries& args) {
  const std::int64_t heads = args.content.shape[0], width = args.content.shape[1];
  const std::int64_t rows = args.rows.shape.rows(), row = args.rows.shape.back();
  for (std::int64_t n = 0; n < rows; ++n)
    for (std::int64_t i = 0; i < heads * width; ++i) {
      double& q = args.rows.as<double>()[n * row + i];
      args.shifted.as<double>()[(i / width * rows + n) * width + i % width] =
          args.scale * (q + args.position.as<double>()[i]);
      q += args.content.as<double>()[i];
    }
}

void relative_queries_backward(const ops::RelativeQueriesBackward& args) {
  const std::int64_t heads = args.d_content.shape[0], width = args.d_content.shape[1];
  const std::int64_t rows = args.d_rows.shape.rows(), row = args.d_rows.shape.back();
  for (std::int64_t i = 0; i < heads * width; ++i)
    for (std::int64_t n = 0; n < rows; ++n) {
      double& d_q = args.d_rows.as<double>()[n * row + i];
      const double more =
          args.scale * args.d_shifted.as<double>()[(i / width * rows + n) * width + i % width];
      args.d_content.as<double>()[i] += d_q;
      args.d_position.as<double>()[i] += more;
      d_q += more;
    }
}

void unshift_scores(const TensorView& d_bias, const TensorView& d_scores) {
  const std::int64_t batch = d_bias.shape[0], heads = d_bias.shape[1], tokens = d_bias.shape[2];
  const std::int64_t width = d_scores.shape.back();
  for (std::int64_t h = 0; h < heads; ++h)
    for (std::int64_t b = 0; b < batch; ++b)
      for (std::int64_t i = 0; i < tokens; ++i)
        for (std::int64_t k = 0; k < width; ++k) {
          const std::int64_t j = k + i - (tokens - 1);
          d_scores.as<double>()[((h * batch + b) * tokens + i) * width + k] =
              j < 0 || j >= tokens
                  ? 0
                  : d_bias.as<double>()[((b * heads + h) * tokens + i) * tokens + j];
        }
}

void mask_scores(const ops::AttentionContext& context, const TensorView& scores) {
  const std::int64_t tokens = scores.shape[1], width = scores.shape[2];
  for (std::int64_t e = 0; e < scores.count(); ++e) {
    const std::int64_t i = e / width % tokens, k = e % width;
    const std::int64_t j = k + i - (tokens - 1);
    if (j < 0 || j >= tokens) continue;
    bool seen;
    if (context.chunk > 0) {
      const std::int64_t before = i / context.chunk - j / context.chunk;
      seen = before >= 0 && (context.left < 0 || before <= context.left);
    } else {
      seen = (context.left < 0 || i - j <= context.left) &&
             (context.right < 0 || j - i <= context.right);
    }
    if (!seen) scores.as<double>()[e] = -std::numeric_limits<double>::infinity();
  }
}

}  // namespace choir::ref
