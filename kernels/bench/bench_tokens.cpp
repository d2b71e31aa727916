// Benches of ops that depend on token ids or positions, against their references.
#include <algorithm>
#include <map>

#include "kernels/bench/op_bench.hpp"
#include "kernels/cross_entropy/cross_entropy.hpp"
#include "kernels/dropout/dropout.hpp"
#include "kernels/embedding/embedding.hpp"
#include "kernels/rope/rope.hpp"

namespace choir::ops {
namespace {

constexpr double kTheta = 10000;

/// The ids of a window, renumbered so that the reference needs only the table rows that they use.
struct Renumbered {
  std::vector<std::int32_t> ids;    // new ids, indices of the rows below
  std::vector<std::int64_t> rows;   // rows of the batch
  std::vector<std::int64_t> named;  // old id of each new one
};

Renumbered renumber(const Operand& ids, const std::vector<std::int64_t>& rows) {
  Renumbered result{.rows = rows};
  std::map<std::int64_t, std::int32_t> fresh;
  for (const std::int64_t row : rows) {
    const auto old = static_cast<std::int64_t>(ids.exact(row));
    const auto [at, added] = fresh.try_emplace(old, static_cast<std::int32_t>(fresh.size()));
    if (added) result.named.push_back(old);
    result.ids.push_back(at->second);
  }
  return result;
}

std::vector<double> gather(const Operand& table, const std::vector<std::int64_t>& rows) {
  const std::int64_t width = table[0].shape.back();
  std::vector<double> values;
  for (const std::int64_t row : rows) {
    const std::vector<double> line = table.exact(row * width, width);
    values.insert(values.end(), line.begin(), line.end());
  }
  return values;
}

TensorView view_of_ids(std::vector<std::int32_t>& ids) {
  return {ids.data(), DType::i32, {static_cast<std::int64_t>(ids.size())}};
}

void embedding_forwards(OpBench& bench) {
  const BenchShape& b = bench.shape;
  const std::int64_t rows = b.rows, width = b.width;
  const DType t = bench.dtype;
  BenchOperands data = bench.operands(2.0 * static_cast<double>(rows * width));
  const Operand ids = data.integers(rows, b.vocabulary),
                table = data.normal(t, {b.vocabulary, width}),
                positions = data.normal(t, {b.tokens, width}), out = data.empty(t, {rows, width});
  const auto call = [&](const Stream& s, std::int64_t i) {
    embedding_forward(s, {ids[i], table[i], positions[i], b.tokens, 0, out[i]});
  };
  call(bench.stream, 0);
  Agreement agreement;
  for (const Window w : windows_of(rows, b.tokens)) {
    std::vector<std::int64_t> list;
    for (std::int64_t r = 0; r < w.count; ++r) list.push_back(w.first + r);
    Renumbered part = renumber(ids, list);
    std::vector<double> small = gather(table, part.named),
                        where = positions.exact(w.first % b.tokens * width, w.count * width),
                        sum(static_cast<std::size_t>(w.count * width));
    ref::embedding_forward({view_of_ids(part.ids),
                            view_of(small, {static_cast<std::int64_t>(part.named.size()), width}),
                            view_of(where, {w.count, width}), b.tokens, 0,
                            view_of(sum, {w.count, width})});
    agreement.add(data.read(out[0], w.first * width, w.count * width), sum, allowed_error(t, 2));
  }
  bench.row("embedding_forward", {rows, width}, agreement, call);
}

void embedding_backwards(OpBench& bench) {
  const BenchShape& b = bench.shape;
  const std::int64_t rows = b.rows, width = b.width;
  BenchOperands data = bench.operands(static_cast<double>(rows * width));
  const Operand ids = data.integers(rows, b.vocabulary),
                d_out = data.normal(bench.dtype, {rows, width}),
                d_table = data.normal(bench.sums, {b.vocabulary, width}),
                d_positions = data.normal(bench.sums, {b.tokens, width});
  const Operand workspace = data.empty(
      DType::u8,
      {std::max<std::int64_t>(1, embedding_workspace(bench.stream, rows, b.vocabulary, width))});
  const auto call = [&](const Stream& s, std::int64_t i) {
    embedding_backward(s, {.ids = ids[i],
                           .d_out = d_out[i],
                           .d_table = d_table[i],
                           .d_positions = d_positions[i],
                           .tokens = b.tokens,
                           .workspace = workspace[i]});
  };
  call(bench.stream, 0);
  // All rows that use one of a few ids.
  std::map<std::int64_t, bool> chosen;
  for (const Window w : windows_of(rows, b.tokens))
    for (std::int64_t r = 0; r < std::min<std::int64_t>(w.count, 16); ++r)
      chosen[static_cast<std::int64_t>(ids.exact(w.first + r))] = true;
  std::vector<std::int64_t> list;
  for (std::int64_t r = 0; r < rows; ++r)
    if (chosen.contains(static_cast<std::int64_t>(ids.exact(r)))) list.push_back(r);
  Renumbered part = renumber(ids, list);
  const auto count = static_cast<std::int64_t>(list.size()),
             named = static_cast<std::int64_t>(part.named.size());
  std::vector<double> gradient = gather(d_out, list), sum = gather(d_table, part.named), actual;
  ref::embedding_backward({view_of_ids(part.ids),
                           view_of(gradient, {count, width}),
                           view_of(sum, {named, width}),
                           {},
                           b.tokens});
  for (const std::int64_t id : part.named) {
    const std::vector<double> line = data.read(d_table[0], id * width, width);
    actual.insert(actual.end(), line.begin(), line.end());
  }
  Agreement agreement;
  agreement.add(actual, sum,
                allowed_error(bench.sums, static_cast<double>(count) / static_cast<double>(named)));
  // Positions at both ends, with a contribution of every sequence.
  for (const std::int64_t p : {std::int64_t{0}, std::min(rows, b.tokens) - 1}) {
    std::vector<double> line = d_positions.exact(p * width, width);
    for (std::int64_t r = p; r < rows; r += b.tokens) {
      const std::vector<double> more = d_out.exact(r * width, width);
      for (std::size_t c = 0; c < line.size(); ++c) line[c] += more[c];
    }
    agreement.add(data.read(d_positions[0], p * width, width), line,
                  allowed_error(bench.sums, static_cast<double>(rows / b.tokens + 1)));
  }
  bench.row("embedding_backward", {rows, width}, agreement, call);
}

void cross_entropies(OpBench& bench) {
  const std::int64_t rows = bench.shape.rows, columns = bench.shape.vocabulary;
  BenchOperands data = bench.operands(static_cast<double>(rows * columns));
  const Operand kept = data.normal(bench.dtype, {rows, columns}),
                logits = data.empty(bench.dtype, {rows, columns}),
                targets = data.integers(rows, columns), losses = data.empty(bench.sums, {rows});
  // The op overwrites its logits, so every call gets fresh ones, outside of its time.
  const auto refresh = [&](std::int64_t i) {
    bench.stream.copy(logits[i].data, kept[i].data, kept[i].bytes());
  };
  const auto call = [&](const Stream& s, std::int64_t i) {
    cross_entropy(
        s,
        {.logits = logits[i], .targets = targets[i], .losses = losses[i], .vocabulary = columns});
  };
  refresh(0), call(bench.stream, 0);
  Agreement agreement;
  for (const Window w : windows_of(rows, bench.shape.tokens)) {
    std::vector<double> z = kept.exact(w.first * columns, w.count * columns),
                        loss(static_cast<std::size_t>(w.count));
    std::vector<std::int32_t> target;
    for (std::int64_t r = 0; r < w.count; ++r)
      target.push_back(static_cast<std::int32_t>(targets.exact(w.first + r)));
    ref::cross_entropy({.logits = view_of(z, {w.count, columns}),
                        .targets = view_of_ids(target),
                        .losses = view_of(loss, {w.count}),
                        .vocabulary = columns});
    const auto terms = static_cast<double>(columns);
    agreement.add(data.read(losses[0], w.first, w.count), loss, allowed_error(bench.sums, terms));
    agreement.add(data.read(logits[0], w.first * columns, w.count * columns), z,
                  allowed_error(bench.dtype, terms));
  }
  refresh(0);
  bench.row("cross_entropy", {rows, columns}, agreement, call, refresh);
}

void ropes(OpBench& bench) {
  const BenchShape& b = bench.shape;
  const std::int64_t width = 3 * b.width, heads = 2 * b.width / b.head_width;
  BenchOperands data = bench.operands(static_cast<double>(b.rows * 2 * b.width));
  const Operand x = data.normal(bench.dtype, {b.rows, width}),
                table = data.empty(bench.sums, {b.tokens, b.head_width});
  for (std::int64_t s = 0; s < data.sets(); ++s) rope_table(bench.stream, kTheta, table[s]);
  const auto arguments = [&](const TensorView& rotated, const TensorView& angles,
                             std::int64_t position) {
    return Rope{.x = rotated,
                .heads = heads,
                .head_width = b.head_width,
                .tokens = b.tokens,
                .first_position = position,
                .table = angles};
  };
  const auto call = [&](const Stream& s, std::int64_t i) { rope(s, arguments(x[i], table[i], 0)); };
  call(bench.stream, 0);
  Agreement agreement;
  // Angles are as exact as their table; positions up to T lose no more digits than its rounding.
  for (const Window w : windows_of(b.rows, b.tokens)) {
    std::vector<double> e = x.exact(w.first * width, w.count * width);
    ref::rope(arguments(view_of(e, {w.count, width}), {}, w.first % b.tokens), kTheta);
    agreement.add(data.read(x[0], w.first * width, w.count * width), e,
                  allowed_error(bench.dtype, 2));
  }
  bench.row("rope", {b.rows, width}, agreement, call);
}

void dropouts(OpBench& bench) {
  const BenchShape& b = bench.shape;
  BenchOperands data = bench.operands(2.0 * static_cast<double>(b.rows * b.width));
  const Operand in = data.normal(bench.dtype, {b.rows, b.width}),
                out = data.empty(bench.dtype, {b.rows, b.width});
  const auto arguments = [&](const TensorView& from, const TensorView& to, std::int64_t row) {
    return Dropout{.in = from,
                   .out = to,
                   .probability = 0.1,
                   .key = philox_key(1, "bench"),
                   .first_sample = row / b.tokens,
                   .tokens = b.tokens,
                   .first_position = row % b.tokens};
  };
  const auto call = [&](const Stream& s, std::int64_t i) {
    dropout(s, arguments(in[i], out[i], 0));
  };
  call(bench.stream, 0);
  Agreement agreement;
  for (const Window w : windows_of(b.rows, b.tokens)) {
    std::vector<double> x = in.exact(w.first * b.width, w.count * b.width), y(x.size());
    ref::dropout(
        arguments(view_of(x, {w.count, b.width}), view_of(y, {w.count, b.width}), w.first));
    agreement.add(data.read(out[0], w.first * b.width, w.count * b.width), y,
                  allowed_error(bench.dtype, 0));
  }
  bench.row("dropout", {b.rows, b.width}, agreement, call);
}

}  // namespace

void bench_tokens(OpBench& bench) {
  if (!bench.shape.text) return;
  embedding_forwards(bench);
  embedding_backwards(bench);
  cross_entropies(bench);
}

void bench_positions(OpBench& bench) {
  if (bench.shape.text) ropes(bench);
  dropouts(bench);
}

}  // namespace choir::ops
