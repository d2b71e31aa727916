#pragma once
// A column layer followed by a row layer, with adapters, on any number of ranks that share them.
#include <memory>
#include <string>
#include <vector>

#include "choir/nn/layers/linear.hpp"
#include "test/support/context_case.hpp"

namespace choir::test {

/// This rank's share of rows that are a function of their global index; padding holds zeros.
inline std::vector<double> share_of_rows(const Pass& pass, const char* what, std::int64_t width) {
  std::vector<double> part(static_cast<std::size_t>(pass.share_rows() * width), 0.0);
  const std::int64_t first = pass.first_share_row() * width;
  const std::int64_t all = pass.sequence().rows() * width;
  for (std::int64_t i = 0; i < pass.share_rows() * width && first + i < all; ++i)
    part[static_cast<std::size_t>(i)] = value_at(what, first + i);
  return part;
}

/// All rows, from the shares of the ranks of the tensor axis.
inline std::vector<double> rows_of_ranks(RankOfContext& rank, const Tensor& part) {
  const Pass& pass = rank.pass();
  const std::vector<double> values = rank.get(part);
  std::vector<double> all(static_cast<std::size_t>(pass.sequence().rows() * part.shape.back()));
  const auto first = static_cast<std::size_t>(pass.first_share_row() * part.shape.back());
  const bool mine = pass.shares_rows() || pass.tensor().rank() == 0;
  for (std::size_t i = 0; mine && i < values.size() && first + i < all.size(); ++i)
    all[first + i] = values[i];
  rank.mesh()
      .host_along(Axis::tensor)
      .all_reduce(all.data(), all.size(), DType::f64, ReduceOp::sum);
  return all;
}

inline bool is_factor(const Parameter& p) {
  return p.name.find(".adapter_") != std::string::npos;
}

struct AdapterOptions {
  std::int64_t rank = 3;  ///< 0: layers without adapters
  bool gelu = false;      ///< gelu_tanh between the layers, fused into the products
  bool frozen = false;    ///< weights and biases
  bool sequence = false;
  bool postponed = false;  ///< weight gradients run at the end
  bool halves = false;     ///< a pair of factors only for the second half of the hidden layer
  double dropout = 0;      ///< on several ranks without halves
};

/// y = row(column(x)), x [B*T, 12].
class AdaptedLayers {
 public:
  static constexpr std::int64_t kWidth = 12, kTokens = 7;
  /// A quarter begins within the four features for which dropout draws at a time.
  static constexpr std::int64_t kHidden = 24;

  AdaptedLayers(Device& device, Mesh& mesh, const AdapterOptions& options)
      : options_(options), rank_(device, mesh, "fp64", options.sequence) {
    rank_.parameters().begin_bucket("layers");
    // Rows are divided like those of gate and up.
    ShardSpec halves{.split_dim = 0, .sections = {{kHidden / 2}, {kHidden / 2}}};
    // Dropout before a row layer acts on columns that are divided at once, and so are these rows
    // then.
    if (options.dropout > 0 && !options.halves) halves.sections.clear();
    ShardSpec columns{.split_dim = 1};
    if (options.dropout == 0) columns.sections = halves.sections;
    Linear::Adapter adapter{.rank = options.rank, .alpha = 2, .dropout = options.dropout};
    if (options.halves) adapter.sections = {"", "second"};
    column_ = std::make_unique<Linear>(
        rank_.parameters(), "column", kWidth, kHidden,
        Linear::Options{.weight_shard = halves, .bias_shard = halves, .adapter = adapter});
    row_ = std::make_unique<Linear>(
        rank_.parameters(), "row", kHidden, kWidth,
        Linear::Options{.weight_shard = columns,
                        .adapter = {.rank = options.rank, .alpha = 6, .dropout = options.dropout}});
    if (options.frozen) rank_.parameters().freeze([](const Parameter& p) { return !is_factor(p); });
    rank_.place();
  }

  RankOfContext& rank() { return rank_; }
  /// Input and output gradient of this rank; tests may change them.
  std::vector<double> x, d_y;

  /// Runs forward and, in training, backward.
  ContextResult run(Mode mode = Mode::train) {
    Pass& pass = rank_.pass();
    pass.begin(mode, {.batch = 1, .tokens = kTokens}, 0);
    pass.postpone_weight_gradients(options_.postponed);
    if (x.empty()) x = share_of_rows(pass, "x", kWidth);
    if (d_y.empty()) d_y = share_of_rows(pass, "d_y", kWidth);
    Tensor in = pass.allocate({pass.share_rows(), kWidth}, "x");
    rank_.put(x, in);
    constexpr auto kGelu = ops::Activation::gelu_tanh;
    Tensor y;
    if (options_.gelu)
      y = row_->forward(pass, column_->forward_gelu(pass, kGelu, in));
    else
      y = row_->forward(pass, column_->forward(pass, in));
    in.reset();
    ContextResult result{.outputs = rows_of_ranks(rank_, y)};
    if (mode != Mode::train) return result;
    Tensor d = pass.allocate(y.shape, "d_y");
    rank_.put(d_y, d);
    d = options_.gelu ? row_->backward_gelu(pass, kGelu, d) : row_->backward(pass, d);
    d = column_->backward(pass, d);
    if (options_.postponed) pass.run_weight_gradients(0);
    result.input_gradients = rows_of_ranks(rank_, d);
    result.gradients = rank_.gradients();
    return result;
  }

 private:
  AdapterOptions options_;
  RankOfContext rank_;
  std::unique_ptr<Linear> column_, row_;
};

}  // namespace choir::test
