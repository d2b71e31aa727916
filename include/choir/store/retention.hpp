#pragma once
// Which checkpoints stay: a pure function.
#include <cstdint>
#include <optional>
#include <vector>

namespace choir {

/// A checkpoint stays when any rule keeps it. The newest always stays.
struct Retention {
  int keep_last = 3;            ///< at least 1
  std::int64_t keep_every = 0;  ///< steps that are multiples of it; 0 is never
  bool keep_best = true;        ///< smallest metric; the earliest of equals; NaN is no metric
};

struct RetentionEntry {
  std::int64_t step = 0;
  std::optional<double> metric;
};

/// Steps to delete, ascending. `just_saved` stays even where older than others.
std::vector<std::int64_t> steps_to_delete(const std::vector<RetentionEntry>& valid,
                                          const Retention& rules, std::int64_t just_saved);

}  // namespace choir
