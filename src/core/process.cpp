#include "choir/core/process.hpp"

#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace choir {
namespace {

bool under_launcher() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK", "PALS_RANKID"})
    if (std::getenv(name) != nullptr) return true;
  return false;
}

}  // namespace

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
