#include "choir/lab/calibrate/calibrate.hpp"

#include <fmt/core.h>
#include <omp.h>

#include <algorithm>
#include <array>

#include "choir/comm/agreement.hpp"
#include "choir/core/clock.hpp"
#include "choir/core/error.hpp"
#include "choir/core/median.hpp"
#include "choir/core/plural.hpp"
#include "choir/core/process.hpp"
#include "choir/core/text.hpp"
#include "choir/lab/bench/bench_results.hpp"
#include "choir/lab/bench/bench_shapes.hpp"
#include "src/lab/calibrate/calibrate_parts.hpp"

namespace choir {
namespace {

/// Products with more FLOPs take too long, and run at the rate of slightly smaller ones.
constexpr double kMostFlops = 1.2e9;

/// Products of the forms Y = X W^T, dX = dY W, dW += dY^T X, for all combinations of these extents.
std::vector<StepGemm> product_grid(bool brief) {
  const std::vector<std::int64_t> extents =
      brief ? std::vector<std::int64_t>{32, 256}
            : std::vector<std::int64_t>{32, 128, 256, 512, 2048};
  std::vector<StepGemm> grid;
  for (const auto& [a, b] : {std::pair{false, true}, {false, false}, {true, false}})
    for (const std::int64_t m : extents)
      for (const std::int64_t n : extents)
        for (const std::int64_t k : extents) {
          const StepGemm product{.name = fmt::format("{} x {} x {}", m, n, k),
                                 .m = m,
                                 .n = n,
                                 .k = k,
                                 .transpose_a = a,
                                 .transpose_b = b,
                                 .to_gradient = a};
          if (product.flops() <= kMostFlops) grid.push_back(product);
        }
  return grid;
}

void require_right(const ops::BenchRow& row) {
  if (!row.valid())
    throw NumericError(
        fmt::format("{} of {} is wrong: error {:.2e}, rounding explains at most {:.2e}", row.name,
                    row.shape, row.error, row.allowed),
        "run `choir bench gemm` and `choir bench attention` for details");
}

std::string rate_of(const Calibration& c, DType dtype) {
  double best = 0;
  for (const ProductTime& row : c.products)
    if (row.dtype == dtype)
      best = std::max(best, 2.0 * static_cast<double>(row.m * row.n) * static_cast<double>(row.k) /
                                row.seconds);
  return best == 0 ? ""
                   : fmt::format("  products {}: up to {:.1f} GFLOP/s a rank\n", name_of(dtype),
                                 best / 1e9);
}

std::string calls_of(const Calibration& c, bool across, bool window) {
  std::string text;
  for (const CallKind kind : {CallKind::all_reduce, CallKind::message}) {
    const CallTime *least = nullptr, *most = nullptr;
    for (const CallTime& row : c.calls)
      if (row.across == across && row.window == window && row.kind == kind) {
        if (least == nullptr) least = &row;
        most = &row;
      }
    if (least == nullptr || (window && kind == CallKind::message)) continue;
    text += fmt::format("  {}, {} of {} {}: {} in {:.1f} us, {} in {:.2f} ms ({:.2f} GB/s)\n",
                        across ? "between nodes" : "in a node",
                        kind == CallKind::message ? "message" : "all-reduce",
                        counted(most->ranks, "rank"), window ? "in windows" : "by MPI",
                        format_bytes(least->bytes), 1e6 * least->seconds, format_bytes(most->bytes),
                        1e3 * most->seconds, most->bytes / most->seconds / 1e9);
  }
  return text;
}

std::string waits_of(const Calibration& c, const std::string& precision) {
  std::vector<std::string> factors;
  for (const WaitFactor& wait : c.waits)
    if (wait.precision == precision)
      factors.push_back(fmt::format("{:.2f} x along {}", wait.factor, short_name(wait.axis)));
  return factors.empty() ? "" : "; factor while ranks wait for each other: " + join(factors, ", ");
}

}  // namespace

double mean_over(Communicator& world, double value) {
  world.all_reduce(&value, 1, DType::f64, ReduceOp::sum);
  return value / world.size();
}

void add_products(Calibration& to, Mesh& mesh, Device& device, const std::string& precision,
                  bool brief) {
  const std::vector<StepGemm> grid = product_grid(brief);
  const Precision types = precision_of(precision);
  mesh.world().barrier();
  std::vector<std::vector<double>> seconds(grid.size());  // by round
  for (int round = 0; round < (brief ? 1 : kCalibrationRounds); ++round) {
    const std::vector<ops::BenchRow> rows = bench_gemms(device, grid, types, 1, 0.001);
    for (std::size_t i = 0; i < grid.size(); ++i) {
      require_right(rows[i]);
      seconds[i].push_back(rows[i].seconds);
    }
  }
  for (std::size_t i = 0; i < grid.size(); ++i)
    to.products.push_back({types.compute, grid[i].transpose_a, grid[i].transpose_b, grid[i].m,
                           grid[i].n, grid[i].k, mean_over(mesh.world(), median_of(seconds[i]))});
}

void add_attention(Calibration& to, Mesh& mesh, Device& device, const std::string& precision,
                   bool brief) {
  const DType dtype = precision_of(precision).compute;
  std::vector<AttentionShape> shapes;
  for (const std::int64_t width : {32, 64, 128})
    for (const std::int64_t tokens : {64, 256, 1024})
      if (!brief || (width == 64 && tokens <= 256))
        shapes.push_back({.batch = std::max<std::int64_t>(1, 512 / tokens),
                          .heads = 256 / width,
                          .kv_heads = 256 / width,
                          .head_width = width,
                          .tokens = tokens});
  mesh.world().barrier();
  const AttentionBench bench = bench_attention(
      device, shapes, dtype, ops::AttentionImplementation::automatic, 1, brief ? 0.002 : 0.02);
  CHOIR_CHECK(bench.rows.size() == 2 * shapes.size(), "{} rows of {} shapes", bench.rows.size(),
              shapes.size());
  for (std::size_t i = 0; i < bench.rows.size(); ++i) {
    const AttentionShape& shape = shapes[i / 2];
    const bool backward = i % 2 == 1;
    require_right(bench.rows[i]);
    // The rows count half of the square, but a causal query also sees itself.
    const auto tokens = static_cast<double>(shape.tokens);
    const double flops = shape.flops(backward) * (tokens + 1) / tokens;
    to.attention.push_back({dtype, backward, true, shape.tokens, shape.head_width,
                            flops / mean_over(mesh.world(), bench.rows[i].seconds)});
  }
}

Layout calibration_layout(int ranks, int nodes) {
  if (ranks % nodes != 0)
    throw DeckError(fmt::format("{} ranks on {} nodes: the nodes have different numbers of ranks",
                                ranks, nodes),
                    "start the same number of ranks on each node");
  return {ranks / nodes, 1, nodes, 1};
}

Calibration calibrate(Mesh& mesh, Device& device, Logger& log, const CalibrateOptions& options) {
  Calibration c{.device = std::string(name_of(device.kind())),
                .description = device.description(),
                .ranks = mesh.world().size(),
                .ranks_per_node = mesh.node().size(),
                .threads = omp_get_max_threads()};
  c.name =
      fmt::format("{}, {} a node, on {}", counted(c.ranks, "rank"), c.ranks_per_node, host_name());
  broadcast_text(mesh.world(), c.name);
  for (const std::string& precision : options.precisions) {
    log.info("products and attention of {}", precision);
    add_products(c, mesh, device, precision, options.brief);
    add_attention(c, mesh, device, precision, options.brief);
    log.info("steps of small models in {}", precision);
    add_steps(c, mesh, device, log, precision, options.brief);
  }
  if (c.ranks > 1) {
    log.info("messages");
    add_calls(c, mesh, device, options.brief);
    add_overlaps(c, mesh, device);
    log.info("steps of small models on all ranks");
    add_waits(c, device, log, options.brief);
  }
  c.provenance = bench_provenance(mesh, device, "", {});
  if (c.provenance.empty()) c.provenance = "{}";
  return c;
}

std::string to_string(const Calibration& c) {
  std::string text = fmt::format("calibration of {}: {}\n", c.name, c.description);
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16})
    text += rate_of(c, dtype);
  for (const StreamTimes& s : c.streams)
    text += fmt::format(
        "  {}: products among other ops take {:.2f} x as long; other ops {:.1f} GB/s, {:.1f} "
        "GFLOP/s; error of the fit to whole steps {:.1f} %{}\n",
        s.precision, s.product_factor, s.per_byte > 0 ? 1e-9 / s.per_byte : 0,
        s.per_flop > 0 ? 1e-9 / s.per_flop : 0, 100 * s.fit_error, waits_of(c, s.precision));
  for (const UpdateTime& u : c.updates)
    text += fmt::format("  update {}: {} in {:.2f} ms\n", u.precision, format_bytes(u.bytes),
                        1e3 * u.seconds);
  for (const bool across : {false, true})
    for (const bool window : {true, false}) text += calls_of(c, across, window);
  for (const Overlap& o : c.overlaps)
    text += fmt::format("  {}, a call behind products: {:.0f} % hidden\n",
                        o.across ? "between nodes" : "in a node", 100 * o.hidden);
  return text;
}

}  // namespace choir
