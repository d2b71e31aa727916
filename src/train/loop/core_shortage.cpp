#include "choir/train/loop/core_shortage.hpp"

#include <fmt/core.h>
#include <omp.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>

#include "choir/core/clock.hpp"
#include "choir/core/cores.hpp"

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

}  // namespace choir
