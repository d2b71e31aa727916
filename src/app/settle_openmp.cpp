#include "src/app/settle_openmp.hpp"

#include <omp.h>
#include <sys/auxv.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "choir/core/cores.hpp"

namespace choir {

void settle_openmp(char** argv) {
  const auto given = [](const char* name) { return std::getenv(name) != nullptr; };
  const int threads = std::min(omp_get_max_threads(), omp_get_thread_limit());
  std::vector<std::pair<const char*, std::string>> better;
  if (omp_get_dynamic() != 0) better.emplace_back("OMP_DYNAMIC", "false");
  if (omp_get_max_active_levels() < 1) better.emplace_back("OMP_MAX_ACTIVE_LEVELS", "1");
  if (threads < omp_get_max_threads() && given("OMP_NUM_THREADS"))
    better.emplace_back("OMP_NUM_THREADS", std::to_string(threads));
  if (threads > 1 && !given("GOMP_SPINCOUNT") && !given("OMP_WAIT_POLICY"))
    better.emplace_back("GOMP_SPINCOUNT", "1000");
  for (const auto& [name, value] : better) setenv(name, value.c_str(), 1);
  std::error_code error;
  const std::string self = std::filesystem::read_symlink("/proc/self/exe", error);
  // Without AT_BASE this is the loader, which was called with the program as its argument.
  if (!better.empty() && !error && getauxval(AT_BASE) != 0) {
    // libgomp has already bound this thread to one place (OMP_PROC_BIND); the new process binds
    // anew.
    const cpu_set_t cores = own_cores();
    sched_setaffinity(0, sizeof cores, &cores);
    execv(self.c_str(), argv);
  }
  omp_set_dynamic(0);
  omp_set_max_active_levels(std::max(1, omp_get_max_active_levels()));
  omp_set_num_threads(threads);
}

}  // namespace choir
