#include "src/nn/layers/self_attention.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "choir/nn/stream_state.hpp"
#include "choir/ops/copy_rows.hpp"
#include "kernels/rope/rope.hpp"
#include "kernels/sums/sums.hpp"
#include "src/nn/axes/context_axis.hpp"
#include "src/nn/axes/tensor_axis.hpp"

namespace choir {
namespace {

std::int64_t head_width_of(const SelfAttention::Options& o) {
  return o.head_width > 0 ? o.head_width : o.width / o.heads;
}

/// sums (+)= terms of 16 bits.
void add_narrow(Pass& pass, const Tensor& terms, const TensorView& sums, bool first) {
  if (first) return ops::cast(pass.stream(), terms, sums);
  const Tensor wide = pass.allocate_statistic(terms.shape, "keys gradient");
  ops::cast(pass.stream(), terms, wide);
  ops::add(pass.stream(), sums, wide, sums);
}

Linear::Options qkv_options(const SelfAttention::Options& o) {
  const std::int64_t q_width = head_width_of(o) * o.heads, kv_width = head_width_of(o) * o.kv_heads;
  const ShardSpec rows{
      .split_dim = 0,
      .sections = {{q_width, o.heads}, {kv_width, o.kv_heads}, {kv_width, o.kv_heads}}};
  return {.bias = o.qkv_bias,
          .weight_shard = rows,
          .bias_shard = rows,
          .adapter = o.lora.of({"q", "k", "v"})};
}

}  // namespace

SelfAttention::SelfAttention(ParameterSet& parameters, const std::string& name,
                             const Options& options)
    : options_(options),
      head_width_(head_width_of(options)),
      qkv_(parameters, name + ".qkv", options.width,
           (options.heads + 2 * options.kv_heads) * head_width_, qkv_options(options)),
      output_(parameters, name + ".output", options.heads * head_width_, options.width,
              {.bias = options.bias,
               .init_std = options.output_init_std,
               .weight_shard = {.split_dim = 1},
               .adapter = options.lora.of({"o"})}),
      dropout_(name + ".dropout", options.dropout, options.factor) {
  if (options.head_norm) {
    const auto make_norm = [&](const char* of, std::int64_t heads) {
      const bool all = options.norm_all_heads;
      return std::make_unique<ResidualNorm>(
          parameters, name + of, all ? heads * head_width_ : head_width_,
          ResidualNorm::Options{.kind = ops::Norm::rmsnorm,
                                .bias = false,
                                .eps = options.norm_eps,
                                .of_heads = !all,
                                .heads_of_row = all ? heads : 0,
                                .one_plus_weight = options.one_plus_weight});
    };
    query_norm_ = make_norm(".query_norm", options.heads);
    key_norm_ = make_norm(".key_norm", options.kv_heads);
  }
  options_.heads = heads_of_rank(options.heads, parameters.tensor());
  options_.kv_heads = heads_of_rank(options.kv_heads, parameters.tensor());
}

std::int64_t SelfAttention::heads_of_rank(std::int64_t heads, const TensorSplit& split) {
  return heads < split.ranks ? 1 : heads / split.ranks;
}

ops::AttentionProblem SelfAttention::problem(const Pass& pass, const ContextHeads& heads,
                                             std::int64_t queries, std::int64_t keys) const {
  return {.batch = pass.sequence().batch,
          .heads = heads.heads,
          .kv_heads = heads.kv_heads,
          .head_width = head_width_,
          .queries = queries,
          .keys = keys,
          .causal = true,
          .window = options_.window,
          .scale = options_.scale > 0 ? options_.scale
                                      : 1.0 / std::sqrt(static_cast<double>(head_width_)),
          .softcap = options_.softcap,
          .dtype = pass.precision().compute,
          .positions = pass.sequence().document_positions,
          .begins = pass.sequence().document_begins,
          .deterministic = options_.deterministic || pass.tensor().order == Summation::tree,
          .implementation = options_.implementation};
}

ops::AttentionProblem SelfAttention::problem(const Pass& pass) const {
  const int ranks = pass.shares_positions() ? pass.context().size() : 1;
  // Padding after the last position of all ranks is visible only to padding.
  const std::int64_t tokens = ranks * pass.sequence().tokens;
  return problem(pass, context_heads(options_.heads, options_.kv_heads, ranks), tokens, tokens);
}

ops::AttentionProblem SelfAttention::problem(const Pass& pass, const Sequence::Run& run) const {
  return problem(pass, context_heads(options_.heads, options_.kv_heads, 1), run.tokens,
                 run.first_position + run.tokens);
}

ops::AttentionOperand SelfAttention::packed(const Tensor& qkv, std::int64_t first_head,
                                            const Pass& pass) const {
  const std::int64_t row = qkv.shape.back();
  auto* data = static_cast<std::byte*>(qkv.data) +
               static_cast<std::size_t>(first_head * head_width_) * size_of(qkv.dtype);
  const std::int64_t tokens = qkv.shape.rows() / pass.sequence().batch;
  return {.data = data, .batch_stride = tokens * row, .position_stride = row};
}

ops::AttentionOperand SelfAttention::packed(const Tensor& rows, std::int64_t first_head,
                                            const Sequence::Run& run) const {
  const std::int64_t row = rows.shape.back(),
                     first = run.first_row * row + first_head * head_width_;
  return {.data = static_cast<std::byte*>(rows.data) +
                  static_cast<std::size_t>(first) * size_of(rows.dtype),
          .batch_stride = run.tokens * row,
          .position_stride = row};
}

Tensor SelfAttention::heads_alone(Pass& pass, const Tensor& qkv, std::int64_t first,
                                  std::int64_t count) const {
  const std::int64_t rows = qkv.shape.rows(), width = count * head_width_;
  const Shape shape =
      options_.norm_all_heads ? Shape{rows, width} : Shape{rows * count, head_width_};
  Tensor heads = pass.allocate(shape, "heads to normalise");
  ops::copy_rows(pass.stream(), qkv.dtype, rows, width,
                 {packed(qkv, first, pass).data, qkv.shape.back()}, {heads.data, width});
  return heads;
}

void SelfAttention::put_heads(Pass& pass, const Tensor& heads, const Tensor& qkv,
                              std::int64_t first, std::int64_t count) const {
  const std::int64_t width = count * head_width_;
  ops::copy_rows(pass.stream(), qkv.dtype, qkv.shape.rows(), width, {heads.data, width},
                 {packed(qkv, first, pass).data, qkv.shape.back()});
}

void SelfAttention::normalise(Pass& pass, ResidualNorm& norm, const Tensor& qkv, std::int64_t first,
                              std::int64_t count) const {
  const Tensor heads = heads_alone(pass, qkv, first, count);
  put_heads(pass, norm.forward(pass, {heads, Tensor()}).normed, qkv, first, count);
}

void SelfAttention::normalise_back(Pass& pass, ResidualNorm& norm, const Tensor& d_qkv,
                                   std::int64_t first, std::int64_t count) const {
  const Tensor d_heads = heads_alone(pass, d_qkv, first, count);
  put_heads(pass, norm.backward(pass, d_heads, Tensor()), d_qkv, first, count);
}

TensorView SelfAttention::angles_of(const TensorView& table) const {
  if (table.shape.rank() == 2) return table;
  const Shape one{table.shape[table.shape.rank() - 2], table.shape.back()};
  return table.slice(options_.rope_table, 1).reshaped(one);
}

void SelfAttention::rotate_positions(Pass& pass, const TensorView& rows, std::int64_t heads,
                                     std::int64_t first, const TensorView& table,
                                     bool inverse) const {
  if (!options_.rope) return;
  ops::rope(pass.stream(), {.x = rows,
                            .heads = heads,
                            .head_width = head_width_,
                            .tokens = rows.shape.rows(),
                            .first_position = pass.sequence().first_position + first,
                            .position_end = pass.sequence().position_end(),
                            .table = angles_of(table),
                            .inverse = inverse});
}

void SelfAttention::rotate(Pass& pass, const Tensor& qkv, const TensorView& table,
                           bool inverse) const {
  if (!options_.rope) return;
  const TensorView angles = angles_of(table);
  const StreamState* state = pass.sequence().state;
  const bool of_pass = state != nullptr && state->endless();
  for (int i = 0; i < pass.sequence().runs(); ++i) {
    const Sequence::Run run = pass.sequence().run(i);
    ops::rope(pass.stream(), {.x = qkv.slice(run.first_row, run.rows),
                              .heads = options_.heads + options_.kv_heads,
                              .head_width = head_width_,
                              .tokens = run.tokens,
                              .first_position = of_pass ? 0 : run.first_position,
                              .first_position_on_device = pass.sequence().first_position_on_device,
                              .position_end = pass.sequence().position_end(),
                              .table = angles,
                              .inverse = inverse});
  }
}

void SelfAttention::remember(Pass& pass, StreamState& state, std::int64_t capacity) const {
  const std::int64_t width = 2 * options_.kv_heads * head_width_;
  constexpr std::int64_t kPack = 8;  // elements of 16 bits that a GPU loads at once
  StreamState::Track track{
      .width = width,
      .most = capacity,
      .counts_on_device = head_width_ % kPack == 0 &&
                          options_.implementation != ops::AttentionImplementation::cudnn};
  if (state.endless()) {
    if (options_.window > 0) track.most = std::min(track.most, options_.window);
    --track.most;  // besides the position that arrives
    track.chunk = 1;
  }
  state.add(pass, this, std::move(track), "keys and values");
}

// Rows k | v are side by side in qkv.
void SelfAttention::read_streams(Pass& pass, ops::AttentionForward& call) const {
  const StreamState::Rows rows =
      pass.sequence().state->append(pass, this, {call.k.data, call.k.position_stride});
  const std::int64_t width = rows.first.shape.back();
  call.problem.keys = rows.first.shape[0];
  call.problem.seen = pass.sequence().first_position_on_device;
  call.k = {rows.first.data, rows.stride, width};
  const std::size_t half = static_cast<std::size_t>(width / 2) * size_of(rows.first.dtype);
  call.v = {static_cast<std::byte*>(rows.first.data) + half, rows.stride, width};
}

Tensor SelfAttention::attend(Pass& pass, Tensor qkv) const {
  if (pass.shares_positions() && pass.sequence().runs() > 1)
    return attend_to_all(pass, std::move(qkv));
  const ops::AttentionProblem shape = problem(pass);
  const bool shared = pass.shares_positions();
  if (shared) qkv = exchange(pass).to_heads(std::move(qkv), HeadExchange::Rows::qkv);
  Tensor out =
      pass.allocate({shape.batch * shape.queries, shape.heads * head_width_}, "attention output");
  Tensor lse = pass.training() ? pass.allocate_statistic({shape.batch, shape.heads, shape.queries},
                                                         "attention lse")
                               : Tensor();
  ops::AttentionForward call{.problem = shape,
                             .q = packed(qkv, 0, pass),
                             .k = packed(qkv, shape.heads, pass),
                             .v = packed(qkv, shape.heads + shape.kv_heads, pass),
                             .out = packed(out, 0, pass),
                             .log_sum_exp = lse,
                             .workspace = {}};
  if (pass.sequence().state) read_streams(pass, call);
  {
    const Tensor workspace = pass.scratch(
        ops::attention_workspace(pass.stream(), call.problem, false), "attention workspace");
    call.workspace = workspace;
    ops::attention_forward(pass.stream(), call);
  }
  pass.save(qkv);
  pass.save(out);
  if (pass.training()) pass.save(lse);
  if (!shared) return out;
  qkv.reset();
  return exchange(pass).to_positions(std::move(out), HeadExchange::Rows::queries);
}

Tensor SelfAttention::attend_backward(Pass& pass, Tensor d_out) const {
  if (pass.shares_positions() && pass.sequence().runs() > 1)
    return attend_to_all_backward(pass, std::move(d_out));
  const ops::AttentionProblem shape = problem(pass);
  const bool shared = pass.shares_positions();
  if (shared) d_out = exchange(pass).to_heads(std::move(d_out), HeadExchange::Rows::queries);
  const Tensor lse = pass.pop();
  const Tensor out = pass.pop();
  Tensor qkv = pass.pop();
  Tensor d_qkv = pass.allocate(qkv.shape, "qkv gradient");
  {
    const Tensor workspace =
        pass.scratch(ops::attention_workspace(pass.stream(), shape, true), "attention workspace");
    const std::int64_t k_head = shape.heads, v_head = shape.heads + shape.kv_heads;
    ops::attention_backward(pass.stream(), {.problem = shape,
                                            .q = packed(qkv, 0, pass),
                                            .k = packed(qkv, k_head, pass),
                                            .v = packed(qkv, v_head, pass),
                                            .out = packed(out, 0, pass),
                                            .d_out = packed(d_out, 0, pass),
                                            .log_sum_exp = lse,
                                            .d_q = packed(d_qkv, 0, pass),
                                            .d_k = packed(d_qkv, k_head, pass),
                                            .d_v = packed(d_qkv, v_head, pass),
                                            .workspace = workspace});
  }
  if (!shared) return d_qkv;
  qkv.reset();
  return exchange(pass).to_positions(std::move(d_qkv), HeadExchange::Rows::qkv);
}

// The choice does not depend on the shape of a pass, because passes of all shapes must request the
// same memory. In a ring, keys arrive without the keys before them, from which windows and
// documents are counted.
bool SelfAttention::goes_round(const Pass& pass) const {
  return pass.context().way.mode == ContextMode::ring && options_.window == 0 &&
         pass.sequence().document_positions == 0;
}

ops::AttentionProblem SelfAttention::problem_of_run(const Pass& pass) const {
  const int ranks = pass.context().way.group;
  const std::int64_t tokens = ranks * pass.sequence().run(0).tokens;
  return problem(pass, context_heads(options_.heads, options_.kv_heads, ranks), tokens, tokens);
}

Tensor SelfAttention::attend_round(Pass& pass, Tensor qkv) const {
  const bool exchanged = pass.context().way.group > 1;
  if (exchanged) qkv = exchange(pass).to_heads(std::move(qkv), HeadExchange::Rows::qkv);
  const ops::AttentionProblem shape = problem_of_run(pass);
  const Tensor lse =
      pass.allocate_statistic({2, shape.batch * shape.heads * shape.queries}, "attention lse");
  Tensor out = RingAttention(pass, shape).forward(qkv, lse);
  pass.save(qkv);
  pass.save(out);
  if (pass.training()) pass.save(lse);
  if (!exchanged) return out;
  qkv.reset();
  return exchange(pass).to_positions(std::move(out), HeadExchange::Rows::queries);
}

Tensor SelfAttention::attend_round_backward(Pass& pass, Tensor d_out) const {
  const bool exchanged = pass.context().way.group > 1;
  if (exchanged) d_out = exchange(pass).to_heads(std::move(d_out), HeadExchange::Rows::queries);
  const Tensor lse = pass.pop();
  const Tensor out = pass.pop();
  Tensor qkv = pass.pop();
  Tensor d_qkv = RingAttention(pass, problem_of_run(pass)).backward(qkv, out, d_out, lse);
  if (!exchanged) return d_qkv;
  qkv.reset();
  return exchange(pass).to_positions(std::move(d_qkv), HeadExchange::Rows::qkv);
}

Tensor SelfAttention::attend_to_all(Pass& pass, Tensor qkv) const {
  if (goes_round(pass)) return attend_round(pass, std::move(qkv));
  const Sequence& sequence = pass.sequence();
  const KeyGather all = gather(pass);
  const std::int64_t kv_width = options_.kv_heads * head_width_;
  const Tensor keys = all.gather({packed(qkv, options_.heads, pass).data, qkv.shape.back()});
  Tensor out = pass.allocate({sequence.rows(), options_.heads * head_width_}, "attention output");
  const std::int64_t of_run = sequence.run(0).rows * options_.heads;
  Tensor lse = pass.training() ? pass.allocate_statistic({2, of_run}, "attention lse") : Tensor();
  for (int i = 0; i < sequence.runs(); ++i) {
    const Sequence::Run run = sequence.run(i);
    const ops::AttentionProblem shape = problem(pass, run);
    const Tensor workspace =
        pass.scratch(ops::attention_workspace(pass.stream(), shape, false), "attention workspace");
    ops::attention_forward(pass.stream(),
                           {.problem = shape,
                            .q = packed(qkv, 0, run),
                            .k = all.operand(keys, 0),
                            .v = all.operand(keys, kv_width),
                            .out = packed(out, 0, run),
                            .log_sum_exp = lse.empty() ? TensorView{} : lse.slice(i, 1),
                            .workspace = workspace});
  }
  pass.save(qkv);
  pass.save(out);
  if (pass.training()) pass.save(lse);
  return out;
}

Tensor SelfAttention::attend_to_all_backward(Pass& pass, Tensor d_out) const {
  if (goes_round(pass)) return attend_round_backward(pass, std::move(d_out));
  const Sequence& sequence = pass.sequence();
  const Tensor lse = pass.pop();
  const Tensor out = pass.pop();
  const Tensor qkv = pass.pop();
  const KeyGather all = gather(pass);
  const std::int64_t kv_width = options_.kv_heads * head_width_;
  Tensor keys = all.gather({packed(qkv, options_.heads, pass).data, qkv.shape.back()});
  Tensor d_qkv = pass.allocate(qkv.shape, "qkv gradient");
  Tensor d_keys = all.gradients();
  for (int i = 0; i < sequence.runs(); ++i) {
    const Sequence::Run run = sequence.run(i);
    const ops::AttentionProblem shape = problem(pass, run);
    const TensorView of_run = d_keys.slice(i, 1);
    const Tensor workspace =
        pass.scratch(ops::attention_workspace(pass.stream(), shape, true), "attention workspace");
    ops::attention_backward(pass.stream(), {.problem = shape,
                                            .q = packed(qkv, 0, run),
                                            .k = all.operand(keys, 0),
                                            .v = all.operand(keys, kv_width),
                                            .out = packed(out, 0, run),
                                            .d_out = packed(d_out, 0, run),
                                            .log_sum_exp = lse.slice(i, 1),
                                            .d_q = packed(d_qkv, 0, run),
                                            .d_k = all.operand(of_run, 0),
                                            .d_v = all.operand(of_run, kv_width),
                                            .workspace = workspace});
  }
  keys.reset();
  d_out.reset();
  all.scatter(std::move(d_keys), {packed(d_qkv, options_.heads, pass).data, d_qkv.shape.back()});
  return d_qkv;
}

// Tiles. Bytes of a position between forward and backward, where e is the size of an element and
// Q = H D, K = Hkv D are the widths of this rank:
//
//                         whole             in tiles
//   input x               C e               C e (none with `source`)
//   queries, keys, values (Q + 2 K) e       -
//   output                Q e               -
//   log-sum-exp           4 H               -
//
// While a block runs, forward has keys and values of one sequence beside a tile of queries and
// outputs in place of those of all sequences, and backward, beside the gradients of queries, keys
// and values of all positions, has keys, values and two gradients of them of one sequence. In
// return backward repeats the two products and the attention of forward. Keys are not divided:
// every tile of queries reads all keys before it.
Tensor SelfAttention::keys_of(Pass& pass, const TensorView& rows, std::int64_t b,
                              const TensorView& rope_table) {
  const std::int64_t tokens = pass.sequence().tokens, heads = options_.kv_heads;
  const std::int64_t width = 2 * heads * head_width_;
  Tensor kv = pass.allocate({tokens, width}, "keys and values");
  qkv_.multiply_outputs(pass, rows.slice(b * tokens, tokens), options_.heads * head_width_, width,
                        kv);
  if (key_norm_) normalise(pass, *key_norm_, kv, 0, heads);
  rotate_positions(pass, kv, heads, 0, rope_table, false);
  return kv;
}

Tensor SelfAttention::queries_of(Pass& pass, const TensorView& rows, std::int64_t b,
                                 const Tile& positions, const TensorView& rope_table) {
  const std::int64_t width = options_.heads * head_width_;
  Tensor q = pass.allocate({positions.count, width}, "queries");
  qkv_.multiply_outputs(
      pass, rows.slice(b * pass.sequence().tokens + positions.first, positions.count), 0, width, q);
  if (query_norm_) normalise(pass, *query_norm_, q, 0, options_.heads);
  rotate_positions(pass, q, options_.heads, positions.first, rope_table, false);
  return q;
}

namespace {

/// Heads from `first` on of rows of one sequence.
ops::AttentionOperand heads_at(const TensorView& rows, std::int64_t first, std::int64_t width) {
  const std::int64_t row = rows.shape.back();
  auto* const data = static_cast<std::byte*>(rows.data) +
                     static_cast<std::size_t>(first * width) * size_of(rows.dtype);
  return {.data = data, .batch_stride = rows.count(), .position_stride = row};
}

}  // namespace

ops::AttentionProblem SelfAttention::problem_of_tile(const Pass& pass, std::int64_t b,
                                                     const Tile& queries) const {
  CHOIR_CHECK(!pass.shares_positions(), "attention in tiles of shared positions");
  ops::AttentionProblem tile = problem(pass, context_heads(options_.heads, options_.kv_heads, 1),
                                       queries.count, queries.end());
  tile.batch = 1;
  if (tile.begins != nullptr) tile.begins += b * tile.positions;
  return tile;
}

Tensor SelfAttention::attend_tile(Pass& pass, std::int64_t b, const Tile& positions,
                                  const TensorView& q, const TensorView& kv,
                                  const TensorView& lse) const {
  const ops::AttentionProblem shape = problem_of_tile(pass, b, positions);
  Tensor out = pass.allocate(q.shape, "attention output");
  const Tensor workspace =
      pass.scratch(ops::attention_workspace(pass.stream(), shape, false), "attention workspace");
  ops::attention_forward(pass.stream(), {.problem = shape,
                                         .q = heads_at(q, 0, head_width_),
                                         .k = heads_at(kv, 0, head_width_),
                                         .v = heads_at(kv, options_.kv_heads, head_width_),
                                         .out = heads_at(out, 0, head_width_),
                                         .log_sum_exp = lse,
                                         .workspace = workspace});
  return out;
}

Tensor SelfAttention::forward_in_tiles(Pass& pass, const Tensor& x, const TensorView& rope_table,
                                       bool keep_x) {
  const Tensor rows = gather_rows(pass, x);
  const Tensor terms = allocate_terms(pass, options_.width, "attention output terms");
  {
    const Pass::Unsaved alone(pass);
    const std::int64_t tokens = pass.sequence().tokens;
    for (std::int64_t b = 0; b < pass.sequence().batch; ++b) {
      const Tensor kv = keys_of(pass, rows, b, rope_table);
      for (std::int64_t first = 0; first < tokens; first = tile_end(pass, first)) {
        const Tile tile{first, tile_end(pass, first) - first};
        const Tensor q = queries_of(pass, rows, b, tile, rope_table);
        output_.multiply(pass, attend_tile(pass, b, tile, q, kv, {}),
                         terms.slice(b * tokens + first, tile.count));
      }
    }
  }
  if (keep_x) pass.save(x);
  return RowSum(pass, terms).wait();
}

// Gradients of keys are those of the last tile, which sees all of them, plus those of the tiles
// before it. Sums of 16 bits are made in f32.
Tensor SelfAttention::sequence_backward(Pass& pass, const Tensor& rows, const Tensor& d_rows,
                                        std::int64_t b, const TensorView& rope_table,
                                        const Tensor& d_qkv) {
  const std::int64_t tokens = pass.sequence().tokens, kv_heads = options_.kv_heads;
  const Tensor kv = keys_of(pass, rows, b, rope_table);
  Tensor d_kv = pass.allocate(kv.shape, "keys and values gradient");
  const bool narrow = size_of(kv.dtype) < sizeof(float) && options_.tile < tokens;
  const Tensor sums =
      narrow ? pass.allocate_statistic(kv.shape, "keys and values gradient") : Tensor();
  const std::int64_t last = (tokens - 1) / options_.tile * options_.tile;
  for (std::int64_t first = last; first >= 0; first -= options_.tile) {
    const Tile tile{first, tile_end(pass, first) - first};
    const Tensor q = queries_of(pass, rows, b, tile, rope_table);
    const ops::AttentionProblem shape = problem_of_tile(pass, b, tile);
    const Tensor lse = pass.allocate_statistic({1, shape.heads, tile.count}, "attention lse");
    Tensor out = attend_tile(pass, b, tile, q, kv, lse);
    const Tensor d_tile = d_rows.view(d_rows.slice(b * tokens + first, tile.count));
    const Tensor d_out = pass.allocate(q.shape, "attention output gradient");
    output_.multiply_back(pass, d_tile, d_out);
    const Tensor d_q = d_qkv.view(d_qkv.slice(b * tokens + first, tile.count));
    const Tensor d_part =
        first == last ? d_kv : pass.allocate({tile.end(), kv.shape.back()}, "keys gradient");
    {
      const Tensor workspace =
          pass.scratch(ops::attention_workspace(pass.stream(), shape, true), "attention workspace");
      ops::attention_backward(pass.stream(), {.problem = shape,
                                              .q = heads_at(q, 0, head_width_),
                                              .k = heads_at(kv, 0, head_width_),
                                              .v = heads_at(kv, kv_heads, head_width_),
                                              .out = heads_at(out, 0, head_width_),
                                              .d_out = heads_at(d_out, 0, head_width_),
                                              .log_sum_exp = lse,
                                              .d_q = heads_at(d_q, 0, head_width_),
                                              .d_k = heads_at(d_part, 0, head_width_),
                                              .d_v = heads_at(d_part, kv_heads, head_width_),
                                              .workspace = workspace});
    }
    output_.add_gradients(pass, std::move(out), d_tile);
    if (narrow)
      add_narrow(pass, d_part, sums.slice(0, tile.end()), first == last);
    else if (first < last)
      ops::add(pass.stream(), d_kv.slice(0, tile.end()), d_part, d_kv.slice(0, tile.end()));
    rotate_positions(pass, d_q, options_.heads, first, rope_table, true);
    if (query_norm_) normalise_back(pass, *query_norm_, d_q, 0, options_.heads);
  }
  if (narrow) ops::cast(pass.stream(), sums, d_kv);
  rotate_positions(pass, d_kv, kv_heads, 0, rope_table, true);
  if (key_norm_) normalise_back(pass, *key_norm_, d_kv, 0, kv_heads);
  return d_kv;
}

Tensor SelfAttention::backward_in_tiles(Pass& pass, const Tensor& d_y, const TensorView& rope_table,
                                        ResidualNorm* source) {
  const Tensor x = source ? source->remake(pass) : pass.pop();
  const std::int64_t q_width = options_.heads * head_width_, tokens = pass.sequence().tokens;
  Tensor d_qkv;
  {
    const Tensor rows = gather_rows(pass, x);
    const Tensor d_rows = gather_rows(pass, dropout_.backward(pass, d_y));
    d_qkv = pass.allocate({rows.shape.rows(), qkv_.outputs()}, "qkv gradient");
    for (std::int64_t b = 0; b < pass.sequence().batch; ++b) {
      const Tensor d_kv = sequence_backward(pass, rows, d_rows, b, rope_table, d_qkv);
      const ops::AttentionOperand to =
          heads_at(d_qkv.slice(b * tokens, tokens), options_.heads, head_width_);
      ops::copy_rows(pass.stream(), d_kv.dtype, tokens, d_kv.shape.back(),
                     {d_kv.data, d_kv.shape.back()}, {to.data, q_width + d_kv.shape.back()});
    }
  }
  pass.save(x);
  return qkv_.backward(pass, d_qkv);
}

Tensor SelfAttention::forward(Pass& pass, const Tensor& x, const TensorView& rope_table,
                              ResidualNorm* source) {
  if (in_tiles(pass)) {
    Tensor y = forward_in_tiles(pass, x, rope_table, source == nullptr);
    dropout_.forward(pass, y);
    return y;
  }
  Tensor qkv = qkv_.forward(pass, x, source == nullptr);
  if (query_norm_) {
    normalise(pass, *query_norm_, qkv, 0, options_.heads);
    normalise(pass, *key_norm_, qkv, options_.heads, options_.kv_heads);
  }
  rotate(pass, qkv, rope_table, false);
  Tensor y = output_.forward(pass, attend(pass, std::move(qkv)));
  dropout_.forward(pass, y);
  return y;
}

Tensor SelfAttention::backward(Pass& pass, const Tensor& d_y, const TensorView& rope_table,
                               ResidualNorm* source) {
  if (in_tiles(pass)) return backward_in_tiles(pass, d_y, rope_table, source);
  const Tensor d_qkv = attend_backward(pass, dropout_.backward_through(pass, d_y, output_));
  rotate(pass, d_qkv, rope_table, true);
  if (query_norm_) {
    normalise_back(pass, *key_norm_, d_qkv, options_.heads, options_.kv_heads);
    normalise_back(pass, *query_norm_, d_qkv, 0, options_.heads);
  }
  if (source) pass.save(source->remake(pass));
  return qkv_.backward(pass, d_qkv);
}

}  // namespace choir
