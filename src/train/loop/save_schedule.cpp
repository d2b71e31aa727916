// The interval of saves, and the choice between saves in the foreground and in the background.

#include "src/train/loop/save_schedule.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "src/comm/agreement.hpp"
#include "src/comm/mpi/mpi_session.hpp"
#include "src/core/quantities.hpp"

namespace choir {
namespace {

constexpr double kHour = 3600;
constexpr double kNodeHours = 1000, kMostHours = 24;
// A save must end before the next one begins, with a margin for slow ones.
constexpr double kRoom = 2;
// Advice is given only if it gains this fraction of the run, and this factor.
constexpr double kWorth = 0.01, kFactor = 2;
// A busy file system: bytes per second per node, and seconds of an empty save.
constexpr double kSlowRate = 200e6, kSlowStart = 0.1;
constexpr double kEarlyShare = 0.1;  // of the walltime

std::string numbers(const SaveCost& cost, double mtbf) {
  return fmt::format("a save costs {}, a failure comes every {}, a step takes {}",
                     format_duration(cost.stall), format_duration(mtbf),
                     format_duration(cost.step_seconds));
}

}  // namespace

double best_save_interval(double cost, double mtbf) {
  return std::sqrt(2 * cost * mtbf);
}

double lost_share(double interval, double cost, double mtbf) {
  return cost / interval + interval / (2 * mtbf);
}

double assumed_mtbf(const CheckpointSection& section, int nodes) {
  if (section.mtbf > 0) return section.mtbf * kHour;
  return std::min(kNodeHours / std::max(nodes, 1), kMostHours) * kHour;
}

double expected_first_save(double bytes, int nodes, double measured) {
  const double slow = kSlowRate * std::max(nodes, 1);
  return kSlowStart + bytes / (measured > 0 ? std::min(measured, slow) : slow);
}

bool measure_early(double expected, double walltime) {
  return walltime > 0 && expected > kEarlyShare * walltime;
}

std::string short_walltime(double expected, double margin, double walltime) {
  if (walltime <= 0 || kRoom * expected + margin < walltime) return {};
  return fmt::format(
      "run.walltime is {}, and a save is expected to take {}: the state is saved after the first "
      "step, but perhaps not a second time; raise run.walltime, lower run.walltime_margin ({}) or "
      "choose a faster file system for run.dir",
      format_duration(walltime), format_duration(expected), format_duration(margin));
}

SaveSchedule::SaveSchedule(const CheckpointSection& section, int nodes, std::int64_t milestone,
                           std::int64_t last_step)
    : section_(section),
      nodes_(nodes),
      mtbf_(assumed_mtbf(section, nodes)),
      last_step_(last_step),
      milestone_(section.on_the_way() ? milestone : -1) {}

void SaveSchedule::begin(std::int64_t step, bool early) {
  next_ = automatic() ? step + kFirstSteps : -1;
  early_ = early && section_.on_the_way() ? step + 1 : -1;
}

bool SaveSchedule::due(std::int64_t step) const {
  if (step >= 0 && (step == early_ || step == milestone_)) return true;
  if (automatic()) return step == next_;
  return section_.interval > 0 && step % section_.interval == 0;
}

std::string SaveSchedule::saved(std::int64_t step, const SaveCost& cost) {
  if (!(cost.stall > 0 && cost.step_seconds > 0)) return {};
  if (!automatic()) return advice(cost);
  const double best = best_save_interval(cost.stall, mtbf_);
  const double apart = std::max(best, kRoom * cost.whole);
  const double steps = std::ceil(apart / cost.step_seconds);
  next_ = step + std::max<std::int64_t>(1, static_cast<std::int64_t>(std::min(steps, 1e15)));
  return fmt::format(
      "checkpoint.interval auto: {}: best every {}{}, {} steps; the next is step {}",
      numbers(cost, mtbf_), format_duration(best),
      apart > best ? fmt::format(" (but a save takes {})", format_duration(cost.whole)) : "",
      next_ - step, next_);
}

std::string SaveSchedule::advice(const SaveCost& cost) {
  const double now = static_cast<double>(section_.interval) * cost.step_seconds;
  if (advised_ || now <= 0) return {};
  advised_ = true;
  const double best = std::max(best_save_interval(cost.stall, mtbf_), kRoom * cost.whole);
  const double steps = std::ceil(best / cost.step_seconds);
  if (steps > static_cast<double>(last_step_)) return {};
  const double loses = lost_share(now, cost.stall, mtbf_);
  const double least = lost_share(best, cost.stall, mtbf_);
  if (loses < kFactor * least || loses - least < kWorth) return {};
  return fmt::format(
      "advice: saves every {} cost {:.1f} % of the time, with the steps that failures repeat. With "
      "checkpoint.interval={:.0f}, or \"auto\", it is {:.1f} % ({}, {}).",
      section_.interval == 1 ? "step" : counted(section_.interval, "step"), 100 * loses, steps,
      100 * least, numbers(cost, mtbf_),
      section_.mtbf > 0 ? "checkpoint.mtbf" : "assumed for " + counted(nodes_, "node"));
}

bool choose_async(const Deck& deck, const StepPlan& plan, Mesh& mesh, const Device& device,
                  std::string& why) {
  why.clear();
  const CheckpointSection& section = deck.checkpoint;
  if (section.async == AsyncSaves::never || !section.on_the_way()) return false;
  const bool short_of_memory = !snapshot_fits(plan, mesh.node().size(), device);
  const bool no_threads = mesh.world().size() > 1 && !mpi_serves_threads();
  const std::string what =
      no_threads ? "this MPI does not support multiple threads (MPI_THREAD_MULTIPLE)"
      : short_of_memory
          ? fmt::format(
                "{} on this node need {} each for a copy of the state in addition to the "
                "memory of training, but it has {}",
                counted(mesh.node().size(), "rank"),
                format_bytes(static_cast<double>(plan.snapshot_bytes)), format_bytes(node_memory()))
          : "";
  if (section.async == AsyncSaves::always)
    together(mesh.world(), [&] {
      if (!what.empty())
        throw DeckError("checkpoint.async: " + what,
                        "set checkpoint.async to \"auto\" or false, spread the state over more "
                        "ranks (parallel.zero), or use fewer ranks per node");
    });
  std::int64_t without = what.empty() ? 0 : 1;
  mesh.world().all_reduce(&without, 1, DType::i64, ReduceOp::sum);
  if (without > 0)
    why = "checkpoint.async: training waits for saves, because " +
          (what.empty() ? counted(without, "other rank") + (without == 1 ? " has to" : " have to")
                        : what);
  return without == 0;
}

void add_snapshot(MemoryPlan& memory, const StepPlan& plan) {
  memory.add("checkpoint snapshot", plan.snapshot_bytes, false, MemoryPlace::host);
}

}  // namespace choir
