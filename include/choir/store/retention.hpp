#pragma once
// Retention of checkpoints: a pure function.
#include <cstdint>
#include <optional>
#include <vector>

namespace choir {

/// A checkpoint is kept if any rule keeps it. The newest is always kept.
struct Retention {
  int keep_last = 3;            ///< at least 1
  std::int64_t keep_every = 0;  ///< keeps steps that are multiples; 0: none
  bool keep_best = true;        ///< smallest metric, the earliest of equals; NaN does not count
};

struct RetentionEntry {
  std::int64_t step = 0;
  std::optional<double> metric;
};

/// Steps to delete, ascending. `just_saved` is kept even if others are newer.
std::vector<std::int64_t> steps_to_delete(const std::vector<RetentionEntry>& valid,
                                          const Retention& rules, std::int64_t just_saved);

}  // namespace choir
