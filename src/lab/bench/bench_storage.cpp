// The bench of saves, and the reports of `choir bench checkpoint` and `choir bench reader` in the
// columns of IOR.

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "src/comm/agreement.hpp"
#include "src/core/json_value.hpp"
#include "src/core/quantities.hpp"
#include "src/core/stats.hpp"
#include "src/device/cuda.hpp"
#include "src/lab/bench/bench_batches.hpp"
#include "src/lab/bench/bench_report.hpp"
#include "src/lab/bench/bench_step.hpp"
#include "src/run/run_setup.hpp"
#include "src/train/loop/checkpointer.hpp"
#include "src/train/loop/save_schedule.hpp"
#include "src/train/loop/weight_check.hpp"
#include "src/train/step/step_planner.hpp"

namespace choir {
namespace {

constexpr int kSteps = 5;                        // timed, after kWarmupSteps others
constexpr std::int64_t kTensorBytes = 64 << 20;  // of states without a deck
constexpr std::int64_t kWidth = sizeof(float);

/// The state of a deck in an engine, as in training.
class DeckState {
 public:
  DeckState(Deck deck, Mesh& mesh, Device& device, Logger& log)
      : deck_(std::move(deck)), mesh_(mesh), device_(device) {
    together(mesh_.world(), [&] {
      batch_ = resolve_batch(deck_, mesh_.along(Axis::data).size());
      const ModelFamily& family = deck_.family();
      if (family.vocab_size(deck_) == 0) family.vocab_size(deck_) = family.usual_vocab_size();
    });
    data_ = deck_.family().bench_batches(deck_, batch_, mesh_, log, {});
    EngineOptions options;
    StepPlan plan;
    together(mesh_.world(), [&] {
      resolve_vocabulary(deck_, data_->vocab_size(), "the training data");
      options = engine_options(deck_, batch_);
      options.shapes = data_->shapes();
      plan = plan_step(options, mesh_.layout(), mesh_.rank(), mesh_.node().size(), false, &device_);
      if (mesh_.uses_nccl())
        add_nccl(plan, mesh_, mesh_.device_transport(), *cuda::card_of(device_));
      add_snapshot(plan.memory, plan);
      require_memory(plan, mesh_.node().size(), device_);
    });
    options.arena_requests = plan.arena_requests;
    data_->start(Sharding(mesh_, options.zero));
    engine_ = std::make_unique<Engine>(options, device_, mesh_, plan.arena_bytes);
    engine_->instance().initialise(options.seed);
  }

  /// Runs one step. Collective. `wait`, which may be empty, is called before the update.
  void step(const std::function<void()>& wait = {}) {
    if (wait) engine_->before_update([&wait](const Stream&) { wait(); });
    engine_->step(
        step_, [&](std::int64_t j) { return data_->micro_batch(step_, j); }, data_->targets(step_),
        clock_);
    engine_->finish(clock_);
    ++step_;
  }
  /// Returns the median time of the slowest rank. Collective.
  double measure_step() {
    std::vector<double> seconds;
    for (int i = 0; i < kWarmupSteps + kSteps; ++i) {
      mesh_.world().barrier();
      const double start = now_seconds();
      step();
      double slowest = now_seconds() - start;
      mesh_.world().all_reduce(&slowest, 1, DType::f64, ReduceOp::max);
      if (i >= kWarmupSteps) seconds.push_back(slowest);
    }
    return median_of(seconds);
  }

  CheckpointBenchCase bench_case() {
    return {.saved = tensors_to_save(*engine_, progress_),
            .held = tensors_to_load(*engine_, progress_),
            .device = &device_,
            // The same check as in Checkpointer::save().
            .check =
                [this] {
                  if (reads_weights_aside(*engine_)) return weight_check_of_save(*engine_);
                  check_weights(*engine_, step_);
                  return SaveCheck{};
                },
            .meanwhile = [this](const std::function<void()>& wait) { step(wait); },
            .folder = ""};
  }

 private:
  Deck deck_;
  Mesh& mesh_;
  Device& device_;
  BatchSizes batch_;
  std::unique_ptr<BenchBatches> data_;
  std::unique_ptr<Engine> engine_;
  Progress progress_;
  PhaseClock clock_;
  std::int64_t step_ = 0;
};

/// Tensors of one size, each divided into one piece per rank.
std::vector<StoredTensor> cut_evenly(std::int64_t bytes, const Communicator& world,
                                     const Buffer& memory, Device& device) {
  std::vector<StoredTensor> tensors;
  auto* at = static_cast<std::byte*>(memory.data());
  for (std::int64_t left = bytes / kWidth, n = 0; left > 0; left -= n) {
    n = std::min(left, kTensorBytes / kWidth);
    const std::int64_t first = n * world.rank() / world.size();
    const std::int64_t count = n * (world.rank() + 1) / world.size() - first;
    tensors.push_back({.name = fmt::format("state/{:06}", tensors.size()),
                       .dtype = DType::f32,
                       .shape = {n},
                       .pieces = {{first, count, at}},
                       .device = &device});
    at += count * kWidth;
  }
  return tensors;
}

void require_host_memory(std::int64_t bytes, Mesh& mesh) {
  // The state and its copy.
  const double wants = 2.0 * static_cast<double>(bytes) / mesh.world().size() * mesh.node().size();
  together(mesh.world(), [&] {
    if (wants > node_memory())
      throw DeckError(
          fmt::format("--bytes {}: {} rank(s) on this node need {} of memory; the node has {}",
                      bytes, mesh.node().size(), format_bytes(wants), format_bytes(node_memory())),
          "use fewer bytes or more nodes");
  });
}

SaveBench measured(Mesh& mesh, CheckpointBenchCase request, const SaveBenchOptions& options,
                   double step_seconds) {
  request.folder = options.folder;
  request.rounds = options.rounds;
  request.transfer_bytes = options.transfer_bytes;
  return {bench_checkpoint(mesh.world(), request), step_seconds};
}

}  // namespace

SaveBench bench_save(Deck deck, Mesh& mesh, Device& device, Logger& log,
                     const SaveBenchOptions& options) {
  DeckState state(std::move(deck), mesh, device, log);
  const double step = options.step_seconds > 0 ? options.step_seconds : state.measure_step();
  return measured(mesh, state.bench_case(), options, step);
}

SaveBench bench_save(std::int64_t bytes, Mesh& mesh, Device& device,
                     const SaveBenchOptions& options) {
  require_host_memory(bytes, mesh);
  const Communicator& world = mesh.world();
  const std::int64_t tensors = (bytes + kTensorBytes - 1) / kTensorBytes;
  Buffer memory;
  together(mesh.world(), [&] {
    memory = Buffer(device, static_cast<std::size_t>(bytes / world.size() + tensors * kWidth));
  });
  const std::vector<StoredTensor> pieces = cut_evenly(bytes, world, memory, device);
  return measured(mesh,
                  {.saved = pieces,
                   .held = pieces,
                   .device = &device,
                   .check = {},
                   .meanwhile = {},
                   .folder = ""},
                  options, options.step_seconds);
}

namespace {

constexpr double kKiB = 1 << 10, kMiB = 1 << 20;
constexpr double kStallShare = 0.05, kOfPlain = 0.8;

/// Returns highest, lowest, mean and standard deviation as columns.
std::string spread_text(const std::vector<double>& rates) {
  double low = 1e300, high = 0, sum = 0, squares = 0;
  for (const double rate : rates) {
    low = std::min(low, rate), high = std::max(high, rate), sum += rate;
  }
  const auto n = static_cast<double>(rates.size());
  for (const double rate : rates) squares += std::pow(rate - sum / n, 2);
  return fmt::format("{:>11.2f} {:>11.2f} {:>11.2f} {:>11.2f}", high, low, sum / n,
                     std::sqrt(squares / n));
}

double bandwidth(const CheckpointReport& report, double seconds) {
  return static_cast<double>(report.run.access.bytes) / kMiB / seconds;
}

CheckpointBar bar(const std::string& name, const std::string& text, std::vector<double> values,
                  double limit, bool at_least) {
  CheckpointBar made{.name = name, .text = text, .limit = limit, .at_least = at_least};
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  made.low = *low, made.high = *high;
  made.value = median_of(std::move(values));
  return made;
}

/// The block and transfer size columns describe a plain access; the other accesses move the same
/// bytes in pieces of other sizes.
std::string row_text(const CheckpointReport& report, const AccessSpeed& row,
                     const AccessRound& round, std::size_t i) {
  const CheckpointBench& bench = report.run.access;
  return fmt::format(
      "  {:<8} {:>11.2f} {:>11.0f} {:>10.0f} {:>9.4f} {:>9.4f} {:>9.4f} {:>9.4f} {:>9.4f} {:>4}\n",
      row.access, bandwidth(report, round.total), static_cast<double>(bench.most_of_a_rank) / kKiB,
      static_cast<double>(bench.transfer_bytes) / kKiB, round.open, round.transfer, round.sync,
      round.close, round.total, i);
}

std::string summary(const CheckpointReport& report, const AccessSpeed& row) {
  std::vector<double> rates;
  for (const AccessRound& round : row.rounds) rates.push_back(bandwidth(report, round.total));
  return fmt::format("  {:<8} {} {:>10.4f}\n", row.access, spread_text(rates), row.seconds());
}

std::string summary(const ReaderReport& report, const ReaderSpeed& r) {
  std::vector<double> rates;
  for (const double s : r.rounds) rates.push_back(static_cast<double>(report.bytes) / kMiB / s);
  return fmt::format("  {:<12} {} {:>10.4f} {:>8.0f} %\n", r.reader, spread_text(rates), r.seconds,
                     100 * r.ratio);
}

std::string bar_text(const CheckpointBar& bar) {
  if (!bar.judged)
    return fmt::format("# bar: {}: not judged (needs a deck or --step-seconds)\n", bar.text);
  return fmt::format("# bar: {}: {:.1f} % ({:.1f} to {:.1f}), limit: {} {:.0f} %: {}\n", bar.text,
                     100 * bar.value, 100 * bar.low, 100 * bar.high,
                     bar.at_least ? "at least" : "under", 100 * bar.limit,
                     bar.met() ? "met" : "NOT met");
}

std::int64_t wrong_of(const CheckpointBench& bench) {
  std::int64_t wrong = 0;
  for (const AccessSpeed& row : bench.rows) wrong += row.wrong;
  return wrong;
}

std::string heading(const CheckpointReport& report) {
  const CheckpointBench& bench = report.run.access;
  return fmt::format("# {}: {} in {}, {}{}, at most {} per rank, on {}, written to {}\n",
                     report.what, format_bytes(static_cast<double>(bench.bytes)),
                     counted(bench.tensors, "tensor"), counted(bench.ranks, "rank"),
                     report.layout.empty() ? "" : " (" + report.layout + ")",
                     format_bytes(static_cast<double>(bench.most_of_a_rank)), report.device,
                     report.folder) +
         "# write, read: plain access to disjoint parts of one file; save, load: with layout, "
         "checksums and manifest; async: save by a thread (a deck keeps training)\n# stall: time "
         "that training waits at the start of an async save (open) and for the copy before the "
         "first update (wr/rd). Times are those of the slowest rank; every write includes its "
         "fsync.\n" +
         fmt::format(
             "# reads: after fsync the system was asked to forget the file; {:.0f} % of it was "
             "still in this node's memory;\n# caching by the storage itself is unknown. A load "
             "reads the file twice: open(s) is the verification, wr/rd(s) the second read.\n",
             100 * bench.cached);
}

}  // namespace

std::vector<CheckpointBar> bars_of(const SaveBench& run) {
  const CheckpointBench& bench = run.access;
  std::vector<double> of_step;
  for (const AccessRound& round : bench.row("stall").rounds)
    of_step.push_back(run.step_seconds > 0 ? round.total / run.step_seconds : 0);
  std::vector<CheckpointBar> bars{
      bar("stall of total", "stall of an asynchronous save, share of its whole time",
          bench.ratios("stall", "async"), kStallShare, false),
      bar("stall of step",
          run.step_seconds > 0 ? fmt::format("stall of an asynchronous save, share of a step of {}",
                                             format_duration(run.step_seconds))
                               : "stall of an asynchronous save, share of a step",
          of_step, 1, false),
      bar("save of write", "write rate of a save, relative to a plain write",
          bench.ratios("write", "save"), kOfPlain, true)};
  bars[1].judged = run.step_seconds > 0;
  return bars;
}

std::string to_string(const CheckpointReport& report) {
  const CheckpointBench& bench = report.run.access;
  std::string text = heading(report);
  text += fmt::format("# {:<8} {:>11} {:>11} {:>10} {:>9} {:>9} {:>9} {:>9} {:>9} {:>4}\n",
                      "access", "bw(MiB/s)", "block(KiB)", "xfer(KiB)", "open(s)", "wr/rd(s)",
                      "fsync(s)", "close(s)", "total(s)", "iter");
  for (const AccessSpeed& row : bench.rows)
    for (std::size_t i = 0; i < row.rounds.size(); ++i)
      text += row_text(report, row, row.rounds[i], i);
  text += fmt::format("# {:<8} {:>11} {:>11} {:>11} {:>11} {:>10}\n", "access", "Max(MiB)",
                      "Min(MiB)", "Mean(MiB)", "StdDev", "median(s)");
  for (const AccessSpeed& row : bench.rows) text += summary(report, row);
  text += fmt::format("# lower bound of the stall: copying {} at {:.1f} GB/s takes {}\n",
                      format_bytes(static_cast<double>(bench.most_of_a_rank)),
                      bench.copy_rate / 1e9, format_duration(bench.stall_floor()));
  if (!bench.steps.empty())
    text +=
        fmt::format("# steps while a save is in flight: {} (median of {}), alone {}\n",
                    format_duration(median_of(bench.steps)), bench.steps.size(),
                    format_duration(report.run.step_seconds)) +
        fmt::format(
            "# the first of these steps, beside the copy and without its wait: {} (median of {})\n",
            format_duration(median_of(bench.first_steps)), bench.first_steps.size());
  for (const CheckpointBar& bar : bars_of(report.run)) text += bar_text(bar);
  return text + fmt::format("{}: {} accesses, {} wrong elements\n",
                            bench.valid() ? "VALID" : "INVALID", bench.rows.size(),
                            wrong_of(bench));
}

std::string to_csv(const CheckpointReport& report) {
  const CheckpointBench& bench = report.run.access;
  std::string text =
      "access,bw_mib_s,block_kib,xfer_kib,open_s,wr_rd_s,fsync_s,close_s,total_s,iter,wrong\n";
  for (const AccessSpeed& row : bench.rows)
    for (std::size_t i = 0; i < row.rounds.size(); ++i) {
      const AccessRound& r = row.rounds[i];
      text += fmt::format("{},{:.2f},{:.0f},{:.0f},{:.6f},{:.6f},{:.6f},{:.6f},{:.6f},{},{}\n",
                          row.access, bandwidth(report, r.total),
                          static_cast<double>(bench.most_of_a_rank) / kKiB,
                          static_cast<double>(bench.transfer_bytes) / kKiB, r.open, r.transfer,
                          r.sync, r.close, r.total, i, row.wrong);
    }
  return text;
}

std::string to_json(const CheckpointReport& report) {
  const CheckpointBench& bench = report.run.access;
  nlohmann::ordered_json json{{"bench", "checkpoint"},
                              {"valid", bench.valid()},
                              {"what", report.what},
                              {"layout", report.layout},
                              {"device", report.device},
                              {"folder", report.folder},
                              {"ranks", bench.ranks},
                              {"bytes", bench.bytes},
                              {"most_bytes_of_a_rank", bench.most_of_a_rank},
                              {"tensors", bench.tensors},
                              {"transfer_bytes", bench.transfer_bytes},
                              {"cached_share", bench.cached},
                              {"copy_bytes_per_second", bench.copy_rate},
                              {"stall_floor_seconds", bench.stall_floor()},
                              {"step_seconds", report.run.step_seconds},
                              {"step_seconds_meanwhile", median_of(bench.steps)}};
  json["rows"] = nlohmann::ordered_json::array();
  for (const AccessSpeed& row : bench.rows) {
    nlohmann::ordered_json one{{"access", row.access},
                               {"ranks", bench.ranks},
                               {"bytes", bench.bytes},
                               {"seconds", row.seconds()},
                               {"mib_per_s", bandwidth(report, row.seconds())},
                               {"wrong", row.wrong}};
    for (const AccessRound& r : row.rounds) {
      one["open"].push_back(r.open);
      one["transfer"].push_back(r.transfer);
      one["fsync"].push_back(r.sync);
      one["close"].push_back(r.close);
      one["total"].push_back(r.total);
    }
    json["rows"].push_back(one);
  }
  json["bars"] = nlohmann::ordered_json::array();
  for (const CheckpointBar& bar : bars_of(report.run))
    json["bars"].push_back({{"name", bar.name},
                            {"value", bar.value},
                            {"low", bar.low},
                            {"high", bar.high},
                            {"limit", bar.limit},
                            {"judged", bar.judged},
                            {"met", bar.judged && bar.met()}});
  json["provenance"] = parsed_ordered_json(report.provenance);
  return dumped(json) + "\n";
}

std::int64_t ReaderReport::wrong() const {
  std::int64_t sum = 0;
  for (const ReaderSpeed& row : rows) sum += row.wrong;
  return sum;
}

std::string to_json(const ReaderReport& report) {
  nlohmann::ordered_json json{
      {"bench", "reader"}, {"valid", report.valid()}, {"folder", report.folder}};
  json["rows"] = nlohmann::ordered_json::array();
  for (const ReaderSpeed& r : report.rows)
    json["rows"].push_back({{"reader", r.reader},
                            {"ranks", report.ranks},
                            {"bytes", report.bytes},
                            {"block_bytes", r.block_bytes},
                            {"seconds", r.seconds},
                            {"rounds", r.rounds},
                            {"gb_per_s", r.gb_per_s},
                            {"ratio", r.ratio},
                            {"wrong", r.wrong}});
  json["provenance"] = parsed_ordered_json(report.provenance);
  return dumped(json) + "\n";
}

std::string to_csv(const ReaderReport& report) {
  std::string text =
      "access,bw_mib_s,iops,latency_s,block_kib,xfer_kib,total_s,iter,of_pread,wrong\n";
  for (const ReaderSpeed& r : report.rows)
    for (std::size_t i = 0; i < r.rounds.size(); ++i) {
      const double s = r.rounds[i];
      text += fmt::format("{},{:.2f},{:.2f},{:.6f},{:.0f},{:.0f},{:.6f},{},{:.4f},{}\n", r.reader,
                          static_cast<double>(report.bytes) / kMiB / s,
                          static_cast<double>(r.reads) / s,
                          s * report.ranks / static_cast<double>(r.reads),
                          static_cast<double>(report.bytes) / report.ranks / kKiB,
                          static_cast<double>(r.block_bytes) / kKiB, s, i, r.ratio, r.wrong);
    }
  return text;
}

std::string to_string(const ReaderReport& report) {
  std::string text = fmt::format(
      "# {} in the page cache, {}, each reads its own part of one file; the reads of the previous "
      "round were checked\n# {:<12} {:>11} {:>10} {:>11} {:>11} {:>11} {:>10} {:>5}\n",
      format_bytes(static_cast<double>(report.bytes)), counted(report.ranks, "rank"), "access",
      "bw(MiB/s)", "IOPS", "Latency(s)", "block(KiB)", "xfer(KiB)", "total(s)", "iter");
  for (const ReaderSpeed& r : report.rows)
    for (std::size_t i = 0; i < r.rounds.size(); ++i) {
      const double s = r.rounds[i];
      text += fmt::format(
          "  {:<12} {:>11.2f} {:>10.2f} {:>11.6f} {:>11.0f} {:>11.0f} {:>10.4f} "
          "{:>5}\n",
          r.reader, static_cast<double>(report.bytes) / kMiB / s, static_cast<double>(r.reads) / s,
          s * report.ranks / static_cast<double>(r.reads),
          static_cast<double>(report.bytes) / report.ranks / kKiB,
          static_cast<double>(r.block_bytes) / kKiB, s, i);
    }
  text += fmt::format("# {:<12} {:>11} {:>11} {:>11} {:>11} {:>10} {:>10}\n", "access", "Max(MiB)",
                      "Min(MiB)", "Mean(MiB)", "StdDev", "median(s)", "of pread");
  for (const ReaderSpeed& r : report.rows) text += summary(report, r);
  return text + fmt::format("{}: {}, {} wrong\n", report.valid() ? "VALID" : "INVALID",
                            counted(report.rows.size(), "reader"),
                            counted(report.wrong(), "block"));
}

}  // namespace choir
