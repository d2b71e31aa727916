#pragma once
// Compares relative attention, split norms and stochastic depth with their references, on any
// device.
#include "kernels/norm/norm.hpp"
#include "kernels/relative_attention/relative_attention.hpp"
#include "kernels/stochastic_depth/stochastic_depth.hpp"
#include "test/support/mirror.hpp"

namespace choir::test {

inline void check_relative_positions(Device& device, DType dtype, std::int64_t tokens,
                                     std::int64_t width) {
  SCOPED_TRACE(fmt::format("{} T {} C {}", name_of(dtype), tokens, width));
  const Stream stream(device);
  HostTensor tables(sum_dtype(dtype), {ops::relative_position_table_size(width)}),
      out(dtype, {2 * tokens - 1, width}), exact(DType::f64, out.shape());
  Mirror mirror(device);
  const TensorView table = mirror.io(tables), to = mirror.io(out);
  ops::make_relative_position_tables(stream, width, table);
  ops::relative_positions(stream, table, to);
  mirror.fetch();
  ref::relative_positions(exact);
  // Two products of table entries (a rounding each, and one of each product and the sum), and in
  // f64 the rounding of the reference's angle, which grows up to T.
  const double u = unit_roundoff(sum_dtype(dtype));
  expect_close(out, exact, unit_roundoff(dtype), 8 * u + static_cast<double>(tokens) * 0x1p-50,
               "positions");
}

inline void check_relative_queries(Device& device, DType dtype, std::int64_t rows,
                                   std::int64_t heads, std::int64_t width) {
  SCOPED_TRACE(fmt::format("{} N {} H {} D {}", name_of(dtype), rows, heads, width));
  const Stream stream(device);
  const std::int64_t all = heads * width;
  const HostTensor u = HostTensor::normal(dtype, {heads, width}, 2),
                   v = HostTensor::normal(dtype, {heads, width}, 3), u64 = u.to(DType::f64),
                   v64 = v.to(DType::f64);
  HostTensor q = HostTensor::normal(dtype, {rows, 3 * all}, 1), q64 = q.to(DType::f64),
             shifted(dtype, {heads, rows, width}), shifted64(DType::f64, shifted.shape());
  HostTensor d = HostTensor::normal(dtype, {rows, 3 * all}, 4), d64 = d.to(DType::f64);
  const HostTensor d_shifted = HostTensor::normal(dtype, {heads, rows, width}, 5),
                   d_shifted64 = d_shifted.to(DType::f64);
  HostTensor d_u = HostTensor::normal(sum_dtype(dtype), {heads, width}, 6), d_v = d_u,
             d_u64 = d_u.to(DType::f64), d_v64 = d_v.to(DType::f64);
  Mirror mirror(device);
  const double scale = 0.3;
  ops::relative_queries(stream, {.rows = mirror.io(q),
                                 .content = mirror.in(u),
                                 .position = mirror.in(v),
                                 .shifted = mirror.io(shifted),
                                 .scale = scale});
  ops::relative_queries_backward(
      stream, {.d_rows = mirror.io(d),
               .d_shifted = mirror.in(d_shifted),
               .d_content = mirror.io(d_u),
               .d_position = mirror.io(d_v),
               .workspace = mirror.workspace(ops::relative_queries_workspace(stream, rows, all)),
               .scale = scale});
  mirror.fetch();
  ref::relative_queries(
      {.rows = q64, .content = u64, .position = v64, .shifted = shifted64, .scale = scale});
  ref::relative_queries_backward({.d_rows = d64,
                                  .d_shifted = d_shifted64,
                                  .d_content = d_u64,
                                  .d_position = d_v64,
                                  .workspace = {},
                                  .scale = scale});
  const double each = unit_roundoff(dtype), sum = unit_roundoff(sum_dtype(dtype));
  // The terms are at most about 5 standard deviations: the bounds are absolute errors of their
  // roundings.
  expect_close(q, q64, each, 16 * sum, "q + u");
  expect_close(shifted, shifted64, each, 16 * sum, "shifted");
  expect_close(d, d64, each, 16 * sum, "d_q");
  const double sums = static_cast<double>(rows + 2) * sum * 8 * std::sqrt(double(rows) + 1);
  expect_close(d_u, d_u64, 0, sums, "d_u");
  expect_close(d_v, d_v64, 0, sums, "d_v");
}

inline void check_scores(Device& device, DType dtype, std::int64_t batch, std::int64_t heads,
                         std::int64_t tokens, const ops::AttentionContext& context,
                         std::int64_t padding = 0) {
  SCOPED_TRACE(fmt::format("{} B {} H {} T {} context {} {} {}", name_of(dtype), batch, heads,
                           tokens, context.left, context.right, context.chunk));
  const Stream stream(device);
  const HostTensor d_bias = HostTensor::normal(dtype, {batch, heads, tokens, tokens}, 1),
                   d_bias64 = d_bias.to(DType::f64);
  const std::int64_t width = 2 * tokens - 1 + padding;
  HostTensor d_scores(dtype, {heads, batch, tokens, width}),
      d_scores64(DType::f64, d_scores.shape());
  HostTensor scores = HostTensor::normal(dtype, {heads * batch, tokens, width}, 2),
             scores64 = scores.to(DType::f64);
  Mirror mirror(device);
  ops::unshift_scores(stream, mirror.in(d_bias), mirror.io(d_scores));
  ops::mask_scores(stream, context, mirror.io(scores));
  mirror.fetch();
  ref::unshift_scores(d_bias64, d_scores64);
  ref::mask_scores(context, scores64);
  for (std::int64_t i = 0; i < scores.count(); ++i) {
    ASSERT_EQ(d_scores[i], d_scores64[i]) << i;
    ASSERT_EQ(scores[i], scores64[i]) << i;
  }
  EXPECT_TRUE(d_scores.guard_intact() && scores.guard_intact());
}

inline constexpr ops::AttentionContext kContexts[] = {
    {-1, -1, 0}, {3, 2, 0}, {0, 0, 0}, {-1, 0, 0}, {2, -1, 0}, {1, -1, 3}, {0, -1, 2}, {-1, -1, 4}};

/// `ranks` ranks with `width` channels each, one after another. RMSNorm has no bias and an offset.
inline void check_split_norm(Device& device, DType dtype, std::int64_t rows, std::int64_t width,
                             std::int64_t ranks, ops::Norm kind = ops::Norm::layernorm) {
  const bool centred = kind == ops::Norm::layernorm;
  const double offset = centred ? 0 : 1;
  SCOPED_TRACE(fmt::format("{} N {} c {} ranks {} {}", name_of(dtype), rows, width, ranks,
                           centred ? "layernorm" : "rmsnorm"));
  const Stream stream(device);
  const DType sum = sum_dtype(dtype);
  HostTensor moments(sum, {ranks, rows, 2}), sums(sum, {rows, 2}), total(DType::f64, {rows, 2});
  std::vector<HostTensor> x, d_out, weight, bias;
  for (std::int64_t k = 0; k < ranks; ++k) {
    const auto seed = static_cast<std::uint64_t>(10 * k);
    x.push_back(HostTensor::normal(dtype, {rows, width}, seed + 1, 1, 3));
    d_out.push_back(HostTensor::normal(dtype, {rows, width}, seed + 2));
    weight.push_back(HostTensor::normal(dtype, {width}, seed + 3));
    bias.push_back(HostTensor::normal(dtype, {width}, seed + 4));
    HostTensor part(sum, {1, rows, 2});
    Mirror mirror(device);
    ops::split_norm_moments(stream, mirror.in(x.back()), mirror.io(part), kind);
    mirror.fetch();
    for (std::int64_t i = 0; i < 2 * rows; ++i) moments.set(k * 2 * rows + i, part[i]);
  }
  // Result of one rank with all channels, by the reference of the norm itself.
  const std::int64_t all = ranks * width;
  HostTensor X(DType::f64, {rows, all}), D = X, Y = X, G = X, W(DType::f64, {all}), B = W,
                                         DW = HostTensor::filled(DType::f64, {all}, 0), DB = DW,
                                         M(DType::f64, {rows}), R = M;
  for (std::int64_t k = 0; k < ranks; ++k)
    for (std::int64_t c = 0; c < width; ++c) {
      const auto rank = static_cast<std::size_t>(k);
      W.set(k * width + c, offset + weight[rank][c]);
      B.set(k * width + c, centred ? bias[rank][c] : 0);
      for (std::int64_t r = 0; r < rows; ++r) {
        X.set(r * all + k * width + c, x[rank][r * width + c]);
        D.set(r * all + k * width + c, d_out[rank][r * width + c]);
      }
    }
  for (std::int64_t r = 0; r < rows; ++r) {
    double mean = 0, square = 0, g = 0, gh = 0;
    for (std::int64_t c = 0; c < all && centred; ++c)
      mean += X[r * all + c] / static_cast<double>(all);
    for (std::int64_t c = 0; c < all; ++c)
      square += (X[r * all + c] - mean) * (X[r * all + c] - mean) / static_cast<double>(all);
    const double rstd = 1 / std::sqrt(square + 1e-5);
    M.set(r, mean), R.set(r, rstd);
    for (std::int64_t c = 0; c < all; ++c) {
      const double h = (X[r * all + c] - mean) * rstd;
      Y.set(r * all + c, h * W[c] + B[c]);
      g += centred ? D[r * all + c] * W[c] : 0, gh += D[r * all + c] * W[c] * h;
      DW.set(c, DW[c] + D[r * all + c] * h), DB.set(c, DB[c] + D[r * all + c]);
    }
    total.set(2 * r, g), total.set(2 * r + 1, gh);
    for (std::int64_t c = 0; c < all; ++c)
      G.set(r * all + c, rstd * (D[r * all + c] * W[c] - g / static_cast<double>(all) -
                                 (X[r * all + c] - mean) * rstd * gh / static_cast<double>(all)));
  }
  const HostTensor sums_in = total.to(sum);
  // Sums of `all` terms of order 1 and their products with rstd, which is of order 1 here unless a
  // row has only two channels (then it is up to 1 / distance).
  const double u = unit_roundoff(sum) * 40 * static_cast<double>(all + rows),
               e = 2 * unit_roundoff(dtype) + u;
  for (std::int64_t k = 0; k < ranks; ++k) {
    const auto rank = static_cast<std::size_t>(k);
    HostTensor out(dtype, {rows, width}), mean(sum, {rows}), rstd(sum, {rows});
    HostTensor d_x(dtype, {rows, width}), d_w = HostTensor::filled(sum, {width}, 0), d_b = d_w;
    HostTensor own(sum, {rows, 2});
    Mirror mirror(device);
    const TensorView xs = mirror.in(x[rank]), ws = mirror.in(weight[rank]), ms = mirror.io(mean),
                     rs = mirror.io(rstd), ds = mirror.in(d_out[rank]);
    ops::split_norm_forward(stream, {.x = xs,
                                     .moments = mirror.in(moments),
                                     .weight = ws,
                                     .bias = centred ? mirror.in(bias[rank]) : TensorView{},
                                     .out = mirror.io(out),
                                     .mean = ms,
                                     .rstd = rs,
                                     .offset = offset});
    ops::SplitNormBackward call{
        .d_out = ds,
        .x = xs,
        .weight = ws,
        .mean = ms,
        .rstd = rs,
        .sums = mirror.io(own),
        .width = all,
        .d_x = mirror.io(d_x),
        .d_weight = mirror.io(d_w),
        .d_bias = centred ? mirror.io(d_b) : TensorView{},
        .workspace = mirror.workspace(ops::split_norm_workspace(stream, rows, width)),
        .kind = kind,
        .offset = offset};
    ops::split_norm_sums(stream, call);
    call.sums = mirror.in(sums_in);
    ops::split_norm_backward(stream, call);
    mirror.fetch();
    expect_close(mean, M, u, u, "mean");
    expect_close(rstd, R, u, u, "rstd");
    for (std::int64_t c = 0; c < width; ++c) {
      for (std::int64_t r = 0; r < rows; ++r) {
        const std::int64_t at = r * all + k * width + c;
        ASSERT_NEAR(out[r * width + c], Y[at], e * (1 + std::abs(Y[at]))) << r << " " << c;
        ASSERT_NEAR(d_x[r * width + c], G[at], e * (1 + std::abs(G[at]))) << r << " " << c;
      }
      ASSERT_NEAR(d_w[c], DW[k * width + c], u * (1 + std::abs(DW[k * width + c])));
      if (!centred) continue;
      ASSERT_NEAR(d_b[c], DB[k * width + c], u * (1 + std::abs(DB[k * width + c])));
    }
    for (std::int64_t r = 0; r < 2 * rows; ++r) total.set(r, total[r] - own[r]);
  }
  for (std::int64_t r = 0; r < 2 * rows; ++r) ASSERT_NEAR(total[r], 0, u) << "sums of ranks";
}

inline void check_stochastic_depth(Device& device, DType dtype, std::int64_t width) {
  SCOPED_TRACE(fmt::format("{} C {}", name_of(dtype), width));
  const Stream stream(device);
  constexpr std::int64_t kSamples = 8, kTokens = 3, kFirst = 2;
  std::array<std::int64_t, kSamples> ids{};
  for (std::size_t i = 0; i < ids.size(); ++i)
    ids[i] = (std::int64_t{1} << 33) + static_cast<std::int64_t>(7 * i);
  const std::int64_t rows = kSamples * kTokens - kFirst;
  const HostTensor x = HostTensor::normal(dtype, {rows, width}, 1),
                   f = HostTensor::normal(dtype, {rows, width}, 2), x64 = x.to(DType::f64),
                   f64 = f.to(DType::f64);
  HostTensor out(dtype, x.shape()), out64(DType::f64, x.shape()), d_f(dtype, x.shape()),
      d_f64(DType::f64, x.shape()), d_x(dtype, x.shape()), d_x64(DType::f64, x.shape());
  Mirror mirror(device);
  ops::StochasticDepth args{.probability = 0.4,
                            .key = philox_key(5, "depth"),
                            .first_row = kFirst,
                            .tokens = kTokens,
                            .sample_ids = mirror.object(ids)->data()};
  const TensorView xs = mirror.in(x);
  ops::stochastic_depth_forward(stream, args, xs, mirror.in(f), mirror.io(out));
  ops::stochastic_depth_backward(stream, args, xs, mirror.io(d_f), mirror.io(d_x));
  mirror.fetch();
  args.sample_ids = ids.data();
  ref::stochastic_depth_forward(args, x64, f64, out64);
  ref::stochastic_depth_backward(args, x64, d_f64, d_x64);
  const double e = unit_roundoff(dtype), a = 32 * unit_roundoff(sum_dtype(dtype));
  expect_close(out, out64, e, a, "out");
  expect_close(d_f, d_f64, e, a, "d_f");
  expect_close(d_x, d_x64, e, a, "d_x");
  int dropped = 0;
  for (std::int64_t s = 1; s < kSamples; ++s) {
    const std::int64_t at = (s * kTokens - kFirst) * width;
    dropped += d_f[at] == 0;
    EXPECT_EQ(d_f[at] == 0, out[at] == x[at]) << "sample " << s;
  }
  EXPECT_GT(dropped, 0);
  EXPECT_LT(dropped, kSamples - 1);
}

}  // namespace choir::test
