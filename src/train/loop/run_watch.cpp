// The own times of ranks, and the monitoring of a training run.

#include "src/train/loop/run_watch.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <thread>

#include "choir/comm/flight_log.hpp"
#include "src/comm/agreement.hpp"
#include "src/comm/mpi/mpi_session.hpp"
#include "src/comm/watch/flight_report.hpp"
#include "src/core/process.hpp"
#include "src/run/stop_request.hpp"
#include "src/store/directory.hpp"
#include "src/train/loop/weight_check.hpp"

namespace choir {

void RankTimes::begin() {
  inside_ = seconds_in_communication();
}

void RankTimes::span(Phase ended, double start, double end) {
  const double inside = seconds_in_communication();
  const double own = std::max(0.0, end - start - (inside - inside_));
  inside_ = inside;
  // Readers agree on every block of data, so a rank that waits for data may wait for a slow rank.
  if (ended == Phase::comm || ended == Phase::data) return;
  step_.all += own;
  if (ended != Phase::forward && ended != Phase::backward) step_.outside += own;
}

void RankTimes::end_step() {
  now_.all += step_.all, now_.outside += step_.outside;
  if (all_steps_ == 0) {
    first_ = step_;
  } else {
    rest_.all += step_.all, rest_.outside += step_.outside;
    squares_ += step_.all * step_.all;
  }
  step_ = {};
  ++steps_;
  ++all_steps_;
}

RankTimes::Own RankTimes::whole_run() const {
  if (all_steps_ < 2) return {first_.all, first_.outside, 0};
  const auto steps = static_cast<double>(all_steps_ - 1);
  const double mean = rest_.all / steps;
  const double variance = steps > 1 ? (squares_ - steps * mean * mean) / (steps - 1) : 0;
  return {mean, rest_.outside / steps, std::sqrt(std::max(0.0, variance))};
}

double percentile(std::vector<double> values, double part) {
  std::sort(values.begin(), values.end());
  const double at = part * static_cast<double>(values.size() - 1);
  const auto low = static_cast<std::size_t>(at);
  const std::size_t high = std::min(low + 1, values.size() - 1);
  return std::lerp(values[low], values[high], at - static_cast<double>(low));
}

RankTimesReport RankTimes::report(Mesh& mesh) {
  Communicator& world = mesh.world();
  all_.assign(static_cast<std::size_t>(world.size()), 0);
  const auto steps = static_cast<double>(std::max<std::int64_t>(1, steps_));
  std::vector<double> outside(all_.size());
  const auto here = static_cast<std::size_t>(world.rank());
  all_[here] = now_.all / steps;
  outside[here] = now_.outside / steps;
  world.all_gather(all_.data(), 1, DType::f64);
  world.all_gather(outside.data(), 1, DType::f64);
  const auto most = std::max_element(all_.begin(), all_.end());
  RankTimesReport report{.steps = steps_,
                         .p10 = percentile(all_, 0.1),
                         .p50 = percentile(all_, 0.5),
                         .p90 = percentile(all_, 0.9),
                         .slowest = *most,
                         .outside = outside[static_cast<std::size_t>(most - all_.begin())],
                         .slowest_rank = static_cast<int>(most - all_.begin())};
  report.slowest_host = host_name();
  broadcast_text(world, report.slowest_host, report.slowest_rank);
  const bool slow = report.slowest > kSlow * report.p50;
  in_a_row_ = !slow ? 0 : suspect_ == report.slowest_rank ? in_a_row_ + 1 : 1;
  suspect_ = slow ? report.slowest_rank : -1;
  report.steady = in_a_row_ >= kSteady;
  now_ = {};
  steps_ = 0;
  return report;
}

std::string to_string(const RankTimesReport& r) {
  return fmt::format(
      "computing time of the ranks in a step, without waiting for others (mean of {} steps): "
      "lowest "
      "tenth {}, median {}, highest tenth {}; slowest: rank {} on {} with {}, {:.2f} times the "
      "median; {} of these are neither forward nor backward",
      r.steps, format_duration(r.p10), format_duration(r.p50), format_duration(r.p90),
      r.slowest_rank, r.slowest_host, format_duration(r.slowest),
      r.p50 > 0 ? r.slowest / r.p50 : 1.0, format_duration(r.outside));
}

std::string to_json(const RankTimesReport& r, std::int64_t step) {
  return fmt::format(
      "{{\"step\":{},\"compute\":{{\"steps\":{},\"p10\":{:.6g},\"p50\":{:.6g},\"p90\":{:.6g},"
      "\"slowest\":{:.6g},\"outside\":{:.6g},\"slowest_rank\":{},\"slowest_host\":\"{}\","
      "\"steadily_slow\":{}}}}}",
      step, r.steps, r.p10, r.p50, r.p90, r.slowest, r.outside, r.slowest_rank, r.slowest_host,
      r.steady);
}

namespace {

std::string flight_directory(const std::string& run_directory) {
  return run_directory + "/flight";
}

std::shared_ptr<const FlightExchange> exchange_with_others(Mesh& mesh, const HeartbeatBoard& board,
                                                           const std::string& run_directory) {
  if (board.sees_all(mesh.world().size())) return nullptr;  // on every rank or on none
  return std::make_shared<FlightExchange>(mesh.world(), board.leader(),
                                          flight_directory(run_directory));
}

/// "step 4: forward" as "forward of step 4", other phases as `phase "evaluation"`.
std::string place_in_run(const std::string& phase) {
  const std::size_t colon = phase.find(": ");
  if (!phase.starts_with("step ") || colon == std::string::npos)
    return fmt::format("phase \"{}\"", phase);
  return fmt::format("{} of {}", phase.substr(colon + 2), phase.substr(0, colon));
}

/// "rank 1 hangs in forward of step 4", from the sentence about the rank that is behind or keeps
/// the others waiting: `rank 1 is behind, in phase "step 4: forward"`. "" if there is no such rank.
std::string headline(const std::string& sentence) {
  const std::string first = sentence.substr(0, sentence.find("; rank "));
  constexpr std::string_view kPhase = "in phase \"";
  const std::size_t phase = first.rfind(kPhase);
  if (!first.starts_with("rank ") || phase == std::string::npos) return {};
  const std::string rank = first.substr(0, first.find(' ', 5));
  std::string where = first.substr(phase + kPhase.size());
  return fmt::format("{} hangs in {}", rank, place_in_run(where.substr(0, where.find('"'))));
}

/// "rank 1 (process 570) died in forward of step 4", from `rank 1 (process 570) has died, in phase
/// "step 4: forward"`. "" if no rank died.
std::string obituary(const std::string& report) {
  constexpr std::string_view kDied = " has died, in phase \"";
  const std::size_t died = report.find(kDied);
  const std::size_t rank = report.rfind("rank ", died);
  if (died == std::string::npos || rank == std::string::npos) return {};
  const std::size_t phase = died + kDied.size();
  return fmt::format("{} died in {}", report.substr(rank, died - rank),
                     place_in_run(report.substr(phase, report.find('"', phase) - phase)));
}

/// How the run continues after it was ended: by its newest checkpoint.
std::string continuation(const std::string& run_directory) {
  std::error_code failed;
  const std::filesystem::path newest =
      std::filesystem::read_symlink(run_directory + "/checkpoints/latest", failed);
  const std::int64_t step = failed ? -1 : step_of(newest.filename().string());
  return step < 0 ? "the same command starts the run again, because it has no checkpoint yet"
                  : fmt::format("the same command continues from step {}", step);
}

/// The report of a node on which nobody else has reported yet, with a first line for people and
/// what to do. Other ranks of the node know the same: they give the first one time to end the job,
/// and return nothing.
std::string report_of_node(HeartbeatBoard& board, const std::string& run_directory,
                           const std::string& report) {
  if (!board.first_to_report()) {
    std::this_thread::sleep_for(std::chrono::seconds(2));
    return {};
  }
  // Behind the rank that found it, the report names the rank that is behind or keeps others
  // waiting.
  const std::size_t names = report.find("; rank ");
  std::string first = obituary(report);
  if (first.empty() && names != std::string::npos) first = headline(report.substr(names + 2));
  if (first.empty()) return report;
  constexpr std::string_view kName = "choir: watchdog: ";
  const std::string details = report.starts_with(kName) ? report.substr(kName.size()) : report;
  return fmt::format("{}{}; {}\n  {}", kName, first, continuation(run_directory), details);
}

/// Writes the first line of the report to the log as the end of the run, unless another rank has
/// done so, and ends the job.
void end_hanging_run(const std::string& log, const std::string& report) {
  std::string line = report.substr(0, report.find('\n'));
  if (const std::size_t name = line.find("watchdog: "); name != std::string::npos)
    line = line.substr(name);
  const std::string end = "ended with exit code 5: " + line;
  try {
    std::ifstream written(log, std::ios::binary);
    std::string last = written ? "" : end;  // there is no log yet
    for (std::string each; std::getline(written, each);) last = each;
    if (last.find("ended with exit code 5") == std::string::npos) {
      Logger file(false);
      file.to_file(log);
      file.error("{}", end);
    }
  } catch (const std::exception&) {  // the report itself matters more
  }
  report_and_abort(report);
}

WatchSection with_usual(WatchSection deck, double usual) {
  for (double* seconds : {&deck.start, &deck.first_step, &deck.save, &deck.evaluation})
    if (*seconds <= 0) *seconds = usual;
  return deck;
}

}  // namespace

RunWatch::RunWatch(const Deck& deck, Mesh& mesh, const std::string& run_directory)
    : deck_(with_usual(deck.watch, deck.parallel.timeout)),
      usual_(deck.parallel.timeout),
      board_(mesh.node(), mesh.rank()),
      dog_({.timeout_seconds = usual_,
            .rank = mesh.rank(),
            .checks_health = true,
            .host = host_name(),
            .on_timeout =
                [run_directory, alone = board_.sees_all(mesh.world().size()),
                 this](const std::string& report) {
                  const std::string text =
                      alone ? report_of_node(board_, run_directory, report) : report;
                  if (text.empty()) MpiSession::abort(ExitCode::communication);
                  end_hanging_run(run_directory + "/log.txt", text);
                },
            .board = &board_,
            .directory = flight_directory(run_directory),
            .still_seconds = mesh.rank() == 0 ? deck.watch.still : 0,
            .on_line = {},
            .exchange = exchange_with_others(mesh, board_, run_directory)}),
      rehearsal_(rehearsal_of(mesh.world())) {
  dog_.allow(deck_.first_step);
  StopRequest::silence_when(&board_.reported());
}

RunWatch::~RunWatch() {
  StopRequest::silence_when(nullptr);
}

void RunWatch::step(std::string_view doing, std::int64_t begun) {
  rehearse("step");
  if (first_step_ && begun > 0) {
    first_step_ = false;
    dog_.allow(usual_);
  }
  dog_.beat(doing);
}

void RunWatch::after_step(Engine& engine, std::int64_t step) {
  if (!weights_due(step)) return;
  dog_.beat("comparing weights");
  check_weights(engine, step);
}

namespace {

/// A rank above kUneven times the median is logged; metrics.jsonl has the times of every report.
constexpr double kUneven = 1.3;

void log_uneven_ranks(const RankTimesReport& report, Logger& log) {
  if (!log.on_terminal()) return log.info("{}", to_string(report));
  const std::string clock = timestamp().substr(std::string_view("2026-11-29 ").size());
  log.two_forms(to_string(report),
                fmt::format("{} computing time of the ranks in a step: median {}; slowest: rank {} "
                            "on {} with {}, {:.2f} times the median",
                            clock, format_duration(report.p50), report.slowest_rank,
                            report.slowest_host, format_duration(report.slowest),
                            report.p50 > 0 ? report.slowest / report.p50 : 1.0));
}

}  // namespace

void RunWatch::report_ranks(Mesh& mesh, std::int64_t step, Logger& log, MetricsFile& metrics) {
  if (deck_.ranks == 0 || times_.steps() < deck_.ranks || mesh.world().size() == 1) return;
  const RankTimesReport report = times_.report(mesh);
  if (mesh.rank() != 0) return;
  if (report.steady)
    log.warn("{}; steadily slow: check that node's clock, temperature, memory and other jobs",
             to_string(report));
  else if (report.slowest > kUneven * report.p50)
    log_uneven_ranks(report, log);
  metrics.write(to_json(report, step));  // the log line of the step reports a full disk
}

}  // namespace choir
