#include "choir/core/process.hpp"

#include <unistd.h>

#include <cstdio>

namespace choir {

std::int64_t resident_bytes() {
  long total = 0, resident = 0;
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  if (file == nullptr) return 0;
  const int fields = std::fscanf(file, "%ld %ld", &total, &resident);
  std::fclose(file);
  return fields == 2 ? std::int64_t{resident} * sysconf(_SC_PAGESIZE) : 0;
}

}  // namespace choir
