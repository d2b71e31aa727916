#include "choir/core/cores.hpp"

#include <omp.h>

#include <algorithm>
#include <vector>

namespace choir {
namespace {

cpu_set_t mask_of_thread() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  sched_getaffinity(0, sizeof mask, &mask);
  return mask;
}

}  // namespace

cpu_set_t own_cores() {
  cpu_set_t own = mask_of_thread();
  if (omp_get_proc_bind() == omp_proc_bind_false) return own;
  for (int place = 0; place < omp_get_num_places(); ++place) {
    std::vector<int> cores(static_cast<std::size_t>(omp_get_place_num_procs(place)));
    omp_get_place_proc_ids(place, cores.data());
    for (const int core : cores)
      if (core >= 0 && core < CPU_SETSIZE) CPU_SET(core, &own);
  }
  return own;
}

int usable_cores() {
  const cpu_set_t own = own_cores();
  return std::max(1, CPU_COUNT(&own));
}

int threads_of_rank(int cores, int ranks) {
  return std::clamp(cores / ranks, 1, omp_get_thread_limit());
}

cpu_set_t team_cores() {
  cpu_set_t all = mask_of_thread();
  if (omp_get_proc_bind() == omp_proc_bind_false) return all;
#pragma omp parallel
  {
    const cpu_set_t one = mask_of_thread();
#pragma omp critical
    CPU_OR(&all, &all, &one);
  }
  return all;
}

}  // namespace choir
