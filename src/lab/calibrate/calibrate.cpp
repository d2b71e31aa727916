// The parts of a calibration: whole steps of small models and the fit to them, calls and their
// overlap with computation, products and attention. All are collective over the world of the mesh.

#include "src/lab/calibrate/calibrate.hpp"

#include <fmt/core.h>
#include <omp.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <vector>

#include "choir/core/error.hpp"
#include "choir/deck/deck.hpp"
#include "kernels/bench/bench_operands.hpp"
#include "kernels/gemm/gemm.hpp"
#include "src/comm/agreement.hpp"
#include "src/core/process.hpp"
#include "src/core/quantities.hpp"
#include "src/core/stats.hpp"
#include "src/core/text.hpp"
#include "src/lab/bench/bench_collectives.hpp"
#include "src/lab/bench/bench_results.hpp"
#include "src/lab/bench/bench_shapes.hpp"
#include "src/lab/bench/bench_step.hpp"
#include "src/lab/plan/layout_plan.hpp"
#include "src/run/run_setup.hpp"

namespace choir {

/// Number of rounds of each measurement, of which the median counts, as in `choir bench step`. A
/// neighbour's work for some seconds would slow down everything measured then, and the fastest
/// moments are not typical of steps.
inline constexpr int kCalibrationRounds = 3;

/// The mean over all ranks.
double mean_over(Communicator& world, double value);

/// Returns spread_of() the products.
double add_products(Calibration& to, Mesh& mesh, Device& device, Logger& log,
                    const std::string& precision, bool brief);
void add_attention(Calibration& to, Mesh& mesh, Device& device, const std::string& precision,
                   bool brief);
/// The small models whose steps are measured.
std::vector<Deck> probe_decks(const FamilyTable& families, const std::string& precision,
                              const std::string& device, bool brief);
/// The options of these measurements.
StepBenchOptions probe_options(bool brief);
/// Needs products and attention of the precision in `to`.
void add_steps(const FamilyTable& families, Calibration& to, Mesh& mesh, Device& device,
               Logger& log, const std::string& precision, bool brief);
void add_calls(Calibration& to, Mesh& mesh, Device& device, bool brief);
/// Needs calls in `to`.
void add_overlaps(Calibration& to, Mesh& mesh, Device& device);
/// Needs all other parts in `to`. Collective over the world.
void add_waits(const FamilyTable& families, Calibration& to, Device& device, Logger& log,
               bool brief);

namespace {

/// Nobody trains these models: predictions are made for others.
struct ProbeModel {
  int layers, heads, width, tokens, batch, vocabulary;
  bool modern;
};
constexpr std::array<ProbeModel, 6> kProbes{{
    {2, 2, 64, 64, 8, 64, false},
    {2, 3, 192, 128, 8, 96, false},
    {2, 4, 256, 256, 2, 256, true},
    {2, 7, 448, 128, 4, 128, false},
    {1, 16, 1024, 128, 2, 64, false},
    {1, 4, 256, 64, 4, 8192, false},
}};

/// `axes` are overrides for the layout and the micro-batches.
Deck deck_of(const FamilyTable& families, const ProbeModel& probe, const std::string& precision,
             const std::string& device, const std::vector<std::string>& axes = {}) {
  const char* style = probe.modern ? R"("norm": "rmsnorm", "activation": "swiglu",
                                        "position": "rope", "bias": false)"
                                   : R"("bias": true)";
  return parse_deck(
      families,
      fmt::format(R"({{"model": {{"n_layer": {}, "n_head": {}, "n_embd": {}, "block_size": {},
                      "vocab_size": {}, {}}}, "data": {{"format": "synthetic"}}, "device": "{}",
                      "train": {{"precision": "{}", "micro_batch_size": {}, "grad_accum": 1,
                                 "max_steps": 100}}}})",
                  probe.layers, probe.heads, probe.width, probe.tokens, probe.vocabulary, style,
                  device, precision, probe.batch),
      "choir calibrate", axes);
}

/// The probes that ranks can share along an axis: all ranks along data, else pairs of ranks.
std::vector<Deck> shared_decks(const FamilyTable& families, Axis axis, int ranks,
                               const std::string& precision, const std::string& device,
                               bool brief) {
  const int sharing = axis == Axis::data ? ranks : 2;
  if (ranks % sharing != 0) return {};
  constexpr std::array<const char*, kAxes> kKeys{"tensor", "context", "data", "pipeline"};
  std::vector<std::string> keys{
      fmt::format("parallel.{}={}", kKeys[static_cast<std::size_t>(axis)], sharing)};
  if (axis != Axis::data) keys.push_back(fmt::format("parallel.data={}", ranks / sharing));
  if (axis == Axis::pipeline) keys.push_back("train.grad_accum=2");
  std::vector<Deck> decks;
  for (const ProbeModel& probe : kProbes) {
    const int shared = axis == Axis::data       ? sharing
                       : axis == Axis::pipeline ? probe.layers
                                                : probe.heads;
    // A step of a wide model takes as long as the steps of all others together.
    if (shared % sharing == 0 && probe.width <= 256 && !(brief && !decks.empty()))
      decks.push_back(deck_of(families, probe, precision, device, keys));
  }
  return decks;
}

StepTime predicted(const Calibration& calibration, const Deck& deck, DeviceKind device) {
  const PlanTarget here{.name = calibration.name, .kind = device};
  const auto known = std::make_shared<const Calibration>(calibration);
  return *plan_layout({.deck = deck,
                       .ranks = calibration.ranks,
                       .ranks_per_node = calibration.ranks_per_node,
                       .target = here,
                       .calibration = known})
              .time;
}

}  // namespace

std::vector<Deck> probe_decks(const FamilyTable& families, const std::string& precision,
                              const std::string& device, bool brief) {
  std::vector<Deck> decks;
  for (std::size_t i = 0; i < (brief ? 2 : kProbes.size()); ++i)
    decks.push_back(deck_of(families, kProbes[i], precision, device));
  return decks;
}

StepBenchOptions probe_options(bool brief) {
  return {.warmup_seconds = 0, .steps = brief ? 3 : 12, .ceilings = false};
}

void add_waits(const FamilyTable& families, Calibration& to, Device& device, Logger& log,
               bool brief) {
  constexpr std::array kAxesInTurn{Axis::tensor, Axis::context, Axis::data, Axis::pipeline};
  std::vector<WaitFactor> waits;
  ProgressLine progress(log, "steps of small models on all ranks");
  std::int64_t begun = 0;
  for (const StreamTimes& streams : to.streams)
    for (const Axis axis : kAxesInTurn) {
      progress.at(begun++, std::ssize(to.streams) * std::ssize(kAxesInTurn));
      const std::vector<Deck> decks =
          shared_decks(families, axis, to.ranks, streams.precision, to.device, brief);
      if (decks.empty()) continue;
      const auto mesh =
          Mesh::over_world(layout_of(decks.front(), to.ranks), mesh_options_of(decks.front()));
      mesh->attach(device);
      std::vector<double> factors;
      for (const Deck& deck : decks) {
        const StepTime alone = predicted(to, deck, device.kind());
        // A step that is mostly messages would measure the prediction of messages.
        if (alone.exposed_seconds() > 0.25 * alone.seconds) continue;
        std::vector<double> seconds;
        for (int round = 0; round < (brief ? 1 : kCalibrationRounds); ++round)
          seconds.push_back(
              bench_step(deck, *mesh, device, log, probe_options(brief)).median_seconds);
        factors.push_back(1 +
                          (median_of(seconds) - alone.seconds) / (alone.compute + alone.update));
      }
      if (factors.empty()) continue;
      waits.push_back({streams.precision, axis, std::max(1.0, median_of(factors))});
    }
  to.waits = std::move(waits);
}

namespace {

/// The sum of a record's places that belong to one phase.
PlaceTime parts_of_phase(const MachineRates& rates, const WorkRecord& record, WorkPart part) {
  PlaceTime sum;
  for (const auto& [place, work] : record.places) {
    if (place.part != part) continue;
    const PlaceTime parts = rates.parts(work);
    sum.products += parts.products, sum.attention += parts.attention;
    sum.bytes += parts.bytes, sum.flops += parts.flops;
  }
  return sum;
}

using PhaseSeconds = std::array<double, kPhases>;

/// The phases of a step of each deck, on every rank by itself; the mean over the ranks.
std::vector<PhaseSeconds> phases_of(const std::vector<Deck>& decks, Mesh& mesh, Device& device,
                                    Logger& log, bool brief) {
  const auto silent = Mesh::planned(Layout(), 0, 1);
  silent->attach(device);
  std::vector<std::array<std::vector<double>, kPhases>> rounds(decks.size());
  const int count = brief ? 1 : kCalibrationRounds;
  ProgressLine progress(log, "steps of small models");
  for (int round = 0; round < count; ++round)
    for (std::size_t i = 0; i < decks.size(); ++i) {
      progress.at(round * std::ssize(decks) + static_cast<std::int64_t>(i),
                  count * std::ssize(decks));
      mesh.world().barrier();
      const StepBench bench = bench_step(decks[i], *silent, device, log, probe_options(brief));
      for (std::size_t p = 0; p < kPhases; ++p)
        rounds[i][p].push_back(mean_over(mesh.world(), bench.phases[p].median));
    }
  std::vector<PhaseSeconds> all(decks.size());
  for (std::size_t i = 0; i < decks.size(); ++i)
    std::transform(rounds[i].begin(), rounds[i].end(), all[i].begin(), median_of);
  return all;
}

constexpr int kUnknowns = 3;
using Row = std::array<double, kUnknowns + 1>;  // coefficients, and their sum

/// Solves least squares without negative values by descent along one coordinate after the other.
std::array<double, kUnknowns> solve(const std::vector<Row>& rows) {
  std::array<double, kUnknowns> x{1, 0, 0};
  for (int round = 0; round < 2000; ++round)
    for (int u = 0; u < kUnknowns; ++u) {
      double up = 0, down = 0;
      for (const Row& row : rows) {
        double rest = row[kUnknowns];
        for (int other = 0; other < kUnknowns; ++other)
          if (other != u)
            rest -= row[static_cast<std::size_t>(other)] * x[static_cast<std::size_t>(other)];
        const double mine = row[static_cast<std::size_t>(u)];
        up += mine * rest, down += mine * mine;
      }
      // Products always cost time, even if noise suggests otherwise.
      const double least = u == 0 ? 0.5 : 0;
      if (down > 0) x[static_cast<std::size_t>(u)] = std::max(least, up / down);
    }
  return x;
}

}  // namespace

StreamTimes fit_streams(const std::vector<FittedPhase>& phases) {
  // Bytes and FLOPs are scaled by their largest values, because descent would converge slowly
  // otherwise.
  double bytes = 1, flops = 1;
  for (const FittedPhase& p : phases)
    bytes = std::max(bytes, p.parts.bytes), flops = std::max(flops, p.parts.flops);
  std::vector<Row> rows;
  for (const FittedPhase& p : phases)
    rows.push_back({p.parts.products / p.seconds, p.parts.bytes / bytes / p.seconds,
                    p.parts.flops / flops / p.seconds,
                    (p.seconds - p.parts.attention) / p.seconds});
  const auto x = solve(rows);
  StreamTimes times{.product_factor = x[0], .per_byte = x[1] / bytes, .per_flop = x[2] / flops};
  double squares = 0;
  for (const Row& row : rows) {
    const double error = row[0] * x[0] + row[1] * x[1] + row[2] * x[2] - row[kUnknowns];
    squares += error * error;
  }
  times.fit_error = std::sqrt(squares / static_cast<double>(std::max<std::size_t>(1, rows.size())));
  return times;
}

void add_steps(const FamilyTable& families, Calibration& to, Mesh& mesh, Device& device,
               Logger& log, const std::string& precision, bool brief) {
  const MachineRates rates(to);
  const std::vector<Deck> decks = probe_decks(families, precision, to.device, brief);
  const std::vector<PhaseSeconds> measured = phases_of(decks, mesh, device, log, brief);
  std::vector<FittedPhase> phases;
  std::vector<double> rest;
  std::vector<UpdateTime> updates;
  for (std::size_t i = 0; i < decks.size(); ++i) {
    const BatchSizes batch = [&] {
      Deck resolved = decks[i];
      return resolve_batch(resolved, 1);
    }();
    WorkRecord record;
    plan_step(engine_options(decks[i], batch), Layout(), 0, 1, false, &device, false, &record);
    const auto seconds = [&](Phase phase) { return measured[i][static_cast<std::size_t>(phase)]; };
    phases.push_back({parts_of_phase(rates, record, WorkPart::forward), seconds(Phase::forward)});
    phases.push_back({parts_of_phase(rates, record, WorkPart::backward), seconds(Phase::backward)});
    updates.push_back({precision, parts_of_phase(rates, record, WorkPart::update).bytes,
                       seconds(Phase::optimizer)});
    rest.push_back(seconds(Phase::other) + seconds(Phase::data) + seconds(Phase::comm));
  }
  StreamTimes times = fit_streams(phases);
  times.precision = precision;
  times.step = median_of(rest);
  to.streams.push_back(times);
  std::sort(updates.begin(), updates.end(),
            [](const UpdateTime& a, const UpdateTime& b) { return a.bytes < b.bytes; });
  to.updates.insert(to.updates.end(), updates.begin(), updates.end());
}

namespace {

constexpr std::array<std::pair<std::string_view, CallKind>, 5> kKinds{{
    {"all_reduce", CallKind::all_reduce},
    {"reduce_scatter", CallKind::reduce_scatter},
    {"all_gather", CallKind::all_gather},
    {"all_to_all", CallKind::all_to_all},
    {"sendrecv", CallKind::message},
}};

/// The engine polls a started call about once per layer.
constexpr int kPolls = 4;

/// Measures an all-reduce, products, and both at once.
class OverlapBench {
 public:
  OverlapBench(Mesh& mesh, Communicator& comm, Device& device)
      : world_(mesh.world()),
        comm_(comm),
        stream_(device),
        data_(device, pool_),
        buffer_(comm.allocate(kBytes)) {
    const Shape square{kExtent, kExtent};
    a_ = data_.normal(DType::f32, square), b_ = data_.normal(DType::f32, square);
    c_ = data_.empty(DType::f32, square);
  }

  double hidden() {
    calls_ = 1;
    const double call = measure(true, false), once = measure(false, true);
    calls_ = std::clamp(static_cast<int>(call / once), 1, 200);
    std::vector<double> shares;
    for (int round = 0; round < 7; ++round) {
      const double alone = measure(true, false), products = measure(false, true),
                   both = measure(true, true);
      shares.push_back((alone + products - both) / std::min(alone, products));
    }
    return std::clamp(median_of(shares), -1.0, 1.0);
  }

 private:
  static constexpr std::size_t kBytes = std::size_t{4} << 20;
  static constexpr std::int64_t kExtent = 192;

  /// Returns the seconds of the slowest rank.
  double measure(bool call, bool products) {
    world_.barrier();
    const double start = now_seconds();
    CommRequest* request = nullptr;
    if (call)
      request = &comm_.start_all_reduce(buffer_->data(), kBytes / sizeof(float), DType::f32,
                                        ReduceOp::sum);
    for (int i = 0; products && i < calls_ * kPolls; ++i) {
      ops::gemm(stream_, a_[0], b_[0], c_[0], {.transpose_b = true});
      if (request != nullptr && i % calls_ == 0) request->test();
    }
    stream_.synchronize();
    if (request != nullptr) request->wait();
    double seconds = now_seconds() - start;
    world_.all_reduce(&seconds, 1, DType::f64, ReduceOp::max);
    return seconds;
  }

  Communicator& world_;
  Communicator& comm_;
  ops::NormalPool pool_;
  Stream stream_;
  ops::BenchOperands data_;
  std::unique_ptr<CommBuffer> buffer_;
  ops::Operand a_, b_, c_;
  int calls_ = 1;
};

}  // namespace

void add_calls(Calibration& to, Mesh& mesh, Device& device, bool brief) {
  CollectiveBenchOptions options;
  // Messages take long over a slow network; larger ones have the same rate.
  options.max_bytes = brief ? 64 << 10 : mesh.nodes() > 1 ? 4 << 20 : 16 << 20;
  options.repeats = brief ? 3 : 5;  // a single call can be delayed a thousandfold by other work
  options.as_engine = true;
  for (const CollectiveRow& row : bench_axes(mesh, device, options)) {
    const auto* const kind = std::find_if(kKinds.begin(), kKinds.end(),
                                          [&](const auto& k) { return k.first == row.name; });
    if (kind == kKinds.end()) continue;
    to.calls.push_back({.across = row.axis == short_name(Axis::data),
                        .window = row.transport != "mpi" && row.transport != "staged",
                        .kind = kind->second,
                        .ranks = row.ranks,
                        .bytes = static_cast<double>(row.bytes),
                        .seconds = row.seconds});
  }
}

void add_overlaps(Calibration& to, Mesh& mesh, Device& device) {
  for (const Axis axis : {Axis::tensor, Axis::data})
    if (mesh.along(axis).size() > 1)
      to.overlaps.push_back(
          {axis == Axis::data, OverlapBench(mesh, mesh.along(axis), device).hidden()});
}

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

// Names every axis, because an axis may have no factor: its steps were mostly messages (add_waits),
// or the ranks cannot share a probe along it.
std::string waits_of(const Calibration& c, const std::string& precision) {
  if (c.ranks == 1) return "";
  std::vector<std::string> factors;
  for (const Axis axis : {Axis::tensor, Axis::context, Axis::data, Axis::pipeline}) {
    const auto found = std::find_if(c.waits.begin(), c.waits.end(), [&](const WaitFactor& wait) {
      return wait.precision == precision && wait.axis == axis;
    });
    factors.push_back(found == c.waits.end()
                          ? fmt::format("unknown along {}", short_name(axis))
                          : fmt::format("{:.2f} x along {}", found->factor, short_name(axis)));
  }
  return "; factor while ranks wait for each other: " + join(factors, ", ");
}

}  // namespace

double mean_over(Communicator& world, double value) {
  world.all_reduce(&value, 1, DType::f64, ReduceOp::sum);
  return value / world.size();
}

double add_products(Calibration& to, Mesh& mesh, Device& device, Logger& log,
                    const std::string& precision, bool brief) {
  const std::vector<StepGemm> grid = product_grid(brief);
  const Precision types = precision_of(precision);
  mesh.world().barrier();
  std::vector<std::vector<double>> seconds(grid.size());  // by round
  const int rounds = brief ? 1 : kCalibrationRounds;
  ProgressLine progress(log, "products of " + precision);
  for (int round = 0; round < rounds; ++round) {
    progress.at(round, rounds);
    const std::vector<ops::BenchRow> rows = bench_gemms(device, grid, types, 1, 0.001);
    for (std::size_t i = 0; i < grid.size(); ++i) {
      require_right(rows[i]);
      seconds[i].push_back(rows[i].seconds);
    }
  }
  for (std::size_t i = 0; i < grid.size(); ++i)
    to.products.push_back({types.compute, grid[i].transpose_a, grid[i].transpose_b, grid[i].m,
                           grid[i].n, grid[i].k, mean_over(mesh.world(), median_of(seconds[i]))});
  return spread_of(seconds);
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
  const std::size_t parts = 2 * options.precisions.size() + (c.ranks > 1 ? 2 : 0);
  std::size_t part = 0;
  const auto begin_part = [&](const std::string& contents) {
    log.info("part {} of {}: {}", ++part, parts, contents);
  };
  const double began = now_seconds();
  const ContentionMeter meter;
  double disturbed[3] = {0, 0, 0};  // waited, stolen, spread
  if (!options.brief)
    log.info("calibrating: one to four minutes{} on idle cores, and longer on slow or busy ones",
             options.precisions.size() > 1 ? " for each precision" : "");
  for (const std::string& precision : options.precisions) {
    begin_part("products and attention of " + precision);
    disturbed[2] =
        std::max(disturbed[2], add_products(c, mesh, device, log, precision, options.brief));
    add_attention(c, mesh, device, precision, options.brief);
    begin_part("steps of small models in " + precision + ", on each rank alone");
    add_steps(options.families, c, mesh, device, log, precision, options.brief);
  }
  // Ranks that wait for each other may share cores on purpose, so this is the time before that.
  disturbed[0] = meter.waited();
  if (c.ranks > 1) {
    begin_part("messages");
    add_calls(c, mesh, device, options.brief);
    log.info("messages alone are measured; now messages behind products");
    add_overlaps(c, mesh, device);
    begin_part("steps of small models on all ranks");
    add_waits(options.families, c, device, log, options.brief);
  }
  log.info("calibrated in {}", format_duration(now_seconds() - began));
  disturbed[1] = meter.stolen();
  mesh.world().all_reduce(disturbed, 3, DType::f64, ReduceOp::max);
  c.noise = noise_text(disturbed[0], disturbed[1], disturbed[2]);
  c.provenance = bench_provenance(mesh, device, "", {});
  if (c.provenance.empty()) c.provenance = "{}";
  return c;
}

namespace {

/// "12.3 GB/s". A fit that attributes no time to a quantity says nothing about its rate.
std::string rate_or_none(double seconds_each, const char* unit, const char* quantity) {
  return seconds_each > 0 ? fmt::format("{:.1f} {}", 1e-9 / seconds_each, unit)
                          : fmt::format("{} not measured", quantity);
}

}  // namespace

std::string to_string(const Calibration& c) {
  std::string text = fmt::format("calibration of {}: {}\n", c.name, c.description);
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16})
    text += rate_of(c, dtype);
  for (const StreamTimes& s : c.streams)
    text += fmt::format(
        "  {}: products among other ops take {:.2f} x as long; other ops {}, {}; error of the fit "
        "to whole steps {:.1f} %{}\n",
        s.precision, s.product_factor, rate_or_none(s.per_byte, "GB/s", "bandwidth"),
        rate_or_none(s.per_flop, "GFLOP/s", "arithmetic"), 100 * s.fit_error,
        waits_of(c, s.precision));
  for (const UpdateTime& u : c.updates)
    text += fmt::format("  update {}: {} in {:.2f} ms\n", u.precision, format_bytes(u.bytes),
                        1e3 * u.seconds);
  for (const bool across : {false, true})
    for (const bool window : {true, false}) text += calls_of(c, across, window);
  for (const Overlap& o : c.overlaps)
    text += fmt::format(
        "  {}, a call behind products: {}\n", o.across ? "between nodes" : "in a node",
        o.hidden > 0 ? fmt::format("{:.0f} % hidden", 100 * o.hidden)
                     : std::string("nothing hidden; together they are slower than in turn"));
  if (!c.noise.empty())
    text += wrap("NOISY: " + c.noise +
                     ". Predictions from this file can be wrong by as much. Stop the other work "
                     "(`top` shows it), or use a node of your own, and calibrate again.",
                 100, 2);
  return text;
}

}  // namespace choir
