#include "choir/core/process.hpp"

#include <unistd.h>

#include <array>
#include <cstdio>
#include <fstream>
#include <string>

namespace choir {
namespace {

/// True if an MPI launcher or its daemon started this process. The name of the parent decides,
/// because MPI sets a launcher's variables also in a process that nobody launched.
bool under_launcher() {
  std::ifstream file("/proc/" + std::to_string(getppid()) + "/comm");
  std::string parent;
  std::getline(file, parent);
  for (const char* name : {"mpiexec", "mpirun", "orterun", "orted", "prterun", "prted", "hydra_pmi",
                           "slurmstepd", "pals"})
    if (parent.starts_with(name)) return true;
  return false;
}

}  // namespace

std::string host_name() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) return "unknown host";
  return name.data();
}

std::int64_t resident_bytes() {
  long total = 0, resident = 0;
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  if (file == nullptr) return 0;
  const int fields = std::fscanf(file, "%ld %ld", &total, &resident);
  std::fclose(file);
  return fields == 2 ? std::int64_t{resident} * sysconf(_SC_PAGESIZE) : 0;
}

bool stdout_is_terminal() {
  if (isatty(STDOUT_FILENO) == 0) return false;
  if (!under_launcher()) return true;
  std::array<char, 64> target{};
  const std::string link = "/proc/" + std::to_string(getppid()) + "/fd/1";
  const ssize_t length = readlink(link.c_str(), target.data(), target.size() - 1);
  return length > 0 && std::string(target.data()).starts_with("/dev/pts/");
}

}  // namespace choir
