// The shortage of CPU cores, and the diagnosis of a run.

#include "src/train/loop/diagnosis.hpp"

#include <fmt/core.h>
#include <omp.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>

#include "src/core/process.hpp"
#include "src/core/quantities.hpp"
#include "src/core/text.hpp"
#include "src/train/loop/run_watch.hpp"

namespace choir {
namespace {

/// The second number of a thread's schedstat: nanoseconds on a run queue without running.
double seconds_in_queue(const std::string& path) {
  std::ifstream file(path);
  double running = 0, waiting = 0;
  return file >> running >> waiting ? waiting * 1e-9 : 0;
}

/// The eighth number of a core's line: ticks that a hypervisor gave to others. Returns the mean
/// over the cores of this process.
double stolen_seconds(const char* path) {
  const cpu_set_t own = own_cores();
  std::ifstream file(path);
  double ticks = 0;
  int cores = 0;
  for (std::string line; std::getline(file, line) && line.starts_with("cpu");) {
    std::istringstream words(line.substr(3));
    int core = 0;
    if (line[3] == ' ' || !(words >> core) || core >= CPU_SETSIZE || !CPU_ISSET(core, &own))
      continue;
    double value = 0;
    for (int i = 0; i < 8; ++i)
      if (!(words >> value)) value = 0;
    ticks += value, ++cores;
  }
  return cores > 0 ? ticks / cores / static_cast<double>(sysconf(_SC_CLK_TCK)) : 0;
}

}  // namespace

double CoreShortage::share() const {
  return seconds > 0 ? std::clamp((waiting + stolen) / seconds, 0.0, 1.0) : 0;
}

CoreWatch::CoreWatch(std::vector<int> threads, const char* tasks, const char* cores)
    : threads_(std::move(threads)), tasks_(tasks), cores_(cores), before_(read()) {}

CoreWatch::Account CoreWatch::read() const {
  Account now{
      .time = now_seconds(), .stolen = stolen_seconds(cores_), .switches = 0, .waiting = {}};
  rusage usage{};
  if (getrusage(RUSAGE_SELF, &usage) == 0) now.switches = static_cast<double>(usage.ru_nivcsw);
  for (const int thread : threads_)
    now.waiting.push_back(seconds_in_queue(fmt::format("{}/{}/schedstat", tasks_, thread)));
  return now;
}

CoreShortage CoreWatch::look() {
  Account now = read();
  CoreShortage found{.seconds = now.time - before_.time,
                     .waiting = 0,
                     .stolen = std::max(0.0, now.stolen - before_.stolen),
                     .switches = now.switches - before_.switches};
  for (std::size_t i = 0; i < now.waiting.size(); ++i)
    found.waiting = std::max(found.waiting, now.waiting[i] - before_.waiting[i]);
  before_ = std::move(now);
  return found;
}

std::vector<int> computing_threads() {
  std::vector<int> threads(static_cast<std::size_t>(omp_get_max_threads()), gettid());
#pragma omp parallel num_threads(static_cast <int>(threads.size()))
  threads[static_cast<std::size_t>(omp_get_thread_num())] = gettid();
  return threads;
}

namespace {

constexpr double kSlowData = 0.15;     // of a step
constexpr double kSlowNetwork = 0.25;  // of a step
constexpr double kSlowBetween = 0.15;  // of the wall time
constexpr double kWorthNaming = 0.10;  // fraction of a step that a slow rank costs the others

constexpr double kBusyCores = 0.10;  // of the time
// Minimum number of steps, without the first, for a mean of one rank; and the minimum difference of
// two means in standard errors: with ten steps each, chance exceeds it once in 2,000 (Student's t).
constexpr std::int64_t kEnoughSteps = 10;
constexpr double kStandardErrors = 4;

/// The rank that exceeds the median of the others most. Ratio 1: a single rank.
struct SlowestRank {
  std::size_t rank = 0;
  double ratio = 1, excess = 0;
  double errors = 0;  ///< the excess, in standard errors
};

SlowestRank slowest_of(const std::vector<double>& own, const std::vector<double>& deviation,
                       std::int64_t steps) {
  if (own.size() < 2) return {};
  const auto most = std::max_element(own.begin(), own.end());
  const auto rank = static_cast<std::size_t>(most - own.begin());
  std::vector<double> others(own.begin(), most);
  others.insert(others.end(), most + 1, own.end());
  const double median = percentile(std::move(others), 0.5);
  double spread = 0;  // the widest of the others
  for (std::size_t r = 0; r < deviation.size(); ++r)
    if (r != rank) spread = std::max(spread, deviation[r]);
  const double excess = *most - median;
  const double error = std::hypot(spread, deviation.empty() ? 0.0 : deviation[rank]) /
                       std::sqrt(static_cast<double>(std::max<std::int64_t>(1, steps)));
  return {.rank = rank,
          .ratio = median > 0 ? *most / median : 1,
          .excess = excess,
          .errors = error > 0 ? excess / error : std::numeric_limits<double>::infinity()};
}

/// Own times without the time that each rank waited for a core, which other processes cause.
std::vector<double> with_all_cores(const RunTimes& times) {
  std::vector<double> own = times.own;
  for (std::size_t r = 0; r < own.size() && r < times.cores.size(); ++r)
    own[r] *= 1 - times.cores[r].share();
  return own;
}

}  // namespace

std::string busy_cores(const std::vector<CoreShortage>& cores,
                       const std::vector<std::string>& hosts,
                       const std::vector<std::string>& crowded) {
  const auto least = [](const CoreShortage& a, const CoreShortage& b) {
    return a.share() < b.share();
  };
  const auto worst = std::max_element(cores.begin(), cores.end(), least);
  if (worst == cores.end() || worst->share() < kBusyCores) return {};
  constexpr double kNamed = 0.5;  // percent; less is printed as 0
  const auto rank = static_cast<std::size_t>(worst - cores.begin());
  const auto percent = [&](double seconds) { return 100 * seconds / worst->seconds; };
  std::vector<std::string> lost;
  if (percent(worst->waiting) >= kNamed)
    lost.push_back(fmt::format("its threads waited {:.0f} % of the time for a CPU core",
                               percent(worst->waiting)));
  if (percent(worst->stolen) >= kNamed)
    lost.push_back(fmt::format("a hypervisor took {:.0f} % of the time", percent(worst->stolen)));
  // The remedy, behind the colon, is in the log of the start.
  const std::string cause =
      rank < crowded.size() ? crowded[rank].substr(0, crowded[rank].find(':')) : std::string();
  return fmt::format("rank {} (host {}): {}; {}", rank, hosts[rank], join(lost, ", and "),
                     cause.empty() ? "other processes are using this machine" : cause);
}

std::string diagnosis(const RunTimes& times) {
  const double step = times.phases.mean();
  if (step <= 0) return {};
  if (times.phases.steps < kEnoughSteps)
    return fmt::format("{} {} too few to tell what is slow", counted(times.phases.steps, "step"),
                       times.phases.steps == 1 ? "is" : "are");
  const auto share = [&](Phase phase) { return times.phases.mean(phase) / step; };
  const SlowestRank slowest =
      slowest_of(with_all_cores(times), times.deviation, times.phases.steps - 1);
  if (slowest.ratio > RankTimes::kSlow && slowest.excess > kWorthNaming * step &&
      slowest.errors > kStandardErrors)
    return fmt::format(
        "slow rank: rank {} on {} takes {:.2f} times as long as the others ({} more a step, {} of "
        "its time outside forward and backward), and they wait for it",
        slowest.rank, times.hosts[slowest.rank], slowest.ratio, format_duration(slowest.excess),
        format_duration(times.outside[slowest.rank]));
  if (const std::string busy = busy_cores(times.cores, times.hosts, times.crowded); !busy.empty())
    return "busy cores: " + busy;
  if (share(Phase::data) > kSlowData)
    return fmt::format(
        "slow data: a step waits {:.0f} % of its time for data; try data.prefetch, data.reader and "
        "`choir bench reader`",
        100 * share(Phase::data));
  if (share(Phase::comm) > kSlowNetwork)
    return fmt::format(
        "slow network: communication takes {:.0f} % of a step, and no rank is slow ({:.2f} times "
        "the others at most); try more work a step (train.grad_accum) or another layout (`choir "
        "plan`)",
        100 * share(Phase::comm), slowest.ratio);
  if (times.between_steps > kSlowBetween)
    return fmt::format(
        "slow between steps: {:.0f} % of the wall time is neither steps nor evaluations nor saves",
        100 * times.between_steps);
  return fmt::format(
      "kernels: forward and backward take {:.0f} % of a step; nothing else stands out",
      100 * (share(Phase::forward) + share(Phase::backward)));
}

}  // namespace choir
